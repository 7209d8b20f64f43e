// Working memory of ops: whoever needs some borrows a block and gives it back. Blocks grow to the largest size that was
// asked for and are kept, so that serving allocates nothing once it is warm. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace tessera::backends::cpu::simd {

class ScratchPool {
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(std::byte* data) const { ::operator delete(data, kAlignment); }
  };
  struct Block {
    std::unique_ptr<std::byte, Free> data;
    std::int64_t bytes = 0;
  };

 public:
  // A borrowed block, aligned to 64 bytes and not cleared; goes back when it is destroyed.
  class Loan {
   public:
    Loan(ScratchPool& pool, Block block) : pool_(pool), block_(std::move(block)) {}
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    ~Loan() { pool_.give_back(std::move(block_)); }
    template <typename T>
    T* as() const {
      return reinterpret_cast<T*>(block_.data.get());
    }

   private:
    ScratchPool& pool_;
    Block block_;
  };

  Loan borrow(std::int64_t bytes) {
    Block block;
    {
      std::lock_guard lock(mutex_);
      if (!blocks_.empty()) {
        block = std::move(blocks_.back());
        blocks_.pop_back();
      }
    }
    if (block.bytes < bytes) {
      block.data.reset(static_cast<std::byte*>(::operator new(static_cast<std::size_t>(bytes), kAlignment)));
      block.bytes = bytes;
    }
    return Loan(*this, std::move(block));
  }

 private:
  void give_back(Block block) {
    std::lock_guard lock(mutex_);
    blocks_.push_back(std::move(block));
  }

  std::mutex mutex_;
  std::vector<Block> blocks_;
};

}  // namespace tessera::backends::cpu::simd
