// Where a model lies: a folder, a name that a package has installed (ouro-demo), or ORG/NAME or
// ORG/NAME@REVISION in the Hugging Face cache.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace loopspec {

// The model that is there without a download once the package loopspec-demo is installed.
inline constexpr const char* kDemoModel = "ouro-demo";

// The folder of a model that is installed under a name without a slash: beside the program
// (../share/loopspec/models), beside the Python module (loopspec_demo), or in loopspec/models of
// the user's and the system's data folders (XDG_DATA_HOME, XDG_DATA_DIRS). Empty: there is none.
std::filesystem::path FindInstalledModel(const std::string& name);

// The names of all that are installed so, sorted.
std::vector<std::string> InstalledModels();

// The folder, or the GGUF file, for --model. Throws Error with the download command when a name is
// not in the cache.
std::filesystem::path ResolveModel(const std::string& model);

// Asked about a name that is not in the cache; true: it is there now. A program sets it at most
// once, before it has threads; the commands offer a download by it.
using ModelFetcher = std::function<bool(const std::string& name)>;
void SetModelFetcher(ModelFetcher fetcher);

// How a model is downloaded here, for messages: "loopspec pull ORG/NAME" unless a program sets
// another, at most once and before it has threads.
using PullCommand = std::function<std::string(const std::string& name)>;
void SetPullCommand(PullCommand command);

// Where the files beside the weights lie: the model's folder, or that of its GGUF file.
std::filesystem::path TextFolder(const std::filesystem::path& model);

}  // namespace loopspec
