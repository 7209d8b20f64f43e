// A server that answers each request with the next of some prepared bytes, over plain sockets: for answers that no
// sound server gives.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/base/check.h"

namespace tessera::test_support {

inline std::string http_reply(int status, std::string_view body, std::string_view headers = "") {
  return "HTTP/1.1 " + std::to_string(status) + " Said\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" +
         std::string(headers) + "\r\n" + std::string(body);
}

class CannedServer {
 public:
  // An empty reply closes the connection instead; kSilence keeps it open and says nothing. The last one is repeated.
  static constexpr std::string_view kSilence = "silence";
  explicit CannedServer(std::vector<std::string> replies)
      : replies_(std::move(replies)), listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    TESSERA_CHECK(::bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
    TESSERA_CHECK(::listen(listener_, 64) == 0);
    socklen_t size = sizeof(address);
    TESSERA_CHECK(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port_ = ntohs(address.sin_port);
    accepting_ = std::jthread([this] { accept_all(); });
  }
  ~CannedServer() {
    ::shutdown(listener_, SHUT_RDWR);
    accepting_.join();
    for (const int connection : open_) ::shutdown(connection, SHUT_RDWR);
    threads_.clear();
    for (const int connection : open_) ::close(connection);
    ::close(listener_);
  }
  CannedServer(const CannedServer&) = delete;
  CannedServer& operator=(const CannedServer&) = delete;

  std::uint16_t port() const { return port_; }
  std::size_t connections() {
    const std::lock_guard lock(mutex_);
    return open_.size();
  }
  // Request lines, headers and bodies, in the order in which they came.
  std::vector<std::string> requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  void accept_all() {
    while (true) {
      const int connection = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (connection < 0) return;
      const std::lock_guard lock(mutex_);
      open_.push_back(connection);
      threads_.emplace_back([this, connection] { serve(connection); });
    }
  }

  void serve(int connection) {
    std::string buffer;
    while (true) {
      std::size_t end = 0;
      std::size_t length = 0;
      while (true) {
        end = buffer.find("\r\n\r\n");
        if (end != std::string::npos) {
          const std::size_t at = buffer.find("Content-Length: ");
          length = at < end ? static_cast<std::size_t>(std::atoll(buffer.c_str() + at + 16)) : 0;
          if (buffer.size() >= end + 4 + length) break;
        }
        char bytes[4096];
        const ssize_t got = ::recv(connection, bytes, sizeof(bytes), 0);
        if (got <= 0) return;
        buffer.append(bytes, static_cast<std::size_t>(got));
      }
      std::string reply;
      {
        const std::lock_guard lock(mutex_);
        reply = replies_[std::min(requests_.size(), replies_.size() - 1)];
        requests_.push_back(buffer.substr(0, end + 4 + length));
      }
      buffer.erase(0, end + 4 + length);
      if (reply == kSilence) continue;
      if (reply.empty()) {
        ::shutdown(connection, SHUT_RDWR);
        return;
      }
      if (::send(connection, reply.data(), reply.size(), MSG_NOSIGNAL) < 0) return;
    }
  }

  const std::vector<std::string> replies_;
  const int listener_;
  std::uint16_t port_ = 0;
  std::mutex mutex_;
  std::vector<int> open_;
  std::vector<std::string> requests_;
  std::vector<std::jthread> threads_;
  std::jthread accepting_;
};

}  // namespace tessera::test_support
