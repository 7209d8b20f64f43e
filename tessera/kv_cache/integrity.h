// How much is proved of the pages that a step reads, and what becomes of a sequence whose proof fails.
#pragma once

#include <cstdint>
#include <string_view>

namespace tessera::kv_cache {

// Each level includes those above it.
enum class IntegrityLevel : std::uint8_t {
  kTags,        // Range, tag, owner and position of every page and slot, before and after every step. Always on.
  kDigest,      // The bytes of pages: when they are handed over, at every prefix hit, and by a sweep in the background.
  kDigestStep,  // The bytes of every page that a step read, before its token is emitted.
};
// As flags, logs and /get_server_info spell it.
constexpr std::string_view integrity_level_name(IntegrityLevel level) {
  return level == IntegrityLevel::kTags ? "tags" : level == IntegrityLevel::kDigest ? "digest" : "digest-step";
}

enum class OnIntegrityError : std::uint8_t {
  kAbort,      // The sequence ends with an error.
  kRecompute,  // Its pages are computed again and it goes on, exactly as if undisturbed.
};
// Likewise.
constexpr std::string_view on_integrity_error_name(OnIntegrityError action) {
  return action == OnIntegrityError::kAbort ? "abort" : "recompute";
}

}  // namespace tessera::kv_cache
