// A small page pool of the reference backend, for tests of the pool.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "tessera/backends/cpu/reference/reference_backend.h"
#include "tessera/kv_cache/page_pool.h"

namespace tessera::kv_cache {

class PagePoolFixture : public ::testing::Test {
 protected:
  void make(std::int64_t pages) {
    auto made = PagePool::create(*backend_, *stream_, ops::gqa_kv_layout(ops::KvFormat::kBF16, 2, 4, 2, 8), pages);
    ASSERT_TRUE(made.has_value()) << made.error().to_string();
    pool_ = std::move(*made);
  }
  Lease take(std::int32_t position = 0, std::uint64_t sequence = 1) {
    auto lease = pool_->allocate(*stream_, owner_of_sequence(sequence), position);
    EXPECT_TRUE(lease.has_value());
    return lease.value_or(Lease{});
  }
  Lease take_written(std::int32_t position = 0) {
    const Lease lease = take(position);
    pool_->begin_write(lease);
    pool_->end_write(lease, 1);
    return lease;
  }
  void expect_sound() {
    const base::Status status = pool_->check_conservation(*stream_);
    EXPECT_TRUE(status.ok()) << status.to_string();
  }

  std::unique_ptr<ops::Backend> backend_ = backends::cpu::make_reference_backend();
  std::unique_ptr<ops::Stream> stream_ = backend_->make_stream();
  std::unique_ptr<PagePool> pool_;
};

}  // namespace tessera::kv_cache
