#include "serve/server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <sstream>

namespace loopspec::serve {
namespace {

using Buckets = prometheus::Histogram::BucketBoundaries;
using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

const Buckets kFirstToken = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                             1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640};
const Buckets kNextToken = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,
                            0.3,    0.4,   0.5,    0.75,  1,    2.5,   5,    10,    20,  40};
const Buckets kWhole = {0.05, 0.1, 0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,
                        10,   15,  20,  30,  40,  60, 120, 240, 480, 960};
const Buckets kTokens = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000};

// Families for values that are kept elsewhere and read when somebody asks.
MetricFamily Family(const char* name, const char* help, MetricType type) {
  MetricFamily family;
  family.name = name;
  family.help = help;
  family.type = type;
  return family;
}

MetricFamily Single(const char* name, const char* help, MetricType type, double value) {
  MetricFamily family = Family(name, help, type);
  ClientMetric metric;
  (type == MetricType::Gauge ? metric.gauge.value : metric.counter.value) = value;
  family.metric.push_back(metric);
  return family;
}

MetricFamily ByIndex(const char* name, const char* help, const char* label,
                     const std::vector<int64_t>& values) {
  MetricFamily family = Family(name, help, MetricType::Counter);
  for (size_t i = 0; i < values.size(); ++i) {
    ClientMetric metric;
    metric.label.push_back({label, std::to_string(i)});
    metric.counter.value = static_cast<double>(values[i]);
    family.metric.push_back(metric);
  }
  return family;
}

// Steps by their number of rows, as a histogram with a bucket for every power of two.
MetricFamily RowsPerStep(const EngineMetrics& engine) {
  MetricFamily family = Family("loopspec:rows_per_step", "Branches computed together in a step.",
                               MetricType::Histogram);
  ClientMetric metric;
  uint64_t count = 0;
  size_t bound = 1;
  for (size_t rows = 0; rows < engine.steps_by_rows.size(); ++rows) {
    if (rows > bound) {
      metric.histogram.bucket.push_back({count, static_cast<double>(bound)});
      bound *= 2;
    }
    count += static_cast<uint64_t>(engine.steps_by_rows[rows]);
  }
  if (count > 0) metric.histogram.bucket.push_back({count, static_cast<double>(bound)});
  metric.histogram.sample_count = static_cast<uint64_t>(engine.steps);
  metric.histogram.sample_sum = static_cast<double>(engine.rows);
  family.metric.push_back(metric);
  return family;
}

double Used(int free, int all) {
  return all > 0 ? 1.0 - static_cast<double>(free) / all : 0.0;
}

void AddEngine(const EngineMetrics& engine, std::vector<MetricFamily>& out) {
  const auto counter = [&](const char* name, const char* help, int64_t value) {
    out.push_back(Single(name, help, MetricType::Counter, static_cast<double>(value)));
  };
  const auto gauge = [&](const char* name, const char* help, double value) {
    out.push_back(Single(name, help, MetricType::Gauge, value));
  };
  gauge("vllm:num_requests_running", "Requests that are being decoded or prefilled.",
        engine.prefilling + engine.decoding);
  gauge("vllm:num_requests_waiting", "Requests in the queue.", engine.waiting + engine.preempted);
  gauge("vllm:kv_cache_usage_perc", "Share of the key/value pages that requests hold, 0 to 1.",
        Used(engine.pages_free + engine.pages_evictable, engine.pages));
  gauge("loopspec:prefix_cache_usage",
        "Share of the key/value pages that hold prefixes for later and no request does, 0 to 1.",
        engine.pages > 0 ? static_cast<double>(engine.pages_evictable) / engine.pages : 0);
  gauge("loopspec:cells_usage", "Share of the cells, which hold branches, in use, 0 to 1.",
        Used(engine.cells_free, engine.cells));
  counter("vllm:num_preemptions_total", "Requests preempted to free pages for others.",
          engine.preemptions);
  counter("vllm:prefix_cache_queries_total", "Prompt tokens looked for in the prefix cache.",
          engine.prompt_tokens);
  counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.",
          engine.cached_tokens);
  int64_t accepted = 0;
  for (const int64_t tokens : engine.accepted) accepted += tokens;
  counter("vllm:spec_decode_num_drafts_total", "Tokens verified over drafts.",
          accepted + engine.fallback);
  counter("vllm:spec_decode_num_draft_tokens_total", "Drafted tokens.", engine.drafted);
  counter("vllm:spec_decode_num_accepted_tokens_total", "Accepted drafts.", accepted);
  out.push_back(ByIndex("loopspec:accepted_tokens_by_proposal_total",
                        "Accepted drafts by proposal, 0 the first.", "proposal", engine.accepted));
  counter("loopspec:fallback_tokens_total", "Tokens decided without an accepted draft.",
          engine.fallback);
  counter("loopspec:early_tokens_total", "Tokens whose branch had started on a guess.",
          engine.early);
  out.push_back(RowsPerStep(engine));
}

}  // namespace

