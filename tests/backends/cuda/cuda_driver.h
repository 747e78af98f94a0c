// Drives a backend for tests: tokens of one sequence as rows, in cells or committed to pages.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "backends/backend.h"

namespace loopspec {

inline bool GpuIsThere() {
  return CudaDeviceCount() > 0;
}

#define LOOPSPEC_NEEDS_GPU() \
  if (!GpuIsThere()) GTEST_SKIP() << "no GPU here: the CUDA backend was compiled but not run"

inline std::filesystem::path GoldenFolder(const std::string& name) {
  const std::filesystem::path source(LOOPSPEC_SOURCE_DIR), binary(LOOPSPEC_BINARY_DIR);
  for (const auto& folder : {binary / "goldens", source / "../shared/goldens"}) {
    if (std::filesystem::exists(folder / name / "config.json")) return folder / name;
  }
  return {};
}

inline BackendOptions AllDepths(const ModelSpec& spec, int cells = 64) {
  BackendOptions options;
  for (int d = 1; d <= spec.recurrence; ++d) options.readout_depths.push_back(d);
  options.cells = cells;
  options.kv_positions = 2048;
  return options;
}

// A plan under construction, with what it points to.
struct StepDriver {
  // The last of the pages are the text's window.
  explicit StepDriver(Backend& b, int page_count = 32)
      : backend(b), pages(static_cast<size_t>(page_count)) {
    std::iota(pages.begin(), pages.end(), 0);
    window.assign(pages.end() - b.window_pages(), pages.end());
  }

  void Begin(int recurrences) {
    plan = {};
    plan.sequences.push_back(Sequence());
    plan.recurrences = recurrences;
  }
  int AddRow(int cell, int token, int position, int depth, const std::vector<int32_t>& chain = {}) {
    plan.rows.push_back({0, cell, token, position, depth, static_cast<int32_t>(plan.chains.size()),
                         static_cast<int32_t>(chain.size())});
    plan.chains.insert(plan.chains.end(), chain.begin(), chain.end());
    return static_cast<int>(plan.rows.size()) - 1;
  }
  void Commit(int cell, int position) { plan.commits.push_back({cell, 0, position}); }
  // A readout of `row` after the step, at readout_depths[readout].
  ReadoutPlan& AddReadout(int row, int readout) {
    ReadoutPlan r{};
    r.row = row;
    r.readout = readout;
    r.purpose = ReadoutPurpose::kVerify;
    r.sampling = &sampling;
    r.logprobs = -1;
    plan.readouts.push_back(r);
    return plan.readouts.back();
  }
  const StepResult& Run() { return backend.Wait(backend.Submit(plan)); }
  std::vector<float> Logits(int readout) {
    std::vector<float> out(static_cast<size_t>(backend.spec().vocab));
    backend.ReadLogits(readout, out);
    return out;
  }

  SequencePlan Sequence() const { return {pages.data(), window.data()}; }

  Backend& backend;
  std::vector<int32_t> pages, window;
  SamplingParams sampling;
  StepPlan plan;
};

}  // namespace loopspec
