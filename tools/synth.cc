// loopspec synth: a checkpoint of a released model's size with random weights, for speed work.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "calibrate/agreement.h"
#include "engine/load/device.h"
#include "model/model.h"
#include "tools/commands.h"
#include "tools/interrupt.h"
#include "tools/options.h"
#include "tools/progress.h"

namespace loopspec::tools {
namespace {

struct SynthCommandOptions {
  SynthRequest request;
  std::string output, device = "auto";
  int positions = 256;
  bool no_measure = false;
};

void Measure(const SynthCommandOptions& options, const SynthResult& written) {
  ProgressLine progress(0.5, ProgressLine::Otherwise::kPlainLines);
  std::string device;
  const TwinReport report = CalibrateTwin(
      options.request, written,
      [&](const Model& model, const BackendOptions& backend_options) {
        auto backend = MakeBackend(model, backend_options, options.device);
        device = backend->device();
        return backend;
      },
      options.positions,
      [&](int round, int done, int total) {
        StopIfInterrupted(fmt::format("{} is whole, its agreement was not measured",
                                      options.request.output.string()));
        progress.Show(fmt::format("measuring, round {}", round), done, total, "positions");
      });
  progress.Clear();
  const SynthAgreement& agreement = report.agreement;
  for (size_t i = 0; i < agreement.depths.size(); ++i) {
    fmt::print("depth {} agrees with the last at {:.1f} % of {} positions ({})\n",
               agreement.depths[i], 100 * agreement.shares[i], agreement.positions,
               i == 0 ? fmt::format("asked: {:.1f} %", 100 * options.request.agreement)
                      : std::string("follows from the first"));
  }
  fmt::print("measured on {} with random tokens, {} time{}{}\n", device, report.rounds,
             report.rounds == 1 ? "" : "s",
             report.reached ? "" : "; what was asked could not be reached, take it as it is");
}

void RunSynth(const SynthCommandOptions& options) {
  CatchInterrupt();
  SynthRequest request = options.request;
  SynthResult result;
  {
    ProgressLine progress(0.5, ProgressLine::Otherwise::kPlainLines);
    request.progress = [&](uint64_t done, uint64_t total) {
      StopIfInterrupted("nothing was kept in " + request.output.string());
      progress.Show("writing", static_cast<int64_t>(done >> 20), static_cast<int64_t>(total >> 20),
                    "MB");
    };
    result = WriteSynthetic(request);
  }
  {
    // Read back as any other model would be: a twin that does not load is of no use.
    const Model model = Model::Load(request.output);
    fmt::print(
        "{}: a SYNTHETIC twin of {}, {:.2f} GB in {} file{}, {} tensors, {:.2f} billion "
        "parameters\n",
        request.output.string(), request.like, static_cast<double>(result.bytes) * 1e-9,
        result.files, result.files == 1 ? "" : "s", result.tensors,
        static_cast<double>(model.weights.parameters) * 1e-9);
  }
  fmt::print("Its weights are random (seed {}): its speed means something, its text does not.\n",
             request.seed);
  if (options.no_measure) {
    fmt::print("agreement asked: {:.1f} %, not measured\n", 100 * request.agreement);
    return;
  }
  Measure(options, result);
}

}  // namespace

void AddSynthCommand(Command app) {
  const Command command = app.AddCommand(
      "synth", "Write a synthetic checkpoint of a released model's size, for timing");
  auto options = std::make_shared<SynthCommandOptions>();
  SynthRequest& request = options->request;
  command
      .AddOption("--like", request.like,
                 fmt::format("Model to be like: {}", fmt::join(SynthNames(), ", ")))
      .Required();
  command
      .AddOption("--agreement", request.agreement,
                 "How often the first drafts should agree with the last depth, about")
      .ShowDefault();
  command
      .AddOption("--layers", request.layers,
                 "Blocks of the recurrence, instead of the model's own number")
      .Range(1, 4096);
  command
      .AddOption("--width", request.width,
                 "Width of the states instead of the model's own, heads and feed-forward in "
                 "proportion: for trials on a small scale")
      .Range(1, 1 << 20);
  command.AddOption("--vocab", request.vocab, "Tokens, instead of the model's own number")
      .Range(16, 1 << 24);
  command.AddOption("--seed", request.seed, "Seed of the weights").ShowDefault();
  command.AddOption("--output,-o", options->output, "New or empty folder to write").Required();
  command
      .AddOption("--device", options->device,
                 "Where to measure the agreement: auto, cpu, cuda or cuda:N")
      .ShowDefault();
  command
      .AddOption("--positions", options->positions,
                 "Positions to measure over; the weights are scaled and measured again until the "
                 "agreement is near")
      .Range(16, 4096)
      .ShowDefault();
  command.AddFlag("--no-measure", options->no_measure,
                  "Write only: the scale is a guess and the agreement unknown");
  command.SetFooter(
      "\nExample:\n  loopspec synth --like ouro-1.4b --agreement 0.9 --output twins/ouro-1.4b");
  command.SetAction([options] {
    options->request.output = options->output;
    RunSynth(*options);
  });
}

}  // namespace loopspec::tools
