#include "hub/http.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <exception>
#include <mutex>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/environment.h"

namespace loopspec::hub {
namespace {

constexpr int kMostRedirects = 8;
constexpr size_t kMostBody = size_t{64} << 20;  // without a sink

// An address in its parts. Relative ones are resolved against the one before.
class Url {
 public:
  Url() : url_(curl_url()) { LOOPSPEC_CHECK(url_ != nullptr); }
  ~Url() { curl_url_cleanup(url_); }
  Url(const Url&) = delete;
  Url& operator=(const Url&) = delete;

  bool Set(const std::string& text) {
    return curl_url_set(url_, CURLUPART_URL, text.c_str(), 0) == CURLUE_OK;
  }
  std::string Text() const { return Part(CURLUPART_URL, 0); }
  std::string Scheme() const { return Part(CURLUPART_SCHEME, 0); }
  // Two addresses of one origin are answered by one server.
  std::string Origin() const {
    return fmt::format("{}://{}:{}", Scheme(), Part(CURLUPART_HOST, 0),
                       Part(CURLUPART_PORT, CURLU_DEFAULT_PORT));
  }

 private:
  std::string Part(CURLUPart part, unsigned int flags) const {
    char* text = nullptr;
    if (curl_url_get(url_, part, &text, flags) != CURLUE_OK) return "";
    std::string out = text;
    curl_free(text);
    std::transform(out.begin(), out.end(), out.begin(), [&](unsigned char c) {
      return static_cast<char>(part == CURLUPART_URL ? c : std::tolower(c));
    });
    return out;
  }

  CURLU* url_;
};

// What one transfer hands to curl's callbacks. They must not throw through curl: what was thrown
// waits here.
struct Transfer {
  Answer* answer;
  Sink* sink;
  const std::function<bool()>* cancelled;
  bool begun = false;
  bool too_long = false;  // more than kMostBody bytes for no sink
  std::exception_ptr thrown;

  bool Succeeds() const { return answer->status >= 200 && answer->status < 300; }
  void Begin() {
    if (std::exchange(begun, true)) return;
    sink->Begin(answer->status, answer->headers);
  }
};

size_t OnHeader(char* data, size_t, size_t size, void* context) {
  Answer& answer = *static_cast<Transfer*>(context)->answer;
  const std::string_view line(data, size);
  if (line.starts_with("HTTP/")) {  // the first of an answer
    answer.headers.clear();
    const size_t blank = line.find(' ');
    answer.status = 0;
    for (size_t at = blank + 1; blank != line.npos && at < std::min(blank + 4, size); ++at)
      answer.status = answer.status * 10 + (line[at] - '0');
    return size;
  }
  const size_t colon = line.find(':');
  if (colon == line.npos) return size;
  std::string name(line.substr(0, colon));
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const size_t begin = line.find_first_not_of(" \t", colon + 1);
  const size_t end = line.find_last_not_of(" \t\r\n");
  if (answer.headers.size() < 200)
    answer.headers[name] =
        begin == line.npos || end < begin ? "" : std::string(line.substr(begin, end - begin + 1));
  return size;
}

size_t OnBody(char* data, size_t, size_t size, void* context) {
  auto& transfer = *static_cast<Transfer*>(context);
  try {
    if (transfer.sink != nullptr && transfer.Succeeds()) {
      transfer.Begin();
      transfer.sink->Add(data, size);
    } else if (transfer.answer->body.size() + size <= kMostBody) {
      transfer.answer->body.append(data, size);
    } else {
      transfer.too_long = true;
      return 0;  // which ends the transfer
    }
    return size;
  } catch (...) {
    transfer.thrown = std::current_exception();
    return 0;
  }
}

int OnProgress(void* context, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return (*static_cast<Transfer*>(context)->cancelled)() ? 1 : 0;
}

bool HappensAgain(CURLcode code) {
  constexpr std::array kFinal = {CURLE_UNSUPPORTED_PROTOCOL, CURLE_URL_MALFORMAT,
                                 CURLE_PEER_FAILED_VERIFICATION, CURLE_SSL_CACERT_BADFILE,
                                 CURLE_OUT_OF_MEMORY};
  return std::find(kFinal.begin(), kFinal.end(), code) != kFinal.end();
}

bool IsRedirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

}  // namespace

struct Http::State {
  CURL* curl = nullptr;
  std::string origin, token, certificates;
  std::function<bool()> cancelled;
  std::array<char, CURL_ERROR_SIZE> message{};

  ~State() { curl_easy_cleanup(curl); }

