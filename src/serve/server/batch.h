// A file of requests in, a file of answers out, in the form of OpenAI's batches.
//
// Every line goes through the server's own handler, without a socket, so that a body means the same
// in a batch and over HTTP.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fields/sampling_fields.h"
#include "loopspec/engine.h"
#include "serve/server/batch_output.h"

namespace loopspec::serve {

// One line of the input: a request, or what is wrong with it.
struct BatchLine {
  int number = 0;
  std::string id;  // custom_id
  std::string url, body;
  bool plain = false;  // a prompt and no request
  std::string error;
};

// What lines that are prompts and no requests become.
struct PlainPrompts {
  bool chat = false;
  int max_tokens = 0;  // 0: as the server does
};

// What holds for a line that does not say so itself. The rest of sampling is the model's own for a
// prompt, and OpenAI's for a request, which means the same as over HTTP.
struct BatchDefaults {
  SaidSampling sampling;
  uint64_t seed = 0;  // of the first line; each further line has the next one
};

// Throws Error, naming the input, when two lines have one id or there are none.
std::vector<BatchLine> ReadBatch(std::string_view text, const std::string& name,
                                 const PlainPrompts& plain);

struct BatchCounts {
  size_t done = 0;
  size_t errors = 0;  // of these, without an answer but with an error
};

// Answers the lines; what is answered depends on the line and the defaults alone, to the byte. A
// file has every answer as soon as it ends; a stream has them in the order of
// the lines, if `in_order` is set, or as they end. `go_on` is asked all the while; when it says no,
// what is under way is given up. Throws Error when the output cannot be written.
BatchCounts AnswerBatch(std::shared_ptr<Engine> engine, const std::vector<BatchLine>& lines,
                        const BatchDefaults& defaults, BatchOutput& output, bool in_order,
                        const std::function<bool(const BatchCounts& counts)>& go_on);

}  // namespace loopspec::serve
