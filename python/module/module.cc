// loopspec._core: the public C++ Engine for the package's Python files, which are what people use.
#include <nanobind/nanobind.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine_handle.h"
#include "errors.h"
#include "fields/choices.h"
#include "fields/grammar_fields.h"
#include "fields/request_fields.h"
#include "fields/sampling_fields.h"
#include "given_up.h"
#include "in_call.h"
#include "signals.h"
#include "stream_handle.h"

namespace loopspec::python {
namespace nb = nanobind;
using namespace nb::literals;

void BindLogits(nb::module_& module);
void BindCalibration(nb::module_& module);
void BindPull(nb::module_& module);

namespace {

using Without = nb::call_guard<InCall, nb::gil_scoped_release>;  // Python's lock
using Top = std::vector<std::pair<int32_t, float>>;
using Dict = nb::typed<nb::dict, nb::str, nb::any>;

Top TopOf(const Token& token) {
  Top top;
  top.reserve(token.top.size());
  for (const Alternative& entry : token.top) top.emplace_back(entry.id, entry.logprob);
  return top;
}

double SecondsOf(const Token& token) {
  return std::chrono::duration<double>(token.time.time_since_epoch()).count();
}

using TokenState =
    std::tuple<int, int32_t, int, bool, std::string, std::optional<float>, Top, double>;

TokenState StateOf(const Token& token) {
  return {token.choice, token.id,      token.source, token.early,
          token.text,   token.logprob, TopOf(token), SecondsOf(token)};
}

void SetState(Token& token, const TokenState& state) {
  new (&token) Token();
  Top top;
  double seconds = 0;
  std::tie(token.choice, token.id, token.source, token.early, token.text, token.logprob, top,
           seconds) = state;
  for (const auto& [id, logprob] : top) token.top.push_back({id, logprob});
  token.time = std::chrono::steady_clock::time_point(
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(
          std::chrono::duration<double>(seconds)));
}

nb::str ReprOf(const Token& token) {
  return nb::str("Token(id={}, text={!r}, source={}{})")
      .format(token.id, token.text, token.source,
              token.logprob ? nb::str(", logprob={:.4f}").format(*token.logprob) : nb::str(""));
}

void BindToken(nb::module_& module) {
  nb::class_<Token>(module, "Token",
                    "A token of an answer: its id, its text, and where it came from.")
      .def_ro("choice", &Token::choice, "Which of the request's answers it belongs to (see n).")
      .def_ro("id", &Token::id, "Its number in the vocabulary.")
      .def_ro(
          "text", &Token::text,
          "What may be shown now, in whole characters: empty while a character or a stop string "
          "is incomplete.")
      .def_ro("source", &Token::source,
              "0: decided at full depth; j: accepted from the j-th proposal, an early depth's "
              "draft.")
      .def_ro("early", &Token::early, "Its computation had begun on a guess.")
      .def_ro("logprob", &Token::logprob,
              "Log-probability under the model's unfiltered distribution, where logprobs was asked "
              "for.")
      .def_prop_ro("top", &TopOf, "The likeliest tokens there, as pairs of id and logprob.")
      .def_prop_ro("time", &SecondsOf, "When it was decided, on the clock of time.monotonic().")
      .def("__repr__", &ReprOf)
      .def(
          "__eq__",
          [](const Token& a, const Token& b) {
            return std::tie(a.choice, a.id, a.text, a.source, a.early, a.logprob) ==
                       std::tie(b.choice, b.id, b.text, b.source, b.early, b.logprob) &&
                   TopOf(a) == TopOf(b);
          },
          nb::is_operator(), nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__getstate__", &StateOf)
      .def("__setstate__", &SetState);
}

Dict ToDict(const Statistics& s) {
  Dict d;
  d["finish_reason"] = NameOf(s.finish_reason);
  d["stop_string"] = s.stop_string;
  d["stop_token"] = s.stop_token;
  d["prompt_tokens"] = s.prompt_tokens;
  d["cached_tokens"] = s.cached_tokens;
  d["decoded_tokens"] = s.decoded_tokens;
  d["accepted"] = s.accepted;
  d["fallback"] = s.fallback;
  d["early"] = s.early;
  d["gamma"] = s.gamma;
  d["preemptions"] = s.preemptions;
  d["queue_seconds"] = s.queue_seconds;
  d["prefill_seconds"] = s.prefill_seconds;
  d["first_token_seconds"] = s.first_token_seconds;
  d["decode_seconds"] = s.decode_seconds;
  d["tokens_per_second"] = s.tokens_per_second;
  d["drafted"] = s.drafted;
  d["recurrences"] = s.recurrences;
  d["rows_mean"] = s.rows_mean;
  d["rows_peak"] = s.rows_peak;
  d["tokens_per_pass"] = s.tokens_per_pass;
  d["bytes_read"] = s.bytes_read;
  return d;
}

Dict ToDict(const SamplingParams& s) {
  Dict d;
  for (const SamplingField& field : SamplingFields())
    std::visit([&](auto member) { d[field.name] = s.*member; }, field.member);
  return d;
}

Dict ToDict(const ModelFacts& f) {
  Dict d;
  d["model"] = f.name;
  d["device"] = f.device;
  d["dtype"] = f.compute;
  d["kv_type"] = f.kv_type;
  d["context"] = f.context;
  d["parameters"] = f.parameters;
  d["vocab_size"] = f.vocab;
  d["recurrence"] = f.recurrence;
  d["trained_recurrence"] = f.trained_recurrence;
  d["recurrences"] = f.recurrences;
  d["depths"] = f.depths;
  d["sampling"] = ToDict(f.sampling);
  d["bos_token"] = f.bos_token;
  d["eos_token"] = f.eos_token;
  d["pad_token"] = f.pad_token;
  d["eos_token_ids"] = f.eos_ids;
  d["chat_template"] = f.chat_template;
  d["max_queued"] = f.max_queued;
  d["has_tokenizer"] = f.has_tokenizer;
  return d;
}

Dict ToDict(const EngineMetrics& m) {
  Dict d;
  d["waiting"] = m.waiting;
  d["prefilling"] = m.prefilling;
  d["decoding"] = m.decoding;
  d["preempted"] = m.preempted;
  d["pages"] = m.pages;
  d["pages_free"] = m.pages_free;
  d["pages_cached"] = m.pages_cached;
  d["page_positions"] = m.page_positions;
  d["steps"] = m.steps;
  d["rows"] = m.rows;
  d["prompt_tokens"] = m.prompt_tokens;
  d["cached_tokens"] = m.cached_tokens;
  d["decoded_tokens"] = m.decoded_tokens;
  d["finished"] = m.finished;
  d["cancelled"] = m.cancelled;
  d["failed"] = m.failed;
  d["preemptions"] = m.preemptions;
  d["accepted"] = m.accepted;
  d["fallback"] = m.fallback;
  d["early"] = m.early;
  d["drafted"] = m.drafted;
  return d;
}

template <typename Value, size_t kCount>
void BindChoices(nb::module_& module, const char* name, const NamedValue<Value> (&values)[kCount]) {
  nb::enum_<Value> bound(module, name);
  for (const NamedValue<Value>& value : values) bound.value(value.name, value.value);
}

void BindRequest(nb::module_& module) {
  BindChoices(module, "Sampler", kSamplers);
  BindChoices(module, "Decoding", kDecodings);
  nb::class_<SamplingParams> sampling(module, "Sampling");
  sampling.def(nb::init<>())
      .def_rw("sampler", &SamplingParams::sampler)
      .def("set_bias", [](SamplingParams& self, const std::vector<std::pair<int, float>>& bias) {
        self.bias.clear();
        for (const auto& [token, value] : bias) self.bias.push_back({token, value});
      });
  nb::dict numbers;  // of Sampling: the type, the least value, one sentence
  nb::list filters;  // the names of those that shape a distribution
  for (const SamplingField& field : SamplingFields()) {
    std::visit([&](auto member) { sampling.def_rw(field.name, member); }, field.member);
    numbers[field.name] =
        nb::make_tuple(field.whole() ? "int" : "float", field.range.low, field.help);
    if (field.part != SamplingPart::kPenalty) filters.append(field.name);
  }
  module.attr("sampling_fields") = numbers;
  module.attr("sampling_filters") = filters;
  nb::dict plain;  // of Request: the least and the largest value, None for switches
  for (const RequestField& field : RequestFields()) {
    plain[field.name] = field.is_switch()
                            ? nb::object(nb::none())
                            : nb::object(nb::make_tuple(static_cast<int64_t>(field.range.low),
                                                        static_cast<int64_t>(field.range.high)));
  }
  module.attr("request_fields") = plain;
  nb::dict grammars;  // of Request: one sentence
  for (const GrammarField& field : GrammarFields()) grammars[field.name] = field.help;
  module.attr("grammar_fields") = grammars;
  nb::class_<Request>(module, "Request")
      .def(nb::init<>())
      .def_rw("prompt", &Request::prompt)
      .def_rw("messages_json", &Request::messages_json)
      .def_rw("tokens", &Request::tokens)
      .def_rw("template_arguments", &Request::template_arguments)
      .def_rw("add_special_tokens", &Request::add_special_tokens)
      .def_rw("sampling", &Request::sampling)
      .def_rw("seed", &Request::seed)
      .def_rw("choices", &Request::choices)
      .def_rw("max_tokens", &Request::max_tokens)
      .def_rw("max_thinking_tokens", &Request::max_thinking_tokens)
      .def_rw("stop", &Request::stop)
      .def_rw("stop_tokens", &Request::stop_tokens)
      .def_rw("ignore_eos", &Request::ignore_eos)
      .def("set_grammar",
           [](Request& self, const std::string& name, const std::string& text) {
             for (const GrammarField& field : GrammarFields()) {
               if (name == field.name) self.grammar = {field.kind, text};
             }
           })
      .def_rw("show_special", &Request::show_special)
      .def_rw("logprobs", &Request::logprobs)
      .def_rw("prompt_logprobs", &Request::prompt_logprobs)
      .def_rw("trace", &Request::trace)
      .def_rw("priority", &Request::priority)
      .def_rw("recurrence", &Request::recurrence)
      .def_rw("decoding", &Request::decoding)
      .def_rw("depths", &Request::depths);
}

std::vector<int32_t> Ids(const Choice& choice) {
  std::vector<int32_t> ids;
  ids.reserve(choice.tokens.size());
  for (const Token& token : choice.tokens) ids.push_back(token.id);
  return ids;
}

using Event = std::tuple<std::string, int64_t, int, int, int, int, int, int>;

std::vector<Event> EventsOf(const Answer& answer) {
  std::vector<Event> events;
  for (const TraceEvent& e : answer.trace)
    events.emplace_back(NameOf(e.kind), e.step, e.branch, e.parent, e.token, e.position, e.depth,
                        e.proposal);
  return events;
}

void BindAnswer(nb::module_& module) {
  nb::class_<Choice>(module, "Choice")
      .def_ro("text", &Choice::text)
      .def_ro("tokens", &Choice::tokens)
      .def_prop_ro("token_ids", &Ids)
      .def_prop_ro("statistics", [](const Choice& self) { return ToDict(self.statistics); });
  nb::class_<Answer>(module, "Answer")
      .def_ro("prompt", &Answer::prompt)
      .def_ro("seed", &Answer::seed)
      .def_ro("depths", &Answer::depths)
      .def_ro("choices", &Answer::choices)
      .def_ro("prompt_logprobs", &Answer::prompt_logprobs)
      .def_ro("error", &Answer::error)
      .def_ro("refused", &Answer::refused)
      .def_prop_ro("trace", &EventsOf);
}

void BindStream(nb::module_& module) {
  nb::class_<StreamHandle>(module, "Stream")
      .def("read", &StreamHandle::Read, "timeout"_a.none() = nb::none(), Without(),
           "The tokens that are there; waits for one, forever or for this many seconds.")
      .def("cancel", &StreamHandle::Cancel, Without())
      .def("fileno", &StreamHandle::Descriptor,
           "A descriptor that is readable when read(0) may give something.")
      .def_prop_ro("done", &StreamHandle::done)
      .def_prop_ro("answer", &StreamHandle::answer, nb::rv_policy::reference_internal);
}

std::unique_ptr<EngineHandle> MakeEngine(
    std::string model, std::string device, std::string compute, std::string kv_type, int threads,
    int recurrence, std::vector<int> recurrences, std::vector<std::string> config,
    uint64_t state_seed, std::vector<std::vector<int>> depths, bool trust_special_tokens,
    bool calibration, int64_t kv_memory, double kv_share, int64_t kv_positions, int64_t cache_bytes,
    int cells, int max_running, int max_queued, int max_rows, int prefill_chunk) {
  EngineOptions options;
  options.model = std::move(model);
  options.device = std::move(device);
  options.compute = std::move(compute);
  options.kv_type = std::move(kv_type);
  options.threads = threads;
  options.recurrence = recurrence;
  options.recurrences = std::move(recurrences);
  options.config = std::move(config);
  options.state_seed = state_seed;
  options.depths = std::move(depths);
  options.trust_special_tokens = trust_special_tokens;
  options.calibration = calibration;
  options.kv_memory = kv_memory;
  options.kv_share = kv_share;
  options.kv_positions = kv_positions;
  options.cache_bytes = cache_bytes;
  options.cells = cells;
  options.max_running = max_running;
  options.max_queued = max_queued;
  options.max_rows = max_rows;
  options.prefill_chunk = prefill_chunk;
  const InCall call;
  const nb::gil_scoped_release without;
  return std::make_unique<EngineHandle>(options);
}

std::vector<Answer> Run(const EngineHandle& engine, const std::vector<Request>& requests,
                        nb::object progress, nb::object finished) {
  EngineHandle::Hooks hooks;
  if (!progress.is_none()) {
    hooks.progress = [&](size_t done, int64_t tokens) {
      const nb::gil_scoped_acquire lock;
      progress(done, tokens);
    };
  }
  if (!finished.is_none()) {
    hooks.finished = [&](size_t request, const Answer& answer) {
      const nb::gil_scoped_acquire lock;
      finished(request, answer);
    };
  }
  const InCall call;
  const nb::gil_scoped_release without;
  return engine.Run(requests, hooks);
}

std::vector<int32_t> Encode(const EngineHandle& engine, std::string text, bool add_special_tokens) {
  const InCall call;
  const nb::gil_scoped_release without;
  if (text.empty()) return engine.Get()->Encode(text, add_special_tokens);
  Request request;
  request.prompt = std::move(text);
  request.add_special_tokens = add_special_tokens;
  if (!engine.facts().has_tokenizer) return engine.Get()->Encode(request.prompt);  // says so
  return engine.Encoded(std::move(request)).tokens;
}

void BindEngine(nb::module_& module) {
  nb::class_<EngineHandle>(module, "Engine")
      .def(nb::new_(&MakeEngine), nb::kw_only(), "model"_a, "device"_a, "compute"_a, "kv_type"_a,
           "threads"_a, "recurrence"_a, "recurrences"_a, "config"_a, "state_seed"_a, "depths"_a,
           "trust_special_tokens"_a, "calibration"_a, "kv_memory"_a, "kv_share"_a, "kv_positions"_a,
           "cache_bytes"_a, "cells"_a, "max_running"_a, "max_queued"_a, "max_rows"_a,
           "prefill_chunk"_a)
      .def(
          "submit",
          [](const EngineHandle& self, const Request& request) {
            return std::make_unique<StreamHandle>(self.Submit(self.Encoded(request)));
          },
          "request"_a, Without())
      .def("run", &Run, "requests"_a, "progress"_a.none() = nb::none(),
           "finished"_a.none() = nb::none())
      .def("encode", &Encode, "text"_a, "add_special_tokens"_a)
      .def(
          "decode",
          [](const EngineHandle& self, const std::vector<int32_t>& ids, bool skip_special_tokens) {
            return self.Get()->Decode(ids, skip_special_tokens);
          },
          "ids"_a, "skip_special_tokens"_a, Without())
      .def(
          "piece",
          [](const EngineHandle& self, int32_t id) {
            const std::string_view bytes = self.Get()->Piece(id);
            return nb::bytes(bytes.data(), bytes.size());
          },
          "id"_a)
      .def(
          "render",
          [](const EngineHandle& self, const std::string& messages, const std::string& arguments) {
            return self.Get()->Render(messages, arguments);
          },
          "messages_json"_a, "template_arguments"_a, Without())
      .def(
          "encode_chat",
          [](const EngineHandle& self, std::string messages, std::string arguments) {
            Request request;
            request.messages_json = std::move(messages);
            request.template_arguments = std::move(arguments);
            if (!self.facts().has_tokenizer) return self.Get()->EncodeChat(request.messages_json);
            return self.Encoded(std::move(request)).tokens;
          },
          "messages_json"_a, "template_arguments"_a, Without())
      .def("facts", [](const EngineHandle& self) { return ToDict(self.facts()); })
      .def("metrics", [](const EngineHandle& self) { return ToDict(self.Get()->metrics()); })
      .def_prop_ro("closed", &EngineHandle::closed)
      .def("close", &EngineHandle::Close, Without());
}

}  // namespace

NB_MODULE(_core, module) {
  module.doc() = "The engine, for the package's own files.";
  module.attr("version") = LOOPSPEC_VERSION;
  RegisterErrors(module);
  BindToken(module);
  BindRequest(module);
  BindAnswer(module);
  BindStream(module);
  BindEngine(module);
  BindLogits(module);
  BindCalibration(module);
  BindPull(module);
  module.def("finish_given_up", &FinishGivenUp, Without());
  module.def("finish_calls", &FinishCalls, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace loopspec::python
