// A small blocking HTTP/1.1 client over a raw socket, for tests: it can also misbehave (half
// requests, resets, silence). Not thread safe; one object per connection.
#pragma once

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tenon::testing {

struct HttpAnswer {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;

  [[nodiscard]] nlohmann::json json() const { return nlohmann::json::parse(body); }
};

class HttpClient {
 public:
  explicit HttpClient(uint16_t port, int receive_buffer = 0)
      : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (fd_ < 0) throw std::runtime_error("socket: " + std::string(std::strerror(errno)));
    if (receive_buffer > 0)
      ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    const int on = 1;
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      const std::string reason = std::strerror(errno);
      close();
      throw std::runtime_error("connect: " + reason);
    }
  }
  ~HttpClient() { close(); }
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;
  HttpClient(HttpClient&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)),
        input_(std::move(other.input_)),
        events_(std::move(other.events_)) {}

  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  // Ends the connection by RST.
  void reset() {
    const linger now{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    close();
  }
  void set_timeout(double seconds) { timeout_ = seconds; }

  // False once the peer takes no more.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }

  static std::string format(std::string_view method,
                            std::string_view path,
                            std::string_view body = {},
                            std::string_view extra_headers = {}) {
    std::string text =
        std::string(method) + " " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\n";
    if (method == "POST") {
      if (extra_headers.find("ontent-") == std::string_view::npos)
        text += "Content-Type: application/json\r\n";
      text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
    }
    return text + std::string(extra_headers) + "\r\n" + std::string(body);
  }

  HttpAnswer request(std::string_view method,
                     std::string_view path,
                     std::string_view body = {},
                     std::string_view extra_headers = {}) {
    if (!send(format(method, path, body, extra_headers)) && input_.empty()) fill();
    return read_answer(method == "HEAD");
  }
  HttpAnswer get(std::string_view path) { return request("GET", path); }
  HttpAnswer post(std::string_view path, const nlohmann::json& body) {
    return request("POST", path, body.dump());
  }

  // Status and headers; the body follows through read_answer()'s rest or next_event().
  HttpAnswer read_head() {
    size_t end = 0;
    while ((end = input_.find("\r\n\r\n")) == std::string::npos) {
      if (!fill()) throw std::runtime_error("connection closed before a head");
    }
    HttpAnswer answer;
    const std::string head = input_.substr(0, end + 2);
    input_.erase(0, end + 4);
    if (head.compare(0, 5, "HTTP/") != 0)
      throw std::runtime_error("not HTTP: " + head.substr(0, 40));
    answer.status = std::atoi(head.c_str() + 9);
    for (size_t line = head.find("\r\n") + 2; line < head.size();) {
      const size_t next = head.find("\r\n", line);
      const size_t colon = head.find(':', line);
      std::string name = head.substr(line, colon - line);
      for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      size_t value = colon + 1;
      while (value < next && head[value] == ' ') ++value;
      answer.headers[name] = head.substr(value, next - value);
      line = next + 2;
    }
    chunked_ = answer.headers["transfer-encoding"] == "chunked";
    return answer;
  }

  HttpAnswer read_answer(bool head_only = false) {
    HttpAnswer answer = read_head();
    if (answer.status == 100) answer = read_head();
    if (head_only) return answer;
    if (chunked_) {
      while (auto piece = read_chunk()) answer.body += *piece;
    } else if (answer.headers.count("content-length") > 0) {
      const size_t length = std::stoul(answer.headers["content-length"]);
      while (input_.size() < length) {
        if (!fill()) throw std::runtime_error("connection closed inside a body");
      }
      answer.body = input_.substr(0, length);
      input_.erase(0, length);
    } else {
      while (fill()) {
      }
      answer.body = std::exchange(input_, {});
    }
    return answer;
  }

  // One piece of a chunked body; nullopt at its end.
  std::optional<std::string> read_chunk() {
    size_t end = 0;
    while ((end = input_.find("\r\n")) == std::string::npos) {
      if (!fill()) throw std::runtime_error("connection closed before a chunk");
    }
    const size_t size = std::stoul(input_.substr(0, end), nullptr, 16);
    while (input_.size() < end + 2 + size + 2) {
      if (!fill()) throw std::runtime_error("connection closed inside a chunk");
    }
    std::string piece = input_.substr(end + 2, size);
    input_.erase(0, end + 2 + size + 2);
    if (size == 0) return std::nullopt;
    return piece;
  }

  // The data of the next server-sent event of a chunked stream; nullopt at its end. Strict:
  // anything but `data: X` and comments is an error.
  std::optional<std::string> next_event() {
    for (;;) {
      const size_t end = events_.find("\n\n");
      if (end == std::string::npos) {
        auto piece = read_chunk();
        if (!piece) {
          if (!events_.empty()) throw std::runtime_error("stream ends inside an event");
          return std::nullopt;
        }
        events_ += *piece;
        continue;
      }
      const std::string event = events_.substr(0, end);
      events_.erase(0, end + 2);
      if (event.rfind(':', 0) == 0) {
        ++comments_;
        continue;
      }
      if (event.rfind("data: ", 0) != 0 || event.find('\n') != std::string::npos) {
        throw std::runtime_error("not an event: " + event);
      }
      return event.substr(6);
    }
  }
  [[nodiscard]] int comments() const { return comments_; }

  // Waits for bytes; false at the end of the connection. Throws after the timeout.
  bool fill() {
    pollfd waiting{fd_, POLLIN, 0};
    if (::poll(&waiting, 1, static_cast<int>(timeout_ * 1000)) == 0)
      throw std::runtime_error("timeout waiting for the server");
    char buffer[65536];
    const ssize_t count = ::recv(fd_, buffer, sizeof(buffer), 0);
    if (count <= 0) return false;
    input_.append(buffer, static_cast<size_t>(count));
    return true;
  }
  // True if the server closes (or has closed) the connection within the time, whatever it still
  // sends.
  bool closed_within(double seconds) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    for (;;) {
      const auto left =
          std::chrono::duration<double>(deadline - std::chrono::steady_clock::now()).count();
      pollfd waiting{fd_, POLLIN, 0};
      if (left <= 0 || ::poll(&waiting, 1, static_cast<int>(left * 1000) + 1) == 0) return false;
      char buffer[4096];
      if (::recv(fd_, buffer, sizeof(buffer), 0) <= 0) return true;
    }
  }
  [[nodiscard]] int fd() const { return fd_; }

 private:
  int fd_ = -1;
  double timeout_ = 10;
  std::string input_;
  std::string events_;
  bool chunked_ = false;
  int comments_ = 0;
};

