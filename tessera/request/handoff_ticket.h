// What a decode engine must know of a sequence that is handed to it, and its bytes on the wire. The schema is fixed:
// little-endian integers, in the order of the fields; a version in front. Decoding is total: any bytes give a ticket or
// invalid_argument, and nothing is allocated before its size was checked against base/limits.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/request/sequence_spec.h"

namespace tessera::request {

struct HandoffTicket {
  SequenceSpec spec;  // Without prompt_logprobs, which are told before a handoff.
  // Emitted so far; at least the first token, which prefill sampled.
  std::vector<std::int32_t> generated;
  std::int32_t integrity_recomputes = 0;  // Of the sequence so far (StartSequence).
};

// Lengths of the two strings in a ticket, at most.
inline constexpr std::int64_t kTicketStringBytesMax = 1024;
inline constexpr std::int64_t kTicketStopIdsMax = 1024;

std::vector<std::byte> encode_ticket(const HandoffTicket& ticket);
base::Result<HandoffTicket> decode_ticket(std::span<const std::byte> bytes);

}  // namespace tessera::request
