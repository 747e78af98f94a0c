// Any bytes as the body of a request: an ApiException that can be sent, or a request within its
// limits. And any bytes as what a model says, in any pieces: always valid JSON, and the same text.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "serve/messages/answer.h"
#include "serve/messages/parse.h"
#include "serve/openai/error.h"
#include "serve/openai/parse.h"
#include "serve/openai/text.h"
#include "serve/openai/write.h"
#include "serve/responses/answer.h"
#include "serve/responses/parse.h"
#include "text/unicode.h"

using namespace loopspec;
using namespace loopspec::serve;

namespace {

void Check(bool holds) {
  if (!holds) std::abort();
}

const WireParser& Parser() {
  static const WireParser parser{WireLimits()};
  return parser;
}

void CheckRequest(const CompletionRequest& request) {
  const WireLimits& limits = Parser().limits();
  const Request& asked = request.asked;
  Check(asked.choices >= 1 && asked.choices <= limits.max_n);
  Check(request.ignored.names().size() <= 16);
  Check(asked.logprobs.value_or(0) >= 0 && asked.logprobs.value_or(0) <= limits.max_logprobs);
  Check(asked.stop.size() <= static_cast<size_t>(limits.max_stops));
  for (const std::string& stop : asked.stop) {
    Check(!stop.empty() && stop.size() <= static_cast<size_t>(limits.max_stop_bytes));
  }
  const SamplingParams& said = request.sampling.said();
  Check(said.bias.size() <= static_cast<size_t>(limits.max_bias));
  for (const TokenBias& entry : said.bias) {
    Check(entry.token >= 0 && entry.bias >= -100 && entry.bias <= 100);
  }
  for (const SamplingField& field : SamplingFields()) {
    const double value = field.Get(said);
    // A number too small for a float becomes 0, which the engine refuses where it must.
    Check(value >= field.range.low && value <= field.range.high);
  }
  Check(asked.max_tokens.value_or(1) >= (request.echo ? 0 : 1));
  if (request.endpoint == kChat) {
    Check(request.messages.is_array() && !request.messages.empty());
    for (const auto& message : request.messages) {
      Check(message["role"].is_string() && message["content"].is_string());
    }
  } else {
    Check(!request.prompts.empty());
  }
  if (asked.depths) {
    for (size_t i = 1; i < asked.depths->size(); ++i) {
      Check((*asked.depths)[i] > (*asked.depths)[i - 1]);
    }
  }
}

const MessagesParser& Messages() {
  static const MessagesParser parser{Parser()};
  return parser;
}

const ResponsesParser& Responses() {
  static const ResponsesParser parser{Parser()};
  return parser;
}

void Parse(Endpoint endpoint, std::string_view body) {
  try {
    if (endpoint == kMessages || endpoint == kCountTokens) {
      CheckRequest(Messages().Read(endpoint, body));
    } else if (endpoint == kResponses) {
      CheckRequest(Responses().Read(body).chat);
    } else if (endpoint == kTokenize) {
      Parser().Tokenize(body);
    } else if (endpoint == kDetokenize) {
      Parser().Detokenize(body);
    } else {
      CheckRequest(Parser().Completion(endpoint, body));
    }
  } catch (const ApiException& error) {
    const std::string text = Dump(ErrorJson(error.error()));
    Check(error.error().status == 400 && text.size() < 4096 && IsValidUtf8(text));
    Check(Json::parse(text).is_object());
  }
}

// The bytes as an answer, cut into pieces of `step`.
void Say(std::string_view bytes, size_t step, bool open) {
  std::string whole;
  AppendLossyUtf8(bytes, whole);
  ReasoningSplitter in_pieces(open), at_once(open);
  std::string reasoning, content;
  const auto add = [&](const ReasoningSplitter::Parts& parts) {
    reasoning += parts.reasoning;
    content += parts.content;
  };
  for (size_t at = 0; at < whole.size(); at += step) {
    add(in_pieces.Push(std::string_view(whole).substr(at, step)));
  }
  add(in_pieces.Finish());
  ReasoningSplitter::Parts first = at_once.Push(whole);
  const ReasoningSplitter::Parts last = at_once.Finish();
  Check(reasoning == first.reasoning + last.reasoning && content == first.content + last.content);

  ChoicePart part;
  part.text = content;
  part.reasoning = reasoning;
  const std::string piece(bytes.substr(0, 20));
  Token token;
  token.text = piece;
  token.logprob = -1.0f;
  token.top = {{1, -1.0f}};
  part.tokens = {token};
  WriteOptions options;
  options.pieces = [&](int32_t) { return std::string_view(piece); };
  options.logprobs = 1;
  options.token_details = options.trace = true;
  for (const Endpoint endpoint : {kCompletions, kChat}) {
    const std::string event =
        ServerSentEvent(CompletionEvent({endpoint, "id", "model", 0}, part, nullptr, options));
    Check(IsValidUtf8(event) && event.find('\n') == event.size() - 2);
    const Json json = Json::parse(event.substr(6));
    if (endpoint == kCompletions) Check(json["choices"][0]["text"] == content);
  }
}

// The same in the forms that are made of blocks: every event is JSON, whatever the pieces are.
void SayBlocks(std::string_view bytes, size_t step, bool open) {
  CallContext context;
  context.id = "id";
  AnswerSetup setup;
  setup.prompts = {{1, 1, ""}};
  setup.split.split_reasoning = true;
  setup.split.in_reasoning = open;
  MessagesAnswer message(context, setup);
  ResponsesAnswer response({OrderedJson::object(), open, true}, context, setup);
  for (AnswerWriter* answer :
       {static_cast<AnswerWriter*>(&message), static_cast<AnswerWriter*>(&response)}) {
    std::string events;
    for (size_t at = 0; at < bytes.size(); at += step) {
      Token token;
      token.text = std::string(bytes.substr(at, step));
      answer->AddToken(0, token);
      events += answer->Events(0);
    }
    answer->AddEnd(0, Token(), Statistics());
    events += answer->Events(0);
    Check(IsValidUtf8(events) && events.ends_with("\n\n"));
    for (size_t at = 0; at < events.size();) {
      const size_t data = events.find("\ndata: ", at), end = events.find("\n\n", at);
      Check(data < end);
      Check(Json::parse(events.substr(data + 7, end - data - 7)).contains("type"));
      at = end + 2;
    }
    Check(Json::parse(answer->Body(0)).is_object());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  switch (data[0] % 10) {
    case 0:
      Parse(kCompletions, bytes);
      break;
    case 1:
      Parse(kChat, bytes);
      break;
    case 2:
      Parse(kGenerate, bytes);
      break;
    case 3:
      Parse(kTokenize, bytes);
      break;
    case 4:
      Parse(kDetokenize, bytes);
      break;
    case 5:
      Parse(kMessages, bytes);
      break;
    case 6:
      Parse(kCountTokens, bytes);
      break;
    case 7:
      Parse(kResponses, bytes);
      break;
    case 8:
      SayBlocks(bytes, static_cast<size_t>(data[1] % 16) + 1, data[1] >= 128);
      break;
    default:
      Say(bytes, static_cast<size_t>(data[1] % 16) + 1, data[1] >= 128);
  }
  return 0;
}
