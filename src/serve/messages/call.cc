#include "serve/messages/call.h"

#include <memory>
#include <utility>

#include "serve/messages/answer.h"
#include "serve/openai/resolve.h"

namespace loopspec::serve {

ResolveCall ReadMessagesCall(Endpoint endpoint, std::string_view body, const MessagesParser& parser,
                             IgnoredFields& ignored) {
  auto request = std::make_shared<const CompletionRequest>(parser.Read(endpoint, body));
  ignored = request->ignored;
  return [request = std::move(request)](const CallContext& context) {
    return Resolve(*request, context, [&context](AnswerSetup setup) {
      return std::make_unique<MessagesAnswer>(context, std::move(setup));
    });
  };
}

}  // namespace loopspec::serve
