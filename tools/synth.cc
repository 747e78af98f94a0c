// loopspec synth: a checkpoint of a released model's size with random weights, for speed work.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "model/model.h"
#include "model/synth.h"
#include "tools/commands.h"

namespace loopspec::tools {
namespace {

void Run(const SynthRequest& request) {
  const SynthResult result = WriteSynthetic(request);
  // Read back as any other model would be: a twin that does not load is of no use.
  const Model model = Model::Load(request.output);
  fmt::print(
      "{}: a SYNTHETIC twin of {}, {:.2f} GB in {} file{}, {} tensors, {:.2f} billion parameters\n",
      request.output.string(), request.like, static_cast<double>(result.bytes) * 1e-9, result.files,
      result.files == 1 ? "" : "s", result.tensors,
      static_cast<double>(model.weights.parameters) * 1e-9);
  fmt::print("Its weights are random (seed {}): its speed means something, its text does not.\n",
             request.seed);
}

}  // namespace

void AddSynthCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "synth", "Write a synthetic checkpoint of a released model's size, for timing");
  auto request = std::make_shared<SynthRequest>();
  auto output = std::make_shared<std::string>();
  command
      ->add_option("--like", request->like,
                   fmt::format("Model to be like: {}", fmt::join(SynthNames(), ", ")))
      ->required();
  command
      ->add_option("--agreement", request->agreement,
                   "How often drafts should agree with the last depth, about")
      ->capture_default_str();
  command->add_option("--layers", request->layers,
                      "Blocks of the recurrence, instead of the model's own number");
  command->add_option("--seed", request->seed, "Seed of the weights")->capture_default_str();
  command->add_option("--output", *output, "Folder to write")->required();
  command->callback([request, output] {
    request->output = *output;
    Run(*request);
  });
}

}  // namespace loopspec::tools
