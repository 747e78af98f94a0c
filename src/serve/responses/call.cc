#include "serve/responses/call.h"

#include <memory>
#include <utility>

#include "serve/openai/resolve.h"
#include "serve/responses/answer.h"

namespace loopspec::serve {

ResolveCall ReadResponsesCall(std::string_view body, const ResponsesParser& parser,
                              IgnoredFields& ignored) {
  auto request = std::make_shared<const ResponsesRequest>(parser.Read(body));
  ignored = request->chat.ignored;
  return [request = std::move(request)](const CallContext& context) {
    return Resolve(request->chat, context, [&](AnswerSetup setup) {
      ResponsesAnswer::Form form{request->echo, request->summary,
                                 request->chat.asked.max_tokens.has_value()};
      return std::make_unique<ResponsesAnswer>(std::move(form), context, std::move(setup));
    });
  };
}

}  // namespace loopspec::serve
