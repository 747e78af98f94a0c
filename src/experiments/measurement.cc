#include "experiments/measurement.h"

#include <algorithm>

#include "base/error.h"

namespace loopspec::experiments {
namespace {

constexpr int kWarmUpTokens = 16;

std::string KeyOf(const Measurement& m, size_t spec, size_t job, int repeat) {
  RunRecord name;
  name.group = m.group;
  name.way = m.specs[spec].name;
  name.item = m.jobs[job].item;
  name.repeat = repeat;
  return name.Key();
}

// The first way of decoding whose text that of `spec` must equal; nothing when it may differ.
std::optional<size_t> ReferenceOf(const Measurement& m, size_t spec) {
  if (m.specs[spec].same_text.empty()) return std::nullopt;
  for (size_t i = 0; i < m.specs.size(); ++i) {
    if (m.specs[i].same_text == m.specs[spec].same_text) return i;
  }
  return std::nullopt;
}

// Specs in the order in which they run for a prompt: those that others are compared with
// first, the others beginning with another one each time.
std::vector<size_t> Order(const Measurement& m, size_t job, int repeat) {
  std::vector<size_t> first, others;
  for (size_t i = 0; i < m.specs.size(); ++i) {
    (repeat == 0 && ReferenceOf(m, i) == i ? first : others).push_back(i);
  }
  if (!others.empty()) {
    const auto shift =
        static_cast<std::ptrdiff_t>((job + static_cast<size_t>(repeat)) % others.size());
    std::rotate(others.begin(), others.begin() + shift, others.end());
  }
  first.insert(first.end(), others.begin(), others.end());
  return first;
}

// Decodes one text; nothing when interrupted.
std::optional<RunRecord> RunOne(const Measurement& m, const MeasuredSpec& spec,
                                const MeasuredJob& job, const MeasureHooks& hooks) {
  Request request = spec.request;
  request.tokens = job.tokens;
  request.seed = request.seed.value_or(0) + job.seed;
  request.stop = m.stop;
  request.progress = true;  // so that a long prompt can be broken off
  const Result run = spec.engine->Generate(
      request, [&](const Token&) { return !hooks.interrupted(); },
      [&](const Stream::Progress&) { return !hooks.interrupted(); });
  if (hooks.interrupted()) return std::nullopt;
  const Choice& result = run.choices[0];
  RunRecord record;
  record.text = result.text;
  record.group = m.group;
  record.way = spec.name;
  record.item = job.item;
  record.prompt_tokens = static_cast<int64_t>(job.tokens.size());
  for (const Token& token : result.tokens) record.tokens.push_back(token.id);
  record.finish = NameOf(result.statistics.finish_reason);
  record.statistics = result.statistics;
  if (job.answer) record.correct = FinalAnswer(record.text) == job.answer;
  return record;
}

}  // namespace

void Records::Restore(RunRecord record) {
  const std::string key = record.Key();
  if (!by_key_.emplace(key, all_.size()).second) return;  // the first one counts
  all_.push_back(std::move(record));
}

void Records::Add(RunRecord record) {
  if (sink_) sink_(record);
  Restore(std::move(record));
}

const RunRecord* Records::Find(const std::string& key) const {
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? nullptr : &all_[found->second];
}

int64_t CountRuns(const Measurement& m) {
  return static_cast<int64_t>(m.specs.size() * m.jobs.size()) * m.repeats;
}

int64_t CountDone(const Measurement& m, const Records& records) {
  int64_t done = 0;
  for (int repeat = 0; repeat < m.repeats; ++repeat) {
    for (size_t job = 0; job < m.jobs.size(); ++job) {
      for (size_t spec = 0; spec < m.specs.size(); ++spec)
        done += records.Find(KeyOf(m, spec, job, repeat)) != nullptr ? 1 : 0;
    }
  }
  return done;
}

bool RunMeasurement(const Measurement& m, const MeasureHooks& hooks, Records& records) {
  const int64_t total = CountRuns(m);
  int64_t done = CountDone(m, records);
  if (done == total) return true;
  // Once for nothing: the first run meets cold caches, and that would always be the same way of
  // decoding.
  MeasuredSpec warm_up = m.specs[0];
  warm_up.request.max_tokens =
      std::min(warm_up.request.max_tokens.value_or(kWarmUpTokens), kWarmUpTokens);
  RunOne(m, warm_up, {"", m.jobs[0].tokens}, hooks);
  for (int repeat = 0; repeat < m.repeats; ++repeat) {
    for (size_t job = 0; job < m.jobs.size(); ++job) {
      for (const size_t spec : Order(m, job, repeat)) {
        if (records.Find(KeyOf(m, spec, job, repeat)) != nullptr) continue;
        hooks.progress(done, total);
        std::optional<RunRecord> record =
            hooks.interrupted() ? std::nullopt : RunOne(m, m.specs[spec], m.jobs[job], hooks);
        if (!record) return false;
        record->repeat = repeat;
        if (const auto reference = ReferenceOf(m, spec);
            reference && !(reference == spec && repeat == 0)) {
          const RunRecord* other = records.Find(KeyOf(m, *reference, job, 0));
          record->equal = other != nullptr && other->tokens == record->tokens;
        }
        records.Add(std::move(*record));
        hooks.progress(++done, total);
      }
    }
  }
  return true;
}

void CutPrompt(int max_length, int max_tokens, std::vector<int32_t>& tokens) {
  const auto room = static_cast<size_t>(std::max(1, max_length - 1 - max_tokens));
  if (tokens.size() > room)
    tokens.erase(tokens.begin(), tokens.end() - static_cast<std::ptrdiff_t>(room));
}

}  // namespace loopspec::experiments
