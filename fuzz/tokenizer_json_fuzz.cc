// Any bytes as a tokenizer.json: an Error or a tokenizer, which then has to encode and decode.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    const loopspec::Tokenizer tokenizer = loopspec::Tokenizer::FromJson(bytes, "fuzz");
    // The end of the file is text as good as any.
    for (const std::string_view text :
         {bytes.substr(size - size / 4), std::string_view("the  \u00e9\n12 ab\xFF<s>")}) {
      for (const bool special : {false, true}) {
        const std::vector<int32_t> ids = tokenizer.Encode(text, special);
        for (const int32_t id : ids) {
          if (id < 0) std::abort();
        }
        tokenizer.Decode(ids, special);
      }
    }
  } catch (const loopspec::Error&) {
  }
  return 0;
}
