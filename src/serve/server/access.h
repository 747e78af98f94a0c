// Who may ask: what keeps pages of other sites out. A browser sends their requests from the user's
// own machine, so no address and no firewall tells them apart. What such a page cannot forge: Host
// (a name that was rebound to this machine stays the stranger's name), Sec-Fetch-Site and Origin,
// and the rule that a body of type application/json is sent only after the server was asked. Pure
// functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/http/message.h"

namespace loopspec::serve {

struct AccessPolicy {
  std::string bound = "127.0.0.1";   // the address that the server listens on
  std::vector<std::string> hosts;    // more names that it is called by; "*": any
  std::vector<std::string> origins;  // whose pages may call it from a browser; "*": any
};

// The name or address of "name", "name:port", "[address]:port": in lower case, without brackets and
// a last dot. Nothing when it is none of these.
std::optional<std::string> HostName(std::string_view host);

// Loopback names and addresses, what the server was bound to (any address, when that is every one)
// and `hosts`.
bool HostAllowed(const AccessPolicy& policy, std::string_view name);
// Whether nobody on another machine can reach a server that listens on this address.
bool IsLoopbackHost(std::string_view bound);
bool OriginAllowed(const AccessPolicy& policy, std::string_view origin);

// Each throws an ApiException for a request that is not let in.
void CheckHost(const AccessPolicy& policy, const HttpRequest& request);
// `page`: what is asked for is a file of the page, which a link elsewhere may lead to.
void CheckSite(const AccessPolicy& policy, const HttpRequest& request, bool page);
void CheckContentType(const HttpRequest& request);

// What every answer to an allowed origin carries; nothing for others.
HttpHeaders CorsHeaders(const AccessPolicy& policy, const HttpRequest& request);
// What the answer to a preflight carries besides.
HttpHeaders PreflightHeaders(const HttpRequest& request);

}  // namespace loopspec::serve
