// loopspec demo: a word problem and a story, autoregressive and LoopSpec side by side.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "decode/depths.h"
#include "engine/generate.h"
#include "engine/model_path.h"
#include "text/incremental_decoder.h"
#include "tools/commands.h"
#include "tools/options.h"
#include "tools/report.h"

namespace loopspec::tools {
namespace {

constexpr const char* kProblem =
    "Tom has 3 boxes with 4 marbles in each. He buys 5 more. On the way home he finds 6 marbles. "
    "How many marbles does Tom have now?";
constexpr const char* kStory = "Tell me a story about a little dog.";

struct Row {
  std::string name;
  double rate, bytes_per_second, rows;
};

void Show(const std::string& title, const std::string& prompt, const Model& model, Backend& backend,
          const TextParts& text, const std::filesystem::path& folder, double bandwidth) {
  const bool colour = ColourOnStdout();
  fmt::print("{}{}{}\n> {}\n", colour ? "\033[1m" : "", title, colour ? kPlain : "", prompt);
  DecodeRequest request;
  const OrderedJson messages = OrderedJson::array({{{"role", "user"}, {"content", prompt}}});
  request.prompt = text.RequireTokenizer(folder).Encode(
      text.RequireTemplate(folder).Render(messages, {}), false);
  request.max_tokens = 200;
  request.group = 0;
  request.stop_tokens = text.special.eos;
  Generator generator(backend, LoadStepCost(backend));
  std::vector<Row> rows;
  std::vector<std::vector<int32_t>> ids;
  for (const bool speculative : {false, true}) {
    const std::vector<int>& readouts = backend.options().readout_depths;  // the last is R
    request.depths.assign(readouts.begin(), speculative ? readouts.end() - 1 : readouts.begin());
    request.early = speculative ? EarlyChildren::kLookup : EarlyChildren::kOff;
    generator.Run(request);  // once to warm up
    IncrementalDecoder decoder(*text.tokenizer, {});
    const GenerateResult result = generator.Run(request, [&](const CommittedToken& token) {
      if (speculative) {
        const std::string piece = decoder.Push(token.token);
        if (colour)
          fmt::print("{}{}{}", SourceColour(token.source, token.early), piece, kPlain);
        else
          fmt::print("{}", piece);
        std::fflush(stdout);
      }
      return true;
    });
    if (speculative) fmt::print("{}\n\n", decoder.Finish());
    const double busy =
        result.times.prelude + result.times.recur + result.times.readout + result.times.host;
    rows.push_back({speculative ? fmt::format("LoopSpec ({})", fmt::join(request.depths, ","))
                                : "autoregressive",
                    result.tokens_per_second(),
                    BytesRead(model, backend.options(), result.statistics) / busy,
                    result.statistics.rows_mean()});
    std::vector<int32_t>& list = ids.emplace_back();
    for (const CommittedToken& token : result.tokens) list.push_back(token.token);
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

void Run(const ModelOptions& options) {
  const std::filesystem::path folder = ResolveModel(options.model);
  const Model model = options.Load();
  const TextParts text = TextParts::Load(options, model);
  text.RequireTokenizer(folder);
  text.RequireTemplate(folder);
  const auto backend = options.MakeBackend(model, options.ChooseDepths(model).depths, 512);
  const double bandwidth = backend->ReadBandwidth();
  fmt::print("{}: {} parameters, {} recurrences per token, on {} ({} reads {:.1f} GB/s)\n\n",
             options.model, HumanCount(static_cast<double>(model.weights.parameters)),
             model.spec.recurrence, backend->device(),
             backend->device() == "cpu" ? "this machine" : "it", bandwidth / 1e9);
  Show("A word problem", kProblem, model, *backend, text, folder, bandwidth);
  Show("A story", kStory, model, *backend, text, folder, bandwidth);
  if (ColourOnStdout()) {
    fmt::print(
        "Colours: {}first proposal{}, {}second proposal{}, {}restart at full depth{}; underlined: "
        "begun before it was drafted\n",
        SourceColour(1), kPlain, SourceColour(2), kPlain, SourceColour(0), kPlain);
  }
}

}  // namespace

void AddDemoCommand(Command app) {
  auto options = std::make_shared<ModelOptions>();
  const Command command =
      app.AddCommand("demo", "Solve a word problem and tell a story, both decodings side by side");
  options->AddTo(command);
  command.SetAction([options] { Run(*options); });
}

}  // namespace loopspec::tools
