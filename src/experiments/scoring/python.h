// The Python interpreter that runs programs and tests.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace loopspec::measure {

struct Python {
  std::filesystem::path program;
  std::vector<std::filesystem::path> folders;  // where it is installed, and its environment if any
  std::vector<std::string> packages;           // folders of installed packages
};

// A Python 3 interpreter: $LOOPSPEC_PYTHON, else the first python3 in the PATH that is a program
// and not a shell script; for root, one that other users can reach. Throws Error when there is
// none.
std::filesystem::path FindPython();

// Asks the interpreter where its parts lie. Throws Error.
Python DescribePython(const std::filesystem::path& program);

// The environment that programs and tests run in.
std::vector<std::string> PythonEnvironment(const std::string& folder);

// The scripts of both sides, each as one text: see python/program.py and python/tests.py.
std::string ProgramScript();
std::string TestsScript();

}  // namespace loopspec::measure