// One request on a connection of its own.
inline HttpAnswer http_get(uint16_t port, std::string_view path) {
  return HttpClient(port).get(path);
}
inline HttpAnswer http_post(uint16_t port, std::string_view path, const nlohmann::json& body) {
  return HttpClient(port).post(path, body);
}
inline HttpAnswer http_post_text(uint16_t port,
                                 std::string_view path,
                                 std::string_view body,
                                 std::string_view extra_headers = {}) {
  return HttpClient(port).request("POST", path, body, extra_headers);
}

// All events of a streamed answer. The last must be [DONE], which is left out.
inline std::vector<nlohmann::json> stream_events(HttpClient& client) {
  std::vector<nlohmann::json> events;
  bool done = false;
  while (auto data = client.next_event()) {
    if (done) throw std::runtime_error("event after [DONE]");
    if (*data == "[DONE]") {
      done = true;
    } else {
      events.push_back(nlohmann::json::parse(*data));
    }
  }
  if (!done) throw std::runtime_error("stream without [DONE]");
  return events;
}
inline std::vector<nlohmann::json> http_stream(uint16_t port,
                                               std::string_view path,
                                               const nlohmann::json& body) {
  HttpClient client(port);
  client.send(HttpClient::format("POST", path, body.dump()));
  const HttpAnswer head = client.read_head();
  if (head.status != 200) throw std::runtime_error("status " + std::to_string(head.status));
  return stream_events(client);
}

// Calls `condition` until it is true or the time is over.
template <typename Condition>
bool eventually(Condition condition, double seconds = 5) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    ::usleep(2000);
  }
  return true;
}

// The value of a series, e.g. "vllm:num_requests_running", summed over its labels; nullopt if there
// is none.
inline std::optional<double> metric_value(const std::string& page, const std::string& name) {
  std::optional<double> sum;
  for (size_t line = 0; line < page.size();) {
    const size_t end = std::min(page.find('\n', line), page.size());
    const std::string_view text(page.data() + line, end - line);
    if (text.substr(0, name.size()) == name &&
        (text[name.size()] == '{' || text[name.size()] == ' ')) {
      sum = sum.value_or(0) + std::atof(std::string(text.substr(text.rfind(' ') + 1)).c_str());
    }
    line = end + 1;
  }
  return sum;
}

}  // namespace tenon::testing
