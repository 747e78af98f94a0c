#include "tools/calibrate_keys.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "calibrate/key_judge.h"
#include "calibrate/key_report.h"
#include "decode/depths.h"
#include "engine/load/model_path.h"
#include "engine/load/model_text.h"
#include "quantize/calibration_texts.h"
#include "tools/input_file.h"
#include "tools/interrupt.h"
#include "tools/progress.h"
#include "tools/prompts.h"
#include "tools/provenance.h"
#include "tools/report.h"

namespace loopspec::tools {
namespace {

constexpr const char* kKeysInterrupted = "nothing was measured to the end";
// Spans of a text, so that most positions have some that are read by the plan.
constexpr int64_t kSpansOfText = 16;

int64_t TextTokens(const ModelSpec& spec, int span) {
  return std::min<int64_t>(spec.max_positions, kSpansOfText * span);
}

// Passages one after the other, as texts of TextTokens() tokens each and `positions` together.
TokenTexts JoinTexts(const Tokenizer& tokenizer, const std::vector<std::string>& passages,
                     const std::string& name, int64_t length, int span, int64_t positions) {
  if (positions <= 2 * span) {
    Fail("--positions is {}, expected more than {}, which spans of {} positions need", positions,
         2 * span, span);
  }
  TokenTexts texts;
  std::vector<int32_t> text;
  int64_t left = positions;
  const auto end_text = [&] {
    if (std::ssize(text) > left) text.resize(static_cast<size_t>(left));
    // A shorter one has no query that reads by the plan.
    if (std::ssize(text) > 2 * span) {
      left -= std::ssize(text);
      texts.push_back(text);
    }
    text.clear();
  };
  for (const std::string& passage : passages) {
    if (left <= 2 * span) break;
    for (const int32_t token : tokenizer.Encode(passage + "\n\n")) {
      text.push_back(token);
      if (std::ssize(text) == length) end_text();
    }
  }
  end_text();
  if (texts.empty())
    Fail("{} holds no text of more than {} tokens, which spans of {} positions need", name,
         2 * span, span);
  return texts;
}

void CheckOptions(const ModelOptions& options) {
  if (options.device != "cpu" && options.device != "auto")
    Fail("calibrate --keys measures on the CPU, --device is {}", options.device);
  if (options.compute != "auto" && options.compute != "f32")
    Fail("calibrate --keys measures in float32, --compute is {}", options.compute);
  if (options.kv_type != "auto")
    Fail("calibrate --keys chooses the forms of keys itself, --kv-type is {}", options.kv_type);
}

}  // namespace

void CalibrateKeys(const ModelOptions& model_options, const CalibrateKeysOptions& options) {
  CheckOptions(model_options);
  const Model model = model_options.Load();
  const ModelSpec& spec = model.spec;
  if (spec.recurrence < 2)
    Fail("{} has R = 1: there are no loops whose keys could be compared", model_options.model);
  std::vector<KeyPlan> named;  // a mistake is told before the work
  for (const std::string& plan : options.plans)
    named.push_back(KeyPlan::Parse(plan, spec.recurrence));

  const Tokenizer tokenizer = ReadTokenizer(ResolveModel(model_options.model));
  const int64_t length = TextTokens(spec, options.span);
  const auto texts_of = [&](const std::string& file, const auto& built_in) {
    const bool ours = file == "built-in";
    return JoinTexts(tokenizer, ours ? built_in() : ReadTexts(file),
                     ours ? "the built-in set" : file, length, options.span, options.positions);
  };
  const TokenTexts fitted = texts_of(options.fit, CalibrationPassages);
  const TokenTexts judged = texts_of(options.judge, JudgingPassages);

  BackendOptions backend;
  backend.readout_depths = ReadoutDepths(model_options.ChooseDepths(model).depths, spec.recurrence);
  backend.threads = model_options.threads;
  backend.state_seed = model_options.state_seed;
  KeyReader reader(model, backend, length);
  const auto readouts = static_cast<int>(backend.readout_depths.size());

  ProgressLine progress(kQuietSeconds, ProgressLine::Otherwise::kPlainLines);
  KeyResiduals residuals(spec);
  int64_t total = 0;
  for (const auto& text : fitted) total += std::ssize(text);
  for (const auto& text : fitted) {
    reader.ReadExactly(text, [](int32_t, int32_t, std::span<const float>) {});
    residuals.Add(reader.backend(), reader.pages(), std::ssize(text));
    StopIfInterrupted(kKeysInterrupted);
    progress.Show("reading keys", residuals.positions(), total, "positions");
  }
  std::vector<KeyPlan> plans = PlansFor(residuals, spec, readouts);
  for (const KeyPlan& plan : named) {
    if (std::find(plans.begin(), plans.end(), plan) == plans.end()) plans.push_back(plan);
  }
  KeyJudgement judgement =
      JudgePlans(reader, judged, plans, options.span, [&](int64_t done, int64_t of) {
        StopIfInterrupted(kKeysInterrupted);
        progress.Show("judging plans", done, of, "positions");
      });
  progress.Clear();
  const auto name = [](const std::string& file, const char* built_in) {
    return file == "built-in" ? built_in : NameOfInput(file);
  };
  const KeyReport report = {.model = model_options.model,
                            .chip = reader.backend().chip(),
                            .date = Today(),
                            .version = VersionText(),
                            .command = CommandLine(),
                            .fitted = name(options.fit, "stories, problems, prose and dialogue"),
                            .judged = name(options.judge, "letters, notices, recipes and verse"),
                            .spec = spec,
                            .readouts = readouts,
                            .span = options.span,
                            .text_tokens = static_cast<int>(length),
                            .residuals = std::move(residuals),
                            .judgement = std::move(judgement)};
  if (options.json) {
    fmt::print("{}\n", KeyJson(report).dump(2));
    return;
  }
  // Nothing is stored: a plan changes the text, so that whoever decodes names it.
  fmt::print("{}", KeyTables(report));
}

}  // namespace loopspec::tools
