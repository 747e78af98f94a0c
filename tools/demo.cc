// loopspec demo: a word problem and a story, autoregressive and LoopSpec side by side.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "engine/load/model_path.h"
#include "engine/session.h"
#include "loopspec/engine.h"
#include "tools/commands.h"
#include "tools/interrupt.h"
#include "tools/options.h"
#include "tools/report.h"

namespace loopspec::tools {
namespace {

constexpr const char* kProblem =
    "Tom has 3 boxes with 4 marbles in each. He buys 5 more. On the way home he finds 6 marbles. "
    "How many marbles does Tom have now?";
constexpr const char* kStory = "Tell me a story about a little dog.";
constexpr const char* kInterrupted = "the two decodings were not compared";

struct Row {
  std::string name;
  double rate, bytes_per_second, rows;
};

void Show(const std::string& title, const std::string& prompt, Engine& engine, double bandwidth) {
  const bool colour = ColourOnStdout();
  fmt::print("{}{}{}\n> {}\n", colour ? "\033[1m" : "", title, colour ? kPlain : "", prompt);
  Request request;
  request.messages = {{"user", prompt}};
  request.sampling = SamplingParams{};
  request.max_tokens = 200;
  std::vector<Row> rows;
  std::vector<std::vector<int32_t>> ids;
  for (const bool speculative : {false, true}) {
    request.decoding = speculative ? Decoding::kLoopSpec : Decoding::kAutoregressive;
    engine.Generate(request, [](const Token&) { return !Interrupted(); });  // once to warm up
    StopIfInterrupted(kInterrupted);
    const Result result = engine.Generate(request, [&](const Token& token) {
      if (speculative) return !Interrupted();
      if (colour)
        fmt::print("{}{}{}", SourceColour(token.source, token.early), token.text, kPlain);
      else
        fmt::print("{}", token.text);
      std::fflush(stdout);
      return !Interrupted();
    });
    if (speculative || Interrupted()) fmt::print("\n\n");
    StopIfInterrupted(kInterrupted);
    const Statistics& s = result.statistics();
    rows.push_back({speculative
                        ? fmt::format("LoopSpec ({})", fmt::join(engine.facts().depths[0], ","))
                        : "autoregressive",
                    s.tokens_per_second, s.bytes_read / s.busy_seconds(), s.rows_mean});
    std::vector<int32_t>& list = ids.emplace_back();
    for (const Token& token : result.choices[0].tokens) list.push_back(token.id);
  }
  fmt::print("  {:<18}{:>12}{:>12}{:>24}{:>8}\n", "", "tokens/s", "speedup",
             "read, of the bandwidth", "rows");
  for (const Row& row : rows) {
    fmt::print("  {:<18}{:>12.0f}{:>11.2f}x{:>24}{:>8.1f}\n", row.name, row.rate,
               row.rate / rows[0].rate,
               fmt::format("{:.1f} GB/s, {:.0f} %", row.bytes_per_second / 1e9,
                           100 * row.bytes_per_second / bandwidth),
               row.rows);
  }
  double share = 0;
  for (const Row& row : rows) share = std::max(share, row.bytes_per_second / bandwidth);
  if (const std::string why = ExplainFloor(share); !why.empty()) fmt::print("  ({})\n", why);
  fmt::print("  {} tokens, the same text from both: {}\n\n", ids[0].size(),
             ids[0] == ids[1] ? "yes" : "NO, and that is a bug");
}

void RunDemo(const ModelOptions& options) {
  CatchInterrupt();
  EngineOptions engine_options = options.ToEngineOptions();
  const auto loaded = std::make_shared<const LoadedModel>(engine_options);
  loaded->tokenizer();
  loaded->chat_template();
  engine_options.kv_positions = std::min(512, loaded->spec().max_positions);
  engine_options.max_running = 1;
  engine_options.cache_bytes = 0;  // both ways read the prompt
  engine_options.background = false;
  Engine engine(engine_options, loaded);
  const double bandwidth = engine.session().backend().ReadBandwidth();
  const ModelFacts& facts = engine.facts();
  fmt::print("{}: {} parameters, {} recurrences per token, on {} ({} reads {:.1f} GB/s)\n\n",
             options.model, HumanCount(static_cast<double>(facts.parameters)), facts.recurrence,
             facts.device, facts.device == "cpu" ? "this machine" : "it", bandwidth / 1e9);
  StopIfInterrupted(kInterrupted);
  Show("A word problem", kProblem, engine, bandwidth);
  Show("A story", kStory, engine, bandwidth);
  if (ColourOnStdout()) {
    fmt::print(
        "Colours: {}first draft{}, {}second draft{}, {}begun before it was drafted{}, {}computed "
        "in "
        "full: no draft was right{}\n",
        SourceColour(1), kPlain, SourceColour(2), kPlain, SourceColour(1, true), kPlain,
        SourceColour(0), kPlain);
  }
}

}  // namespace

void AddDemoCommand(Command app) {
  auto options = std::make_shared<ModelOptions>();
  const Command command =
      app.AddCommand("demo", "Solve a word problem and tell a story, both decodings side by side");
  options->AddTo(command, true, kDemoModel);
  command.SetAction([options] { RunDemo(*options); });
}

}  // namespace loopspec::tools
