// loopspec trace: draws the timeline that generate --trace wrote.
#include <fmt/format.h>

#include "base/json.h"
#include "tools/commands.h"
#include "tools/output_file.h"
#include "tools/trace_file.h"

namespace loopspec::tools {

void AddTraceCommand(Command app) {
  struct Options {
    std::string input, svg;
    int64_t begin = 0, steps = 32;
  };
  auto options = std::make_shared<Options>();
  const Command command = app.AddCommand("trace", "Draw a timeline written by generate --trace");
  command.AddOption("FILE", options->input, "The trace, a JSON file").Required();
  command.AddOption("--svg", options->svg, "Picture to write").Required();
  command.AddOption("--from", options->begin, "First recurrence to draw")
      .Range(0, int64_t{1} << 40)
      .ShowDefault();
  command.AddOption("--steps", options->steps, "How many recurrences to draw")
      .Range(1, 2000)
      .ShowDefault();
  command.SetAction([options] {
    CheckOutputFile(options->svg, "--svg");
    const Json trace = ReadJsonFile(options->input);
    WriteTextFile(options->svg, DrawTrace(trace, options->begin, options->begin + options->steps,
                                          options->input));
    fmt::print("wrote {}\n", options->svg);
  });
}

}  // namespace loopspec::tools
