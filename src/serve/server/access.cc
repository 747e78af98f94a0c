#include "serve/server/access.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "base/trimmed.h"
#include "serve/openai/error.h"
#include "serve/openai/text.h"

namespace loopspec::serve {
namespace {

constexpr size_t kLongestHost = 253;  // DNS'
constexpr std::string_view kLocalhost = "localhost";

std::string Lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

bool IsPort(std::string_view text) {
  return text.size() <= 5 && std::all_of(text.begin(), text.end(),
                                         [](unsigned char c) { return std::isdigit(c) != 0; });
}

// An address as bytes, so that all ways of writing it are the same: IPv4 within IPv6 too.
using Address = std::array<unsigned char, 16>;
std::optional<Address> ReadAddress(std::string_view name) {
  const std::string text(name);
  Address address{};
  if (inet_pton(AF_INET6, text.c_str(), address.data()) == 1) return address;
  address = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  if (inet_pton(AF_INET, text.c_str(), address.data() + 12) == 1) return address;
  return std::nullopt;
}

bool IsLoopback(const Address& address) {
  return address == ReadAddress("::1") ||
         (std::equal(address.begin(), address.begin() + 12, ReadAddress("0.0.0.0")->begin()) &&
          address[12] == 127);
}

bool IsEvery(const Address& address) {
  return address == ReadAddress("::") || address == ReadAddress("0.0.0.0");
}

bool Contains(const std::vector<std::string>& list, std::string_view what) {
  return std::find(list.begin(), list.end(), what) != list.end();
}

[[noreturn]] void Deny(int status, std::string code, std::string message) {
  ApiError error;
  error.status = status;
  error.code = std::move(code);
  error.message = std::move(message);
  throw ApiException(std::move(error));
}

// Headers that a page of an allowed origin may send: ours, and those of OpenAI's and Anthropic's
// own packages.
bool HeaderAllowed(std::string_view name) {
  static const std::vector<std::string> known = {
      "accept",         "authorization",
      "cache-control",  "content-type",
      "openai-beta",    "openai-organization",
      "openai-project", "user-agent",
      "x-prefix-key",   "x-request-id",
      "x-api-key",      "anthropic-version",
      "anthropic-beta", "anthropic-dangerous-direct-browser-access"};
  return Contains(known, name) || name.rfind("x-stainless-", 0) == 0;
}

}  // namespace

std::optional<std::string> HostName(std::string_view host) {
  std::string_view name = host, port;
  if (host.empty()) return std::nullopt;
  if (host.front() == '[') {
    const size_t close = host.find(']');
    if (close == host.npos) return std::nullopt;
    name = host.substr(1, close - 1);
    if (!ReadAddress(name)) return std::nullopt;
    std::string_view rest = host.substr(close + 1);
    if (!rest.empty() && rest.front() != ':') return std::nullopt;
    if (!rest.empty()) port = rest.substr(1);
  } else if (const size_t colon = host.find(':'); colon != host.npos) {
    name = host.substr(0, colon);
    port = host.substr(colon + 1);
  }
  if (!IsPort(port)) return std::nullopt;
  if (name.size() > 1 && name.back() == '.') name.remove_suffix(1);
  const auto good = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '.' || c == '_' || c == ':';
  };
  if (name.empty() || name.size() > kLongestHost || !std::all_of(name.begin(), name.end(), good)) {
    return std::nullopt;
  }
  return Lower(name);
}

bool HostAllowed(const AccessPolicy& policy, std::string_view name) {
  if (Contains(policy.hosts, "*")) return true;
  // Resolvers answer these themselves: nobody can rebind them.
  if (name == kLocalhost || name.ends_with(".localhost")) return true;
  const std::string bound = Lower(policy.bound);
  if (name == bound) return true;
  for (const std::string& host : policy.hosts) {
    if (HostName(host) == name) return true;
  }
  const auto address = ReadAddress(name);
  if (!address) return false;
  if (IsLoopback(*address)) return true;
  // No name was looked up for an address, so none can have been rebound.
  const auto listens = ReadAddress(bound);
  return listens && (IsEvery(*listens) || *listens == *address);
}

