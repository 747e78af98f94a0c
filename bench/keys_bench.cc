// What types of keys cost, for scripts/keys-bench.py, which runs one of these for each type and
// lets them work in turn:
//   keys_bench FOLDER KV_TYPE DEPTHS POSITIONS
// reads lines from standard input and answers each with one line of JSON:
//   prompt N S        reads a prompt of N made tokens with seed S: its seconds
//   ar N              decodes N tokens after that prompt, which the cache still has
//   loopspec N        the same with drafts at DEPTHS, accepted as often as the paper's are
//   memory            of the process, in bytes, and of a token and a window of keys
#include <fmt/format.h>

#include <fstream>
#include <iostream>
#include <sstream>

#include "base/error.h"
#include "base/json.h"
#include "decode/assumed.h"
#include "engine/load/device.h"
#include "engine/load/loaded_model.h"
#include "engine/load/step_cost.h"
#include "tests/support/run_request.h"

namespace loopspec {
namespace {

// As a line of /proc/self/status has it, in kB.
int64_t StatusBytes(const std::string& name) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name + ":")) return std::stoll(line.substr(name.size() + 1)) * 1024;
  }
  return 0;
}

// Ids that mean nothing, others for each seed.
std::vector<int32_t> MadeTokens(const ModelSpec& spec, int count, uint32_t seed) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    tokens.push_back(static_cast<int32_t>((seed >> 8) % static_cast<uint32_t>(spec.vocab)));
  }
  return tokens;
}

class KeysBench {
 public:
  KeysBench(const EngineOptions& options, std::vector<int> depths)
      : model_(LoadModel(options)),
        depths_(std::move(depths)),
        backend_(MakeBackend(model_, options, depths_)),
        scheduler_(*backend_, Settings(*backend_)),
        // The paper's: (1,2) of Ouro, (2,8) of Raven.
        assumed_(model_.spec.recurrence <= 8
                     ? AssumedAcceptance{.rates = {0.90, 0.075}, .gate = 0.10}
                     : AssumedAcceptance{.rates = {0.92, 0.075}, .gate = 0.20}),
        guesses_(assumed_, model_.spec.vocab) {}

  OrderedJson Prompt(int tokens, uint32_t seed) {
    prompt_ = MadeTokens(model_.spec, tokens, seed);
    return Told(Run({}, 0));
  }
  OrderedJson Decode(bool drafts, int tokens) {
    return Told(Run(drafts ? depths_ : std::vector<int>{}, tokens));
  }
  OrderedJson Memory() const {
    const int64_t page = backend_->page_bytes();
    return {{"kv_type", NameOfKvType(backend_->options())},
            {"chip", backend_->chip()},
            {"weights", backend_->weight_bytes()},
            {"token", static_cast<double>(page) / kPageSize},
            {"window", page * backend_->window_pages()},
            {"resident", StatusBytes("VmRSS")},
            {"most_resident", StatusBytes("VmHWM")}};
  }

 private:
  static SchedulerOptions Settings(Backend& backend) {
    SchedulerOptions options = OneAtATime(LoadStepCost(backend));
    options.cache_bytes = -1;
    return options;
  }

  Statistics Run(std::vector<int> depths, int tokens) {
    ResolvedRequest request;
    request.prompt = prompt_;
    request.max_tokens = tokens;
    request.group = 0;
    request.depths = std::move(depths);
    if (!request.depths.empty()) {
      request.guesses = true;
      request.laboratory.guess_source = &guesses_;
      request.laboratory.assumed = assumed_;
    }
    return RunRequest(scheduler_, request).statistics;
  }

  static OrderedJson Told(const Statistics& s) {
    return {{"prefill_seconds", s.prefill_seconds},
            {"cached_tokens", s.cached_tokens},
            {"decode_seconds", s.decode_seconds},
            {"tokens_per_second", s.tokens_per_second},
            {"rows", s.rows_mean}};
  }

  Model model_;
  std::vector<int> depths_;
  std::unique_ptr<Backend> backend_;
  Scheduler scheduler_;
  AssumedAcceptance assumed_;
  AssumedGuesses guesses_;
  std::vector<int32_t> prompt_;
};

int Main(int argc, char** argv) {
  if (argc != 5) Fail("keys_bench FOLDER KV_TYPE DEPTHS POSITIONS < COMMANDS");
  EngineOptions options;
  options.model = argv[1];
  options.kv_type = argv[2];
  options.device = "cpu";
  options.kv_positions = std::stoll(argv[4]);
  options.config = {fmt::format("max_position_embeddings={}", options.kv_positions)};
  KeysBench bench(options, ParseDepths(argv[3]));
  // What was measured of the machine took memory too: from here on the most counts anew.
  std::ofstream("/proc/self/clear_refs") << "5";
  std::cout << bench.Memory() << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string verb;
    int count = 0;
    uint32_t seed = 0;
    words >> verb >> count >> seed;
    if (verb == "prompt")
      std::cout << bench.Prompt(count, seed) << std::endl;
    else if (verb == "ar" || verb == "loopspec")
      std::cout << bench.Decode(verb == "loopspec", count) << std::endl;
    else if (verb == "memory")
      std::cout << bench.Memory() << std::endl;
    else
      Fail("{}: expected prompt, ar, loopspec or memory", line);
  }
  return 0;
}

}  // namespace
}  // namespace loopspec

int main(int argc, char** argv) {
  try {
    return loopspec::Main(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "keys_bench: " << error.what() << "\n";
    return 2;
  }
}
