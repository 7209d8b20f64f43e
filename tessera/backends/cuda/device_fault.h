// Programmer's errors that only the device can see, because the wrong value lies in its memory. A kernel that meets one
// writes nothing wrong, records the first of them here, and the stream's next synchronize aborts with it, as a failed
// check does on the host. The record is host memory that the device sees. C++20: kernels include it.
#pragma once

#include <cstdint>

namespace tessera::backends::cuda {

enum class FaultKind : std::uint32_t {
  kNone,
  kTokenId,          // values: id, rows of the table
  kQueriesOverKeys,  // values: row, queries, tokens of KV
  kTokenRow,         // values: token, row, rows
  kSlot,             // values: token, slot, slots of the cache
  kPageTableEntry,   // values: entry, row, index
};

struct DeviceFault {
  std::uint32_t kind = 0;  // FaultKind.
  std::uint32_t reserved = 0;
  std::int64_t values[3] = {};
};

}  // namespace tessera::backends::cuda
