// Which KV formats a page can be gathered into (GatherPagesParams): the one place that knows. The ops' checks, the
// handshake of a handoff and the start of a server ask here.
#pragma once

#include <string>

#include "tessera/base/status.h"
#include "tessera/ops/kv_layout.h"

namespace tessera::ops {

constexpr bool converts(KvFormat from, KvFormat to) {
  return from == to || (from == KvFormat::kBF16 && to == KvFormat::kF8E4M3) ||
         (from == KvFormat::kF32 && to == KvFormat::kBF16);
}

// ok, or invalid_argument naming both formats and what is possible.
inline base::Status check_conversion(KvFormat from, KvFormat to) {
  if (converts(from, to)) return {};
  std::string possible;
  for (const KvFormat other : {KvFormat::kF32, KvFormat::kBF16, KvFormat::kF8E4M3}) {
    if (!converts(from, other)) continue;
    possible += (possible.empty() ? "" : ", ") + std::string(kv_format_name(other));
  }
  return base::invalid_argument("KV pages: no conversion from " + std::string(kv_format_name(from)) + " to " +
                                kv_format_name(to) + "; possible: " + possible);
}

}  // namespace tessera::ops
