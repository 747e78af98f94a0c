// GET over HTTP and HTTPS, by libcurl.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "hub/settings.h"

namespace loopspec::hub {

using Headers = std::map<std::string, std::string, std::less<>>;  // names in lower case

// Takes the body of an answer that is a success. What these throw comes out of Get.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void Begin(int status, const Headers& headers) = 0;
  virtual void Add(const char* data, size_t size) = 0;
};

struct Answer {
  int status = 0;  // 0: none came
  Headers headers;
  std::string body;     // of an answer that is no success, or of any without a sink
  std::string trouble;  // what broke the connection, or why it was not made; empty: nothing
  bool final = false;   // the same would happen again
  bool cancelled = false;

  bool ok() const { return trouble.empty() && !cancelled && status >= 200 && status < 300; }
};

// For one thread. Connections are kept between calls.
class Http {
 public:
  Http(const Settings& settings, const std::string& user_agent, std::function<bool()> cancelled);
  ~Http();
  Http(const Http&) = delete;
  Http& operator=(const Http&) = delete;

  // From byte `from` of the body on. Follows redirects, never from https to http. The token goes to
  // the scheme, host and port of the endpoint and to nobody else.
  Answer Get(const std::string& url, int64_t from = 0, Sink* sink = nullptr);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace loopspec::hub
