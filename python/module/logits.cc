// Logits of every depth and position, into memory that Python takes over without a copy.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/memory_limit.h"
#include "engine_handle.h"
#include "in_call.h"
#include "report/trace_picture.h"
#include "stream_handle.h"

namespace loopspec::python {
namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Buffer = std::shared_ptr<float[]>;
using Array = nb::ndarray<nb::numpy, float, nb::ndim<3>, nb::c_contig>;

// [depths, tokens, vocabulary]. The engine's thread writes them, perhaps even a little after the
// wait was given up: the buffer lives as long as either side needs it.
Buffer Compute(const EngineHandle& engine, std::vector<int32_t> tokens,
               const std::vector<int>& depths) {
  const ModelFacts& facts = engine.facts();
  if (tokens.empty()) Fail("ids is empty, expected at least one token");
  for (const int depth : depths) {
    if (std::find(facts.recurrences.begin(), facts.recurrences.end(), depth) ==
        facts.recurrences.end())
      Fail(
          "depths has {}, expected some of {}: others must be named when the model is loaded "
          "(recurrences=[...])",
          depth, fmt::join(facts.recurrences, ", "));
    if (facts.kv_type.starts_with("loops:") && depth != facts.recurrence)
      Fail(
          "depths has {}, expected {} alone: with kv_type {} other depths are no texts of their "
          "own",
          depth, facts.recurrence, facts.kv_type);
    if (std::count(depths.begin(), depths.end(), depth) > 1) Fail("depths has {} twice", depth);
  }
  const size_t positions = tokens.size(), vocab = static_cast<size_t>(facts.vocab);
  const size_t count = depths.size() * positions * vocab;
  CheckMemory(static_cast<double>(count) * sizeof(float),
              fmt::format("logits of {} depths, {} positions and {} tokens", depths.size(),
                          positions, vocab));
  const Buffer buffer(new float[count]);
  Request request;
  // The prompt's last token is not read before something is decoded: this one is in the way.
  tokens.push_back(tokens.back());
  request.tokens = std::move(tokens);
  request.max_tokens = 0;
  request.decoding = Decoding::kAutoregressive;
  request.on_logits = [=](int64_t position, int depth, std::span<const float> logits) {
    const auto it = std::find(depths.begin(), depths.end(), depth);
    if (it == depths.end()) return;
    const size_t row = static_cast<size_t>(it - depths.begin()) * positions;
    std::memcpy(buffer.get() + (row + static_cast<size_t>(position)) * vocab, logits.data(),
                logits.size_bytes());
  };
  StreamHandle stream(engine.Submit(request));
  while (!stream.done()) stream.Read(std::nullopt);
  const Statistics& end = stream.answer().choices[0].statistics;
  if (!end.error.empty()) throw std::runtime_error(end.error);
  if (end.finish_reason == FinishReason::kCancelled)
    throw ClosedError("the engine was closed before the logits were there");
  return buffer;
}

Array Logits(const EngineHandle& engine, const std::vector<int32_t>& ids,
             const std::vector<int>& depths) {
  const InCall call;
  Buffer buffer;
  {
    const nb::gil_scoped_release without;
    buffer = Compute(engine, ids, depths);
  }
  float* data = buffer.get();
  const nb::capsule owner(new Buffer(std::move(buffer)),
                          [](void* p) noexcept { delete static_cast<Buffer*>(p); });
  return Array(data, {depths.size(), ids.size(), static_cast<size_t>(engine.facts().vocab)}, owner);
}

}  // namespace

void BindLogits(nb::module_& module) {
  module.def("logits", &Logits, "engine"_a, "ids"_a, "depths"_a);
  module.def(
      "draw_trace",
      [](const std::string& json, int64_t begin, int64_t end) {
        return DrawTrace(ParseJson(json, "trace"), begin, end, "trace");
      },
      "json"_a, "begin"_a, "end"_a);
}

}  // namespace loopspec::python
