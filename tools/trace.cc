// loopspec trace: draws the timeline that generate --trace wrote.
#include <fmt/format.h>

#include <filesystem>

#include "base/error.h"
#include "base/json.h"
#include "report/trace_picture.h"
#include "tools/commands.h"
#include "tools/input_file.h"
#include "tools/output_file.h"
#include "tools/report.h"

namespace loopspec::tools {

void AddTraceCommand(Command app) {
  struct Options {
    std::string input, svg;
    int64_t begin = 0, steps = 0;  // 0: by the model's R
  };
  auto options = std::make_shared<Options>();
  const Command command = app.AddCommand("trace", "Draw a timeline written by generate --trace");
  command.AddOption("FILE", options->input, "The trace, a JSON file; - is standard input")
      .Required();
  command
      .AddOption("--svg,-o", options->svg,
                 "Picture to write; - is standard output; default: text, for the terminal")
      .Alias("--output");
  command.AddOption("--from", options->begin, "First recurrence to draw")
      .Range(0, int64_t{1} << 40)
      .ShowDefault();
  command
      .AddOption("--steps", options->steps,
                 "How many recurrences to draw; default: 8 R, those of eight tokens one by one")
      .Range(1, 100'000);
  command.SetAction([options] {
    if (!options->svg.empty()) CheckOutputFile(options->svg, "--svg");
    std::error_code ignored;
    if (options->input != "-" && std::filesystem::equivalent(options->input, options->svg, ignored))
      Fail("--svg {} is the trace itself, expected another file", options->svg);
    const std::string name = NameOfInput(options->input);
    const Json trace = ParseJson(ReadInput(options->input), name);
    const int64_t steps = options->steps > 0 ? options->steps : 8 * TraceRecurrence(trace, name);
    if (options->svg.empty()) {
      fmt::print("{}",
                 TraceText(trace, options->begin, options->begin + steps, name, ColourOnStdout()));
      return;
    }
    WriteTextFile(options->svg, DrawTrace(trace, options->begin, options->begin + steps, name));
    if (options->svg != "-") fmt::print("wrote {}\n", options->svg);
  });
}

}  // namespace loopspec::tools
