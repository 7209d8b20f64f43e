// The types that prove a check: whoever reads KV takes VerifiedPages, whoever writes it takes WritableSlots, and only
// kv_cache::Verifier makes either, from the outputs of the verify_pages op on the same stream. So code that would read
// or write unverified pages does not compile.
//
// Both are views of device memory that the Verifier owns; they are valid until its next check.
#pragma once

#include <cstdint>

namespace tessera::kv_cache {
class Verifier;
}

namespace tessera::ops {

class VerifiedPages {
 public:
  std::int64_t rows() const { return rows_; }
  std::int64_t max_pages_per_row() const { return max_pages_per_row_; }
  // [rows, max_pages_per_row]: page ids, every one inside the pool; all null pages in a row that failed.
  const std::int32_t* table() const { return table_; }
  // [rows]: tokens of KV that the row may read; 0 in a row that failed.
  const std::int32_t* kv_lens() const { return kv_lens_; }

 private:
  friend class tessera::kv_cache::Verifier;
  VerifiedPages(const std::int32_t* table, const std::int32_t* kv_lens, std::int64_t rows,
                std::int64_t max_pages_per_row)
      : table_(table), kv_lens_(kv_lens), rows_(rows), max_pages_per_row_(max_pages_per_row) {}
  const std::int32_t* table_;
  const std::int32_t* kv_lens_;
  std::int64_t rows_;
  std::int64_t max_pages_per_row_;
};

class WritableSlots {
 public:
  std::int64_t tokens() const { return tokens_; }
  // [tokens]: page * page_size + offset, or kNullSlot for a token that must not be written.
  const std::int64_t* slots() const { return slots_; }

 private:
  friend class tessera::kv_cache::Verifier;
  WritableSlots(const std::int64_t* slots, std::int64_t tokens) : slots_(slots), tokens_(tokens) {}
  const std::int64_t* slots_;
  std::int64_t tokens_;
};

}  // namespace tessera::ops
