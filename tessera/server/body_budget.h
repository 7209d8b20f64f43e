// Inside the server room: how many bytes of request bodies are in memory at once, over all connections. Used on the
// connections' thread only.
#pragma once

#include <cstdint>

namespace tessera::server {

class BodyBudget {
 public:
  explicit BodyBudget(std::int64_t bytes_max) : free_(bytes_max) {}
  BodyBudget(const BodyBudget&) = delete;
  BodyBudget& operator=(const BodyBudget&) = delete;

  // One body's part of the budget, given back at its end.
  class Share {
   public:
    explicit Share(BodyBudget& budget) : budget_(budget) {}
    ~Share() { give_back(); }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

    // At least `bytes` in all from here on. False, and nothing changes, when not so much is free.
    bool grow_to(std::int64_t bytes) {
      if (bytes <= bytes_) return true;
      if (bytes - bytes_ > budget_.free_) return false;
      budget_.free_ -= bytes - bytes_;
      bytes_ = bytes;
      return true;
    }
    void give_back() {
      budget_.free_ += bytes_;
      bytes_ = 0;
    }

   private:
    BodyBudget& budget_;
    std::int64_t bytes_ = 0;
  };

 private:
  std::int64_t free_;
};

}  // namespace tessera::server
