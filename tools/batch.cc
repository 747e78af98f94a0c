// loopspec batch: answer a file of requests (see serve/server/batch.h).
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "decode/depths.h"
#include "loopspec/engine.h"
#include "serve/server/batch.h"
#include "tools/commands.h"
#include "tools/input_file.h"
#include "tools/interrupt.h"
#include "tools/options.h"
#include "tools/progress.h"

namespace loopspec::tools {
namespace {

struct BatchOptions {
  ModelOptions model;
  std::vector<std::string> depths;
  std::string input, output, order = "input";
  bool chat = false;
  int max_tokens = 0;  // of plain prompts; 0: as the server does
  SamplingOptions sampling;
  uint64_t seed = 0;
};

void RunBatch(const BatchOptions& options) {
  CatchInterrupt();
  const serve::BatchDefaults defaults = {options.sampling.Said(), options.seed};
  std::vector<serve::BatchLine> lines = serve::ReadBatch(
      ReadInput(options.input), NameOfInput(options.input), {options.chat, options.max_tokens});
  const size_t all = lines.size();
  std::vector<std::string> ids;
  for (const serve::BatchLine& line : lines) ids.push_back(line.id);
  serve::BatchOutput output(options.output);
  std::erase_if(lines,
                [&](const serve::BatchLine& line) { return output.answered().contains(line.id); });
  const size_t known = all - lines.size();
  const bool in_order = options.order == "input";
  if (lines.empty()) {
    if (in_order) output.Sort(ids);  // the run before may have ended just before that
    fmt::print(stderr, "all {} requests are answered already\n", all);
    return;
  }
  EngineOptions engine = options.model.ToEngineOptions();
  for (const std::string& depths : options.depths) engine.depths.push_back(ParseDepths(depths));
  engine.max_queued = 1 << 20;
  ProgressLine progress(0.5);
  const auto total = static_cast<int64_t>(lines.size());
  const auto [answered, errors] = serve::AnswerBatch(
      std::make_shared<Engine>(engine), lines, defaults, output, in_order,
      [&](const serve::BatchCounts& counts) {
        progress.Show("batch", static_cast<int64_t>(counts.done), total, "requests");
        return !Interrupted();
      });
  progress.Clear();
  if (in_order && answered == lines.size()) output.Sort(ids);
  fmt::print(stderr, "{} of {} requests answered{}{}\n", known + answered, all,
             known > 0 ? fmt::format(", {} of them before", known) : "",
             errors > 0 ? fmt::format(", {} with an error", errors) : "");
  if (Interrupted()) fmt::print(stderr, "the same command goes on from here\n");
}

}  // namespace

void AddBatchCommand(Command app) {
  auto options = std::make_shared<BatchOptions>();
  const Command command = app.AddCommand("batch", "Answer a file of requests");
  command
      .AddOption(
          "--input,-i", options->input,
          "Requests of OpenAI's batches, a JSON object per line, or prompts, one per line; - "
          "is standard input")
      .Required();
  command
      .AddOption(
          "--output,-o", options->output,
          "Answers, one per line, each written as soon as it is there; requests that it answers "
          "already are not asked again")
      .Required();
  command
      .AddOption(
          "--order", options->order,
          "input: put the file in the order of the requests when all are answered; free: leave "
          "them as they ended")
      .OneOf({"input", "free"})
      .ShowDefault();
  command.AddFlag("--chat", options->chat, "Put prompts into the model's chat template");
  command
      .AddOption("--max-tokens,-n", options->max_tokens,
                 "Maximum tokens to generate for a prompt; default: as the server has it")
      .Range(1, 1 << 30);
  command
      .AddOption("--seed", options->seed,
                 "Seed of the first line, the next number for each further one: same file and "
                 "seed, same bytes")
      .ShowDefault();
  options->model.AddTo(command);
  options->sampling.AddTo(command);
  command
      .AddOption("--depths", options->depths,
                 "Proposal depths, such as 1,2; given several times, requests may choose")
      .OneValueEach();
  command.SetFooter(
      "\nOptions of sampling, --seed and variables hold for what a line does not say itself. "
      "Without "
      "them a prompt is\nsampled as the model's generation_config.json asks, greedily where it "
      "does "
      "not; a request in OpenAI's form has\nOpenAI's temperature of 1 there, as over HTTP.\n"
      "\nExample:\n"
      "  loopspec batch -m models/ouro-demo --input requests.jsonl --output results.jsonl");
  command.SetAction([options] { RunBatch(*options); });
}

}  // namespace loopspec::tools
