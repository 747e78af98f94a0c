// Any bytes as Host, Origin and the like: let in, or refused with an error that can be sent; never
// a stranger's name taken for one of ours.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "serve/openai/error.h"
#include "serve/openai/write.h"
#include "serve/server/access.h"
#include "text/unicode.h"

using namespace loopspec;
using namespace loopspec::serve;

namespace {

void Check(bool holds) {
  if (!holds) std::abort();
}

template <typename F>
bool LetIn(F check) {
  try {
    check();
    return true;
  } catch (const ApiException& error) {
    const std::string text = Dump(ErrorJson(error.error()));
    Check(error.error().status >= 400 && error.error().status < 500 && IsValidUtf8(text));
    Check(text.size() < 4096 && !WithoutQuotes(error.error()).empty());
    return false;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const AccessPolicy local, open{"0.0.0.0", {"api.example"}, {"https://friend.example"}};

  if (const auto name = HostName(bytes)) {
    Check(!name->empty() && name->size() <= 253);
    for (const char c : *name) {
      Check((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_' ||
            c == ':');
    }
    if (HostAllowed(local, *name)) {
      const bool named = *name == "localhost" || name->ends_with(".localhost");
      const bool address = name->find_first_not_of("0123456789abcdef.:") == name->npos;
      Check(named || address);
      Check(HostAllowed(open, *name));
    }
  }
  // The bytes as one header among good ones.
  static const char* const kNames[] = {"Host",           "Origin",
                                       "Content-Type",   "Sec-Fetch-Site",
                                       "Sec-Fetch-Mode", "Access-Control-Request-Headers"};
  HttpRequest request;
  request.method = "POST";
  request.headers = {{kNames[data[0] % 6], std::string(bytes)}};
  if (data[0] % 6 != 0) request.headers.emplace_back("Host", "localhost");
  if (data[0] >= 128) request.authority = std::string(bytes);
  for (const AccessPolicy& policy : {local, open}) {
    LetIn([&] { CheckHost(policy, request); });
    LetIn([&] { CheckSite(policy, request, data[0] % 2 == 0); });
    LetIn([&] { CheckContentType(request); });
    for (const auto& headers : {CorsHeaders(policy, request), PreflightHeaders(request)}) {
      for (const auto& [key, value] : headers) {
        const bool origin = key == "Access-Control-Allow-Origin";
        Check(origin || value.find_first_of("\r\n") == value.npos);
        Check(!origin || value == "https://friend.example");
      }
    }
  }
  return 0;
}
