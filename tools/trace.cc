// loopspec trace: draws the timeline that generate --trace wrote.
#include <fmt/format.h>

#include "base/json.h"
#include "tools/commands.h"
#include "tools/output_file.h"
#include "tools/trace_file.h"

namespace loopspec::tools {

void AddTraceCommand(CLI::App& app) {
  struct Options {
    std::string input, svg;
    int64_t begin = 0, steps = 32;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("trace", "Draw a timeline written by generate --trace");
  command->add_option("FILE", options->input, "The trace, a JSON file")->required();
  command->add_option("--svg", options->svg, "Picture to write")->required();
  command->add_option("--from", options->begin, "First recurrence to draw")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40).description(""))
      ->capture_default_str();
  command->add_option("--steps", options->steps, "How many recurrences to draw")
      ->check(CLI::Range(1, 2000))
      ->capture_default_str();
  command->callback([options] {
    CheckOutputFile(options->svg, "--svg");
    const Json trace = ReadJsonFile(options->input);
    WriteTextFile(options->svg, DrawTrace(trace, options->begin, options->begin + options->steps,
                                          options->input));
    fmt::print("wrote {}\n", options->svg);
  });
}

}  // namespace loopspec::tools
