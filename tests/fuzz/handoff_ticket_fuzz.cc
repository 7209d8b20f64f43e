// Handoff tickets from a peer that says anything. What is accepted is written as it was read, byte for byte, and keeps
// the limits on which a decode engine relies.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/base/limits.h"
#include "tessera/request/handoff_ticket.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto ticket = request::decode_ticket(bytes);
  if (!ticket.has_value()) {
    TESSERA_CHECK(ticket.error().code() == base::StatusCode::kInvalidArgument && !ticket.error().message().empty());
    return 0;
  }
  const request::SequenceSpec& spec = ticket->spec;
  TESSERA_CHECK(spec.id != 0 && !spec.prompt.empty() && !ticket->generated.empty());
  TESSERA_CHECK(std::ssize(spec.prompt) <= base::limits::kContextMax);
  TESSERA_CHECK(std::ssize(spec.request_id) <= request::kTicketStringBytesMax);
  TESSERA_CHECK(std::ssize(spec.tenant) <= request::kTicketStringBytesMax);
  TESSERA_CHECK(std::ssize(spec.sampling.stop_token_ids) <= request::kTicketStopIdsMax);
  TESSERA_CHECK(spec.sampling.temperature >= 0.0f && spec.sampling.top_p >= 0.0f && spec.sampling.top_p <= 1.0f);
  TESSERA_CHECK(spec.sampling.top_k >= 0 && spec.sampling.max_tokens >= 1 && spec.sampling.top_logprobs >= 0);
  const std::vector<std::byte> again = request::encode_ticket(*ticket);
  TESSERA_CHECK(std::ranges::equal(again, bytes));
  return 0;
}
