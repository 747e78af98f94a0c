#include "experiments/scoring/python.h"

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>

#include "base/error.h"
#include "base/json.h"
#include "experiments/scoring/child_process.h"
#include "experiments/scoring/descriptor.h"
#include "experiments/scoring/python_sources.h"
#include "experiments/scoring/strings.h"

namespace loopspec::measure {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWhere =
    "import json, site, sys\n"
    "print(json.dumps([[sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix],\n"
    "                  site.getsitepackages()]))\n";

bool IsProgram(const fs::path& path) {
  if (access(path.c_str(), X_OK) != 0 || !fs::is_regular_file(path)) return false;
  std::ifstream file(path, std::ios::binary);
  std::array<char, 2> start{};
  return file.read(start.data(), 2) && !(start[0] == '#' && start[1] == '!');
}

// Under root the sandbox runs as nobody, who must be able to reach the interpreter: one in root's
// home is none.
bool IsReachable(const fs::path& path) {
  if (geteuid() != 0) return true;
  std::error_code error;
  for (const fs::path& way : {path, fs::canonical(path, error)}) {
    fs::path part;
    for (const fs::path& name : way) {
      part /= name;
      const fs::perms perms = fs::status(part, error).permissions();
      if (error || (perms & fs::perms::others_exec) == fs::perms::none) return false;
    }
  }
  return true;
}

}  // namespace

fs::path FindPython() {
  if (const char* given = std::getenv("LOOPSPEC_PYTHON"); given != nullptr && *given != '\0') {
    if (!IsProgram(given)) Fail("LOOPSPEC_PYTHON={}: not a program", given);
    return given;
  }
  const char* path = std::getenv("PATH");
  const std::string folders = std::string(path == nullptr ? "" : path) + ":/usr/bin:/bin";
  for (const std::string_view folder : Split(folders, ":")) {
    if (folder.empty() || folder[0] != '/') continue;
    const fs::path candidate = fs::path(folder) / "python3";
    if (IsProgram(candidate) && IsReachable(candidate)) return candidate;
  }
  Fail("python3 is not in the PATH; programs that a model wrote cannot be tested without it");
}

Python DescribePython(const fs::path& program) {
  Pipe pipe = MakePipe();
  ChildPlan plan;
  plan.arguments = {program.string(), "-s", "-B", "-c", kWhere};
  plan.environment = PythonEnvironment("/");
  plan.output = pipe.write.get();
  const auto deadline = ChildProcess::Clock::now() + std::chrono::seconds(60);
  ChildProcess child(std::move(plan));
  pipe.write.Close();
  const PipeText answer = ReadPipe(pipe.read.get(), 1 << 16, deadline);
  if (child.Finish(deadline).status != 0) {
    Fail("{}: does not run as Python 3 ({})", program.string(), Strip(answer.text));
  }
  const Json json = ParseJson(answer.text, program.string());
  Python python{program, {}, {}};
  for (const Json& folder : json.at(0)) python.folders.push_back(folder.get<std::string>());
  for (const Json& folder : json.at(1)) python.packages.push_back(folder.get<std::string>());
  return python;
}

std::vector<std::string> PythonEnvironment(const std::string& folder) {
  // One order of sets and one thread in every run, so that results repeat.
  return {"PATH=/usr/bin:/bin", "HOME=" + folder,         "TMPDIR=" + folder, "LANG=C.UTF-8",
          "PYTHONHASHSEED=0",   "OPENBLAS_NUM_THREADS=1", "OMP_NUM_THREADS=1"};
}

std::string ProgramScript() {
  return PythonSource("wire.py") + PythonSource("program.py");
}
std::string TestsScript() {
  return PythonSource("wire.py") + PythonSource("tests.py");
}

}  // namespace loopspec::measure
