// Collectives between the ranks of one engine. Models call them where tensor parallelism needs a sum; with one rank
// they do nothing.
#pragma once

#include <cstdint>

#include "tessera/ops/backend.h"
#include "tessera/ops/buffer.h"
#include "tessera/ops/stream.h"

namespace tessera::ops {

class Collective {
 public:
  virtual ~Collective() = default;
  virtual std::int32_t rank() const = 0;
  virtual std::int32_t size() const = 0;
  // x becomes the sum of x over all ranks, in rank order. Every rank calls with the same shape.
  virtual void all_reduce_sum(Stream& stream, Matrix x) = 0;
  // out [rows, size * cols of x] becomes the ranks' x side by side, in rank order.
  virtual void all_gather_columns(Stream& stream, ConstMatrix x, Matrix out) = 0;
};

// The only rank, which must live no longer than its backend.
class SingleRank final : public Collective {
 public:
  explicit SingleRank(Backend& backend) : backend_(backend) {}
  std::int32_t rank() const override { return 0; }
  std::int32_t size() const override { return 1; }
  void all_reduce_sum(Stream&, Matrix) override {}
  void all_gather_columns(Stream& stream, ConstMatrix x, Matrix out) override { backend_.copy_matrix(stream, x, out); }

 private:
  Backend& backend_;
};

}  // namespace tessera::ops
