// A small blocking HTTP/1.1 client for tests, over plain sockets: nothing of the server's own code.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include "tessera/base/check.h"

namespace tessera::test_support {

struct HttpAnswer {
  int status = 0;
  std::string headers;  // Lower-case names are not assured: search for what the server writes.
  std::string body;     // Chunks put together.
};

class HttpConnection {
 public:
  explicit HttpConnection(std::uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    TESSERA_CHECK(::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
    const timeval timeout{.tv_sec = 60, .tv_usec = 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  }
  ~HttpConnection() { close(); }
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
  }
  void send_request(std::string_view method, std::string_view path, std::string_view body,
                    std::string_view headers = "") {
    std::string text =
        std::string(method) + " " + std::string(path) + " HTTP/1.1\r\nHost: test\r\n" + std::string(headers);
    if (method == "POST")
      text += "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
    send(text + "\r\n" + std::string(body));
  }
  // Reads until `text` has been seen since the beginning of the current answer; false when the server closed first.
  bool read_until(std::string_view text) {
    while (buffer_.find(text) == std::string::npos) {
      if (!fill()) return false;
    }
    return true;
  }
  // Reads one whole answer. status 0: the connection ended first.
  HttpAnswer read_answer() {
    HttpAnswer answer;
    if (!read_until("\r\n\r\n")) return answer;
    const std::size_t end = buffer_.find("\r\n\r\n") + 4;
    answer.headers = buffer_.substr(0, end);
    buffer_.erase(0, end);
    const int status = std::atoi(answer.headers.c_str() + 9);
    if (answer.headers.find("Transfer-Encoding: chunked") != std::string::npos) {
      if (!read_chunks(answer.body)) return answer;
    } else if (const std::size_t at = answer.headers.find("Content-Length: "); at != std::string::npos) {
      const std::size_t length = std::strtoull(answer.headers.c_str() + at + 16, nullptr, 10);
      while (buffer_.size() < length) {
        if (!fill()) return answer;
      }
      answer.body = buffer_.substr(0, length);
      buffer_.erase(0, length);
    } else {
      while (fill()) {
      }
      answer.body = std::move(buffer_);
    }
    answer.status = status;
    return answer;
  }
  const std::string& buffered() const { return buffer_; }
  // True when the server has closed the connection.
  bool is_closed() {
    while (fill()) {
    }
    return true;
  }
  void close() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }

 private:
  bool fill() {
    char bytes[4096];
    const ssize_t got = ::recv(socket_, bytes, sizeof(bytes), 0);
    if (got <= 0) return false;
    buffer_.append(bytes, static_cast<std::size_t>(got));
    return true;
  }
  bool read_chunks(std::string& body) {
    while (true) {
      std::size_t line = 0;
      while ((line = buffer_.find("\r\n")) == std::string::npos) {
        if (!fill()) return false;
      }
      const std::size_t length = std::strtoull(buffer_.c_str(), nullptr, 16);
      while (buffer_.size() < line + 2 + length + 2) {
        if (!fill()) return false;
      }
      body += buffer_.substr(line + 2, length);
      buffer_.erase(0, line + 2 + length + 2);
      if (length == 0) return true;
    }
  }
  int socket_;
  std::string buffer_;
};

// One request on a connection of its own.
inline HttpAnswer http_get(std::uint16_t port, std::string_view path, std::string_view headers = "") {
  HttpConnection connection(port);
  connection.send_request("GET", path, "", headers);
  return connection.read_answer();
}
inline HttpAnswer http_post(std::uint16_t port, std::string_view path, std::string_view body,
                            std::string_view headers = "") {
  HttpConnection connection(port);
  connection.send_request("POST", path, body, headers);
  return connection.read_answer();
}

}  // namespace tessera::test_support