  template <typename T>
  void Set(CURLoption option, T value) {
    LOOPSPEC_CHECK(curl_easy_setopt(curl, option, value) == CURLE_OK);
  }
  Answer Once(const std::string& url, bool with_token, int64_t from, Sink* sink);
};

Http::Http(const Settings& settings, const std::string& user_agent, std::function<bool()> cancelled)
    : state_(std::make_unique<State>()) {
  static std::once_flag once;
  std::call_once(once, [] { LOOPSPEC_CHECK(curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK); });
  State& state = *state_;
  state.curl = curl_easy_init();
  LOOPSPEC_CHECK(state.curl != nullptr);
  Url endpoint;
  if (endpoint.Set(settings.endpoint)) state.origin = endpoint.Origin();
  state.token = settings.token;
  state.cancelled = std::move(cancelled);
  state.Set(CURLOPT_NOSIGNAL, 1L);
  state.Set(CURLOPT_FOLLOWLOCATION, 0L);  // by hand, so that the token stays here
  state.Set(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
  state.Set(CURLOPT_USERAGENT, user_agent.c_str());
  state.Set(CURLOPT_CONNECTTIMEOUT, long{settings.timeout});
  state.Set(CURLOPT_LOW_SPEED_LIMIT, 1L);
  state.Set(CURLOPT_LOW_SPEED_TIME, long{settings.timeout});
  state.Set(CURLOPT_BUFFERSIZE, 512L << 10);
  state.Set(CURLOPT_ERRORBUFFER, state.message.data());
  state.Set(CURLOPT_HEADERFUNCTION, &OnHeader);
  state.Set(CURLOPT_WRITEFUNCTION, &OnBody);
  state.Set(CURLOPT_XFERINFOFUNCTION, &OnProgress);
  state.Set(CURLOPT_NOPROGRESS, 0L);
  for (const char* name : {"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"}) {
    if (state.certificates.empty()) state.certificates = Environment(name);
  }
  if (!state.certificates.empty()) state.Set(CURLOPT_CAINFO, state.certificates.c_str());
}

Http::~Http() = default;

Answer Http::State::Once(const std::string& url, bool with_token, int64_t from, Sink* sink) {
  Answer answer;
  Transfer transfer = {&answer, sink, &cancelled, false, false, nullptr};
  // What is stored is what was checksummed: no compression on the way.
  curl_slist* headers = curl_slist_append(nullptr, "Accept-Encoding: identity");
  if (with_token) headers = curl_slist_append(headers, ("Authorization: Bearer " + token).c_str());
  const std::string range = fmt::format("{}-", from);
  Set(CURLOPT_HTTPHEADER, headers);
  Set(CURLOPT_URL, url.c_str());
  Set(CURLOPT_RANGE, from > 0 ? range.c_str() : static_cast<const char*>(nullptr));
  Set(CURLOPT_HEADERDATA, &transfer);
  Set(CURLOPT_WRITEDATA, &transfer);
  Set(CURLOPT_XFERINFODATA, &transfer);
  message[0] = '\0';
  const CURLcode code = curl_easy_perform(curl);
  Set(CURLOPT_HTTPHEADER, static_cast<curl_slist*>(nullptr));
  curl_slist_free_all(headers);
  if (transfer.thrown) std::rethrow_exception(transfer.thrown);
  answer.cancelled = code == CURLE_ABORTED_BY_CALLBACK;
  if (transfer.too_long) {
    answer.trouble = fmt::format("the answer has no end within {} MB", kMostBody >> 20);
    answer.final = true;
  } else if (code != CURLE_OK && !answer.cancelled) {
    answer.trouble = message[0] != '\0' ? message.data() : curl_easy_strerror(code);
    answer.final = HappensAgain(code);
  } else if (code == CURLE_OK && sink != nullptr && transfer.Succeeds()) {
    transfer.Begin();  // of an answer without a byte
  }
  return answer;
}

Answer Http::Get(const std::string& url, int64_t from, Sink* sink) {
  const auto refused = [](std::string why) {
    Answer answer;
    answer.trouble = std::move(why);
    answer.final = true;
    return answer;
  };
  Url at;
  if (!at.Set(url)) return refused(fmt::format("{} is no address", url));
  bool secure = at.Scheme() == "https";
  for (int hop = 0; hop <= kMostRedirects; ++hop) {
    if (at.Scheme() != "https" && at.Scheme() != "http")
      return refused(fmt::format("a redirect leads to {}, expected http or https", at.Text()));
    if (secure && at.Scheme() != "https")
      return refused(fmt::format("a redirect leads from https to {}", at.Text()));
    secure = secure || at.Scheme() == "https";
    const bool own = !state_->token.empty() && at.Origin() == state_->origin;
    Answer answer = state_->Once(at.Text(), own, from, sink);
    const auto location = answer.headers.find("location");
    if (!answer.trouble.empty() || answer.cancelled || !IsRedirect(answer.status) ||
        location == answer.headers.end())
      return answer;
    if (!at.Set(location->second))
      return refused(fmt::format("a redirect leads to {}, which is no address", location->second));
  }
  return refused(fmt::format("more than {} redirects from {}", kMostRedirects, url));
}

}  // namespace loopspec::hub
