// A file of requests in, a file of answers out, in the form of OpenAI's batches.
//
// Every line goes through the server's own handler, without a socket, so that a body means the same
// in a batch and over HTTP.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "loopspec/engine.h"

namespace loopspec::serve {

// One line of the input: a request, or what is wrong with it.
struct BatchLine {
  int number = 0;
  std::string id;  // custom_id
  std::string url, body;
  std::string error;
};

// What lines that are prompts and no requests become.
struct PlainPrompts {
  bool chat = false;
  int max_tokens = 0;  // 0: as the server does
};

// Throws Error, naming the input, when two lines have one id or there are none.
std::vector<BatchLine> ReadBatch(std::string_view text, const std::string& name,
                                 const PlainPrompts& plain);

// Ids that have an answer in the file already. A line that an earlier run could not finish is taken
// away. Throws Error when the file holds anything else.
std::set<std::string> AnsweredIds(const std::string& path);

struct BatchCounts {
  size_t done = 0;
  size_t errors = 0;  // of these, without an answer but with an error
};

// Answers the lines and appends to `output` ("-": standard output), as the lines come or, if
// `in_order` is not set, as they end. `go_on` is asked all the while; when it says no, what is
// under way is given up. Throws Error when the output cannot be written.
BatchCounts AnswerBatch(std::shared_ptr<Engine> engine, const std::vector<BatchLine>& lines,
                        const std::string& output, bool in_order,
                        const std::function<bool(const BatchCounts& counts)>& go_on);

}  // namespace loopspec::serve
