#include "tests/serve/client.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <utility>

namespace loopspec::test {
namespace {

// Of whole answers: a sanitizer and a busy machine may slow them down a hundred times.
constexpr double kPatience = 120;

std::string Lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return out;
}

}  // namespace

serve::HttpServerOptions PatientHttp() {
  constexpr std::chrono::minutes kLong{10};
  serve::HttpServerOptions options;
  options.port = 0;
  options.first_byte_timeout = kLong;
  options.idle_timeout = options.header_timeout = options.body_timeout = kLong;
  options.write_timeout = options.keep_alive = options.linger = kLong;
  return options;
}

std::string Answer::Header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == Lower(name)) return value;
  }
  return "";
}

std::vector<std::string> Answer::Events() const {
  std::vector<std::string> events;
  for (size_t at = 0; at < body.size();) {
    const size_t end = body.find("\n\n", at);
    if (end == body.npos) {
      ADD_FAILURE() << "an event without its end: " << body.substr(at);
      break;
    }
    const std::string event = body.substr(at, end - at);
    if (event.rfind("data: ", 0) == 0) {
      events.push_back(event.substr(6));
    } else if (event.rfind(":", 0) != 0) {
      ADD_FAILURE() << "neither data nor a comment: " << event;
    }
    at = end + 2;
  }
  return events;
}

Client::Client(int port, int receive_buffer, const char* from) {
  socket_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (receive_buffer > 0) {
    setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (from != nullptr) {
    sockaddr_in own{};
    own.sin_family = AF_INET;
    inet_pton(AF_INET, from, &own.sin_addr);
    if (bind(socket_, reinterpret_cast<sockaddr*>(&own), sizeof own) != 0)
      ADD_FAILURE() << "cannot bind to " << from << ": " << errno;
  }
  if (connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    ADD_FAILURE() << "cannot connect: " << errno;
  }
}

Client::~Client() {
  if (socket_ >= 0) close(socket_);
}

Client::Client(Client&& other) noexcept
    : socket_(std::exchange(other.socket_, -1)), buffer_(std::move(other.buffer_)) {}

bool Client::Wait(short events, double seconds) const {
  pollfd entry{socket_, events, 0};
  return poll(&entry, 1, static_cast<int>(seconds * 1000)) > 0;
}

bool Client::Send(std::string_view bytes, double seconds) {
  while (!bytes.empty()) {
    if (!Wait(POLLOUT, seconds)) return false;
    const ssize_t sent = send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

std::string Client::Receive(double seconds) {
  if (!Wait(POLLIN, seconds)) return "";
  std::string bytes(64 << 10, '\0');
  const ssize_t got = recv(socket_, bytes.data(), bytes.size(), 0);
  bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return bytes;
}

bool Client::ReadUntil(std::string_view text, double seconds) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (buffer_.find(text) == buffer_.npos) {
    const double left =
        std::chrono::duration<double>(limit - std::chrono::steady_clock::now()).count();
    if (left <= 0) return false;
    const std::string bytes = Receive(left);
    if (bytes.empty()) return false;
    buffer_ += bytes;
  }
  return true;
}

Answer Client::ReadAnswer(double seconds) {
  Answer answer;
  do {  // interim responses are not the answer
    if (!ReadUntil("\r\n\r\n", seconds)) return answer;
    const size_t end = buffer_.find("\r\n\r\n");
    std::string head = buffer_.substr(0, end + 2);
    buffer_.erase(0, end + 4);
    answer.headers.clear();
    answer.status = std::atoi(head.c_str() + 9);
    for (size_t at = head.find("\r\n") + 2; at < head.size();) {
      const size_t line = head.find("\r\n", at);
      const size_t colon = head.find(": ", at);
      answer.headers.emplace_back(Lower(head.substr(at, colon - at)),
                                  head.substr(colon + 2, line - colon - 2));
      at = line + 2;
    }
  } while (answer.status / 100 == 1);
  if (answer.status == 204) {
    answer.complete = true;
  } else if (answer.Header("transfer-encoding") == "chunked") {
    while (ReadUntil("\r\n", seconds)) {
      const size_t size = std::stoul(buffer_, nullptr, 16);
      const size_t start = buffer_.find("\r\n") + 2;
      while (buffer_.size() < start + size + 2) {
        const std::string more = Receive(seconds);
        if (more.empty()) return answer;
        buffer_ += more;
      }
      answer.body += buffer_.substr(start, size);
      buffer_.erase(0, start + size + 2);
      if (size == 0) {
        answer.complete = true;
        break;
      }
    }
  } else if (const std::string length = answer.Header("content-length"); !length.empty()) {
    const size_t size = std::stoul(length);
    while (buffer_.size() < size) {
      const std::string more = Receive(seconds);
      if (more.empty()) return answer;
      buffer_ += more;
    }
    answer.body = buffer_.substr(0, size);
    buffer_.erase(0, size);
    answer.complete = true;
  } else {  // to the end of the connection
    for (std::string more = buffer_; !more.empty(); more = Receive(seconds)) answer.body += more;
    answer.complete = true;
  }
  return answer;
}

void Client::HalfClose() {
  shutdown(socket_, SHUT_WR);
}

void Client::Close() {
  close(std::exchange(socket_, -1));
}

void Client::Reset() {
  const linger now{1, 0};
  setsockopt(socket_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  Close();
}

bool Client::closed(double seconds) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (;;) {
    const double left =
        std::chrono::duration<double>(limit - std::chrono::steady_clock::now()).count();
    if (left <= 0 || !Wait(POLLIN, left)) return false;
    if (Receive(left).empty()) return true;
  }
}

std::string PostText(std::string_view path, std::string_view body, std::string_view headers) {
  return fmt::format(
      "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Content-Length: {}\r\n{}\r\n{}",
      path, body.size(), headers, body);
}

std::string GetText(std::string_view path, std::string_view headers) {
  return fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\n{}\r\n", path, headers);
}

Answer Post(int port, std::string_view path, const Json& body, std::string_view headers) {
  Client client(port);
  client.Send(PostText(path, body.dump(), headers));
  return client.ReadAnswer(kPatience);
}

Answer Get(int port, std::string_view path, std::string_view headers) {
  Client client(port);
  client.Send(GetText(path, headers));
  return client.ReadAnswer(kPatience);
}

}  // namespace loopspec::test