struct ServiceMetrics::Parts {
  using Counters = prometheus::Family<prometheus::Counter>;

  prometheus::Histogram& Histogram(const char* name, const char* help, const Buckets& buckets) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add({}, buckets);
  }
  prometheus::Counter& Counter(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add({});
  }

  prometheus::Registry registry;
  prometheus::Histogram& first_token = Histogram(
      "vllm:time_to_first_token_seconds", "From the request to its first token.", kFirstToken);
  prometheus::Histogram& next_token = Histogram(
      "vllm:inter_token_latency_seconds", "From one token of an answer to the next.", kNextToken);
  prometheus::Histogram& whole =
      Histogram("vllm:e2e_request_latency_seconds", "From the request to its last token.", kWhole);
  prometheus::Histogram& prompt_sizes =
      Histogram("vllm:request_prompt_tokens", "Tokens of a request's prompts.", kTokens);
  prometheus::Histogram& answer_sizes =
      Histogram("vllm:request_generation_tokens", "Tokens of a request's answers.", kTokens);
  prometheus::Counter& prompt_tokens =
      Counter("vllm:prompt_tokens_total", "Tokens of prompts of finished requests.");
  prometheus::Counter& answer_tokens =
      Counter("vllm:generation_tokens_total", "Tokens of answers.");
  Counters& outcomes = prometheus::BuildCounter()
                           .Name("vllm:request_success_total")
                           .Help("Finished requests by what ended them.")
                           .Register(registry);
  Counters& failures = prometheus::BuildCounter()
                           .Name("loopspec:request_failure_total")
                           .Help("Requests that did not end by themselves, by why.")
                           .Register(registry);
  Counters& responses = prometheus::BuildCounter()
                            .Name("loopspec:http_responses_total")
                            .Help("HTTP answers by status.")
                            .Register(registry);
};

ServiceMetrics::ServiceMetrics() : parts_(std::make_unique<Parts>()) {}
ServiceMetrics::~ServiceMetrics() = default;

void ServiceMetrics::FirstToken(double seconds) {
  parts_->first_token.Observe(seconds);
  parts_->answer_tokens.Increment();
}

void ServiceMetrics::NextToken(double seconds) {
  parts_->next_token.Observe(seconds);
  parts_->answer_tokens.Increment();
}

void ServiceMetrics::Finished(const RequestRecord& record) {
  parts_->responses.Add({{"code", std::to_string(record.status)}}).Increment();
  if (!record.completion || record.outcome.empty()) return;
  const bool success = record.outcome == "stop" || record.outcome == "length";
  if (success) {
    parts_->outcomes.Add({{"finished_reason", record.outcome}}).Increment();
  } else {
    parts_->failures.Add({{"reason", record.outcome}}).Increment();
  }
  parts_->prompt_tokens.Increment(static_cast<double>(record.prompt_tokens));
  parts_->prompt_sizes.Observe(static_cast<double>(record.prompt_tokens));
  parts_->answer_sizes.Observe(static_cast<double>(record.completion_tokens));
  if (success) parts_->whole.Observe(record.seconds);
}

std::string ServiceMetrics::Text(const Snapshot& snapshot) const {
  std::vector<MetricFamily> families = parts_->registry.Collect();
  if (snapshot.engine != nullptr) AddEngine(*snapshot.engine, families);
  const auto add = [&](const char* name, const char* help, MetricType type, int64_t value) {
    families.push_back(Single(name, help, type, static_cast<double>(value)));
  };
  add("loopspec:http_connections", "Open connections.", MetricType::Gauge, snapshot.http.open);
  add("loopspec:http_connections_total", "Connections since the start.", MetricType::Counter,
      snapshot.http.accepted);
  add("loopspec:http_connections_refused_total", "Connections refused because there were too many.",
      MetricType::Counter, snapshot.http.refused);
  add("loopspec:http_connections_evicted_total",
      "Connections closed while they asked for nothing, to make room for others.",
      MetricType::Counter, snapshot.http.evicted);
  add("loopspec:log_lines_lost_total", "Log lines that could not be written.", MetricType::Counter,
      snapshot.log_lines_lost);
  MetricFamily memory =
      Family("loopspec:memory_bytes",
             "Memory by what it is: resident without a file, of files, free in the allocator's "
             "pools; key/value "
             "pages of requests and of cached prefixes, tokens that no reader has taken, bodies.",
             MetricType::Gauge);
  for (const auto& [part, bytes] : snapshot.memory.Parts()) {
    ClientMetric metric;
    metric.label.push_back({"part", part});
    metric.gauge.value = static_cast<double>(bytes);
    memory.metric.push_back(metric);
  }
  families.push_back(std::move(memory));
  for (MetricFamily& family : families) {
    for (ClientMetric& metric : family.metric) {
      metric.label.push_back({"model_name", snapshot.model});
    }
  }
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, families);
  return out.str();
}

}  // namespace loopspec::serve
