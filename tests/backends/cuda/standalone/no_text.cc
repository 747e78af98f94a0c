// Stands in for the text folder, whose packages a GPU host need not have: requests go in and come
// out as ids.
#include "base/error.h"
#include "text/incremental_decoder.h"

namespace loopspec {

StopMatcher::StopMatcher(const std::vector<std::string>&) {}

IncrementalDecoder::IncrementalDecoder(const Tokenizer& tokenizer, Options options)
    : tokenizer_(tokenizer), options_(std::move(options)), matcher_(options_.stop) {
  Fail("this build has no text: ask for ids");
}

std::string IncrementalDecoder::Push(int32_t) {
  return {};
}

std::string IncrementalDecoder::Finish() {
  return {};
}

}  // namespace loopspec