bool IsLoopbackHost(std::string_view bound) {
  const auto address = ReadAddress(bound);
  return bound == kLocalhost || (address && IsLoopback(*address));
}

bool OriginAllowed(const AccessPolicy& policy, std::string_view origin) {
  return Contains(policy.origins, "*") || (!origin.empty() && Contains(policy.origins, origin));
}

void CheckHost(const AccessPolicy& policy, const HttpRequest& request) {
  const size_t count = request.Count("Host");
  if (count > 1) Deny(400, "bad_host", "The request has Host twice, expected it once.");
  if (count == 0) {
    if (request.version < 11) return;  // which knows of none, and no browser speaks it
    Deny(400, "bad_host", "The request has no Host.");
  }
  // The host of an absolute target is the one that counts (RFC 9112, 3.2.2); both are looked at.
  std::vector<std::string_view> hosts = {request.Header("Host")};
  if (!request.authority.empty()) hosts.push_back(request.authority);
  for (const std::string_view host : hosts) {
    const auto name = HostName(host);
    if (!name) {
      Deny(400, "bad_host",
           fmt::format("Host is {}, expected a name or an address.", TokenText(host)));
    }
    if (HostAllowed(policy, *name)) continue;
    Deny(403, "host_not_allowed",
         fmt::format("Host is {}, which is not a name of this server; --allowed-host {} lets it "
                     "in.",
                     *name, *name));
  }
}

void CheckSite(const AccessPolicy& policy, const HttpRequest& request, bool page) {
  if (Lower(request.Header("Sec-Fetch-Site")) != "cross-site") return;
  if (OriginAllowed(policy, request.Header("Origin"))) return;
  // A link to the page, followed: what is shown is the page, not what asked for it.
  if (page && Lower(request.Header("Sec-Fetch-Mode")) == "navigate") return;
  Deny(403, "origin_not_allowed",
       "The request comes from a page of another site; --cors-origin lets one in.");
}

void CheckContentType(const HttpRequest& request) {
  std::string_view type = request.Header("Content-Type");
  type = Trimmed(type.substr(0, type.find(';')));
  const std::string lower = Lower(type);
  if (lower == "application/json") return;
  Deny(415, "",
       type.empty()
           ? "The request has no Content-Type, expected application/json."
           : fmt::format("Content-Type is {}, expected application/json.", TokenText(lower)));
}

HttpHeaders CorsHeaders(const AccessPolicy& policy, const HttpRequest& request) {
  const std::string_view origin = request.Header("Origin");
  if (origin.empty() || !OriginAllowed(policy, origin)) return {};
  const bool any = Contains(policy.origins, "*");
  return {{"Access-Control-Allow-Origin", any ? "*" : std::string(origin)},
          {"Access-Control-Expose-Headers",
           "X-Request-Id, X-Loopspec-Ignored, X-Loopspec-Ignored-Keywords, X-Loopspec-Max-Tokens, "
           "Retry-After"},
          {"Vary", "Origin"}};
}

// The headers that were asked about and are known, as they were spelt: browsers compare them
// without regard to case.
HttpHeaders PreflightHeaders(const HttpRequest& request) {
  std::string allowed = "Authorization, Content-Type, X-Request-Id, X-Prefix-Key";
  std::string_view asked = request.Header("Access-Control-Request-Headers");
  while (!asked.empty()) {
    const size_t comma = std::min(asked.find(','), asked.size());
    const std::string name = Lower(Trimmed(asked.substr(0, comma)));
    const auto good = [](unsigned char c) { return std::isalnum(c) != 0 || c == '-'; };
    if (HeaderAllowed(name) && std::all_of(name.begin(), name.end(), good)) {
      allowed += ", " + name;
    }
    asked.remove_prefix(std::min(comma + 1, asked.size()));
  }
  return {{"Access-Control-Allow-Methods", "GET, POST"},
          {"Access-Control-Allow-Headers", std::move(allowed)},
          {"Access-Control-Max-Age", "600"}};
}

}  // namespace loopspec::serve
