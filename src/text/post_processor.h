// The "post_processor" of a tokenizer.json: special tokens around the encoded text.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"

namespace loopspec {

class PostProcessor {
 public:
  PostProcessor() = default;
  // Null, a post-processor or a Sequence of them; throws Error naming an unsupported type.
  static PostProcessor FromJson(const Json& json, std::string_view what);
  // One token before the text, nothing else.
  static PostProcessor BeginWith(int32_t id);

  std::vector<int32_t> Apply(std::vector<int32_t> ids, bool add_special_tokens) const;

 private:
  // A part of a template: the text's tokens, or special tokens.
  struct Part {
    bool text = false;
    std::vector<int32_t> special;
  };
  using Template = std::vector<Part>;
  void Add(const Json& json, std::string_view what);
  static Template ReadTemplate(const Json& json, std::string_view what);

  std::vector<Template> templates_;
};

}  // namespace loopspec
