// Prompts for runs over many tokens: for demo models their own with variations, for any other
// checkpoint random tokens.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/models.h"

namespace loopspec {

class PromptMaker {
 public:
  // `folder`: of the checkpoint; its name tells a demo model.
  PromptMaker(const std::filesystem::path& folder, const ModelSpec& spec) : spec_(spec) {
    const std::string name = std::filesystem::weakly_canonical(folder).filename().string();
    if (name == "ouro-demo" || name == "raven-demo") demo_ = DemoPrompts(name);
  }

  // Prompt number 0, 1, 2, ...: no two alike.
  std::vector<int32_t> operator()(int number) const {
    const auto seed = static_cast<uint32_t>(number);
    if (demo_.empty()) {
      constexpr size_t kLengths[] = {17, 64, 1, 130, 300, 5};
      return RandomTokens(spec_, kLengths[seed % std::size(kLengths)], seed + 1);
    }
    std::vector<int32_t> prompt = demo_[seed % demo_.size()];
    const size_t variant = seed / demo_.size();
    if (variant == 0) return prompt;
    // Another last token, sooner or later in the text: it goes on differently from there.
    prompt.resize(std::max<size_t>(1, prompt.size() - std::min(prompt.size(), variant % 8)));
    prompt.push_back(RandomTokens(spec_, 1, seed)[0]);
    return prompt;
  }

 private:
  ModelSpec spec_;
  std::vector<std::vector<int32_t>> demo_;
};

}  // namespace loopspec
