// A client on a bare socket: sends what it is told, byte by byte if need be, and reads answers.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/json.h"
#include "serve/http/server.h"

namespace loopspec::test {

// A server that waits for its clients as long as it takes: a busy machine may hold up any of them
// for seconds. A test of a limit sets that limit alone.
serve::HttpServerOptions PatientHttp();

// Whether the condition comes true within so many seconds.
template <typename F>
bool Eventually(F condition, double seconds = 60) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

struct Answer {
  int status = 0;
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;                                          // without transfer coding
  bool complete = false;                                     // to the end that its framing promises

  std::string Header(std::string_view name) const;
  Json json() const { return Json::parse(body); }
  std::string error() const { return json()["error"]["message"]; }
  std::string param() const {
    const Json value = json()["error"]["param"];
    return value.is_null() ? "" : value.get<std::string>();
  }
  // The payloads of "data:" lines.
  std::vector<std::string> Events() const;
};

class Client {
 public:
  // To 127.0.0.1, from that address or another one of the loopback network.
  explicit Client(int port, int receive_buffer = 0, const char* from = nullptr);
  ~Client();
  Client(Client&& other) noexcept;
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // False when the other side has closed. Both wait at most `seconds`.
  bool Send(std::string_view bytes, double seconds = 120);
  // Some bytes; empty when the other side closed or nothing came in time.
  std::string Receive(double seconds = 120);
  Answer ReadAnswer(double seconds = 120);
  // Reads on until `text` has come; false when it does not come in time.
  bool ReadUntil(std::string_view text, double seconds = 120);
  const std::string& seen() const { return buffer_; }

  void HalfClose();                   // sends nothing more, still reads
  void Close();                       // with a farewell
  void Reset();                       // without
  bool closed(double seconds = 120);  // whether the other side closes within that time

 private:
  bool Wait(short events, double seconds) const;
  int socket_ = -1;
  std::string buffer_;
};

std::string PostText(std::string_view path, std::string_view body, std::string_view headers = "");
std::string GetText(std::string_view path, std::string_view headers = "");
// One connection, one request.
Answer Post(int port, std::string_view path, const Json& body, std::string_view headers = "");
Answer Get(int port, std::string_view path, std::string_view headers = "");

}  // namespace loopspec::test
