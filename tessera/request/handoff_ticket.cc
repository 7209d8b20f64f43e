#include "tessera/request/handoff_ticket.h"

#include <bit>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "tessera/base/limits.h"

namespace tessera::request {

namespace {

static_assert(std::endian::native == std::endian::little, "tickets are written in host order");

constexpr std::uint32_t kTicketVersion = 0x74686f02;  // "tho", 2.

class Writer {
 public:
  template <typename T>
  void put(T value) {
    static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>);
    const auto* from = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), from, from + sizeof(T));
  }
  void put_string(std::string_view text) {
    put(static_cast<std::uint32_t>(text.size()));
    const auto* from = reinterpret_cast<const std::byte*>(text.data());
    bytes_.insert(bytes_.end(), from, from + text.size());
  }
  void put_ids(std::span<const std::int32_t> ids) {
    put(static_cast<std::uint32_t>(ids.size()));
    const auto* from = reinterpret_cast<const std::byte*>(ids.data());
    bytes_.insert(bytes_.end(), from, from + ids.size_bytes());
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

// Reads as long as there are bytes; after the first that are missing or out of bounds everything is zero and ok() is
// false.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <typename T>
  T get() {
    T value{};
    if (!need(sizeof(T))) return value;
    std::memcpy(&value, bytes_.data(), sizeof(T));
    bytes_ = bytes_.subspan(sizeof(T));
    return value;
  }
  std::string get_string(std::int64_t bytes_max) {
    const std::int64_t size = get<std::uint32_t>();
    if (size > bytes_max || !need(size)) {
      ok_ = false;
      return {};
    }
    std::string text(reinterpret_cast<const char*>(bytes_.data()), static_cast<std::size_t>(size));
    bytes_ = bytes_.subspan(static_cast<std::size_t>(size));
    return text;
  }
  std::vector<std::int32_t> get_ids(std::int64_t count_max) {
    const std::int64_t count = get<std::uint32_t>();
    if (count > count_max || !need(count * 4)) {
      ok_ = false;
      return {};
    }
    std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
    if (count > 0) std::memcpy(ids.data(), bytes_.data(), static_cast<std::size_t>(count * 4));
    bytes_ = bytes_.subspan(static_cast<std::size_t>(count * 4));
    for (const std::int32_t id : ids) ok_ = ok_ && id >= 0 && id < base::limits::kVocabularyMax;
    return ids;
  }
  bool get_flag() {
    const auto value = get<std::uint8_t>();
    ok_ = ok_ && value <= 1;
    return value == 1;
  }
  bool ok() const { return ok_; }
  bool at_end() const { return bytes_.empty(); }

 private:
  bool need(std::int64_t size) {
    ok_ = ok_ && size <= std::ssize(bytes_);
    return ok_;
  }
  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

}  // namespace

std::vector<std::byte> encode_ticket(const HandoffTicket& ticket) {
  const SamplingParams& sampling = ticket.spec.sampling;
  Writer out;
  out.put(kTicketVersion);
  out.put(ticket.spec.id);
  out.put_string(ticket.spec.request_id);
  out.put_string(ticket.spec.tenant);
  out.put_ids(ticket.spec.prompt);
  out.put(sampling.temperature);
  out.put(sampling.top_p);
  out.put(sampling.top_k);
  out.put(sampling.seed);
  out.put(sampling.max_tokens);
  out.put(static_cast<std::uint8_t>(sampling.ignore_eos));
  out.put_ids(sampling.stop_token_ids);
  out.put(static_cast<std::uint8_t>(sampling.logprobs));
  out.put(sampling.top_logprobs);
  out.put_ids(ticket.generated);
  out.put(ticket.integrity_recomputes);
  return out.take();
}

base::Result<HandoffTicket> decode_ticket(std::span<const std::byte> bytes) {
  Reader in(bytes);
  if (in.get<std::uint32_t>() != kTicketVersion) {
    return base::failure(base::invalid_argument("handoff ticket: unknown version; both engines must be of one build"));
  }
  HandoffTicket ticket;
  SamplingParams& sampling = ticket.spec.sampling;
  ticket.spec.id = in.get<std::uint64_t>();
  ticket.spec.request_id = in.get_string(kTicketStringBytesMax);
  ticket.spec.tenant = in.get_string(kTicketStringBytesMax);
  ticket.spec.prompt = in.get_ids(base::limits::kContextMax);
  sampling.temperature = in.get<float>();
  sampling.top_p = in.get<float>();
  sampling.top_k = in.get<std::int32_t>();
  sampling.seed = in.get<std::uint64_t>();
  sampling.max_tokens = in.get<std::int32_t>();
  sampling.ignore_eos = in.get_flag();
  sampling.stop_token_ids = in.get_ids(kTicketStopIdsMax);
  sampling.logprobs = in.get_flag();
  sampling.top_logprobs = in.get<std::int32_t>();
  ticket.generated = in.get_ids(base::limits::kContextMax);
  ticket.integrity_recomputes = in.get<std::int32_t>();
  if (!in.ok() || !in.at_end()) {
    return base::failure(base::invalid_argument("handoff ticket: truncated, too long, or a number out of its range"));
  }
  // Written so that NaN is refused too.
  const bool plausible = ticket.spec.id != 0 && !ticket.spec.prompt.empty() && !ticket.generated.empty() &&
                         sampling.temperature >= 0.0f && sampling.temperature <= 1e6f && sampling.top_p >= 0.0f &&
                         sampling.top_p <= 1.0f && sampling.top_k >= 0 && sampling.max_tokens >= 1 &&
                         sampling.top_logprobs >= 0 && sampling.top_logprobs <= base::limits::kTopLogprobsMax &&
                         ticket.integrity_recomputes >= 0;
  if (!plausible) return base::failure(base::invalid_argument("handoff ticket: a field is outside its range"));
  return ticket;
}

}  // namespace tessera::request
