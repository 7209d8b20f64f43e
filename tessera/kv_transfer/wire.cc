#include "tessera/kv_transfer/wire.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"
#include "tessera/base/limits.h"
#include "tessera/ops/kv_conversion.h"

namespace tessera::kv_transfer::wire {

namespace {

static_assert(std::endian::native == std::endian::little, "integers are copied as they lie in memory");

using base::StatusCode;

// Offsets inside the header.
constexpr std::size_t kTypeOffset = 6;
constexpr std::size_t kSessionOffset = 8;
constexpr std::size_t kHandoffOffset = 16;
constexpr std::size_t kBodyBytesOffset = 24;
constexpr std::size_t kReservedOffset = 28;
constexpr std::size_t kBodyChecksumOffset = 32;
constexpr std::size_t kHeaderChecksumOffset = 40;
// Of a PageData's fields, before digests and images.
constexpr std::int64_t kPageDataFieldsBytes = 24;

// Numbers of status codes on the wire are positions in this list, whatever the enum's own order is.
constexpr std::array kWireCodes = {
    StatusCode::kInvalidArgument,  StatusCode::kNotFound,  StatusCode::kOutOfRange,   StatusCode::kResourceExhausted,
    StatusCode::kUnavailable,      StatusCode::kCancelled, StatusCode::kCorruption,   StatusCode::kDataLoss,
    StatusCode::kDeadlineExceeded, StatusCode::kInternal,  StatusCode::kUnimplemented};

constexpr std::int32_t kPageSizeMax = 1 << 16;
constexpr std::int32_t kPartElementsMax = 1 << 20;
constexpr std::int32_t kChunkPagesMax = 1 << 16;

std::uint64_t checksum(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

template <typename T>
T load(std::span<const std::byte> bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

template <typename T>
void store(std::span<std::byte> bytes, std::size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof(value));
}

// Reads a body from its front. What is not there reads as zero, and ok() says so at the end.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}
  template <typename T>
  T take() {
    if (rest_.size() < sizeof(T)) {
      fail();
      return T{};
    }
    const T value = load<T>(rest_, 0);
    rest_ = rest_.subspan(sizeof(T));
    return value;
  }
  std::span<const std::byte> take_bytes(std::int64_t count) {
    if (count < 0 || std::ssize(rest_) < count) {
      fail();
      return {};
    }
    const auto taken = rest_.first(static_cast<std::size_t>(count));
    rest_ = rest_.subspan(static_cast<std::size_t>(count));
    return taken;
  }
  // Everything was there, and nothing is left.
  bool ok() const { return ok_ && rest_.empty(); }

 private:
  void fail() {
    ok_ = false;
    rest_ = {};
  }
  std::span<const std::byte> rest_;
  bool ok_ = true;
};

class Writer {
 public:
  explicit Writer(std::vector<std::byte>& out) : out_(out) {}
  template <typename T>
  void put(T value) {
    const std::size_t at = out_.size();
    out_.resize(at + sizeof(T));
    std::memcpy(out_.data() + at, &value, sizeof(T));
  }
  void put_bytes(std::span<const std::byte> bytes) { out_.insert(out_.end(), bytes.begin(), bytes.end()); }
  void put_text(std::string_view text) { put_bytes(std::as_bytes(std::span(text.data(), text.size()))); }

 private:
  std::vector<std::byte>& out_;
};

// The bytes are not those that were sent; or they are, and mean nothing here.
base::Status damaged(std::string_view what) { return base::data_loss(fmt::format("handoff message: {}", what)); }
base::Status malformed(std::string_view what) { return base::internal_error(fmt::format("handoff message: {}", what)); }

bool in_range(std::int64_t value, std::int64_t low, std::int64_t high) { return value >= low && value <= high; }

// A peer's text may land in a log or an error: printable ASCII only.
std::string printable(std::span<const std::byte> bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (const std::byte byte : bytes) {
    const char c = static_cast<char>(byte);
    text.push_back(c >= ' ' && c <= '~' ? c : '?');
  }
  return text;
}

// Only layers that exist have index keys, and only where there is such a part.
bool index_layers_sound(const ops::KvLayout& layout) {
  if (!in_range(layout.num_layers, 1, ops::LayerSet::kLayersMax)) return false;
  if (!in_range(layout.num_parts, 1, ops::KvLayout::kPartsMax)) return false;
  const bool has_part =
      layout.parts[static_cast<std::size_t>(layout.num_parts - 1)].kind == ops::KvPartKind::kIndexKeys;
  const std::int32_t all = layout.index_layers.count_below(ops::LayerSet::kLayersMax);
  return all == (has_part ? layout.index_layers.count_below(layout.num_layers) : 0);
}

base::Result<Body> parse_hello(std::span<const std::byte> body) {
  Reader reader(body);
  Hello hello;
  const auto format = reader.take<std::uint8_t>();
  const auto num_parts = reader.take<std::uint8_t>();
  const auto reserved = reader.take<std::uint16_t>();
  hello.layout.num_layers = reader.take<std::int32_t>();
  hello.layout.page_size = reader.take<std::int32_t>();
  hello.layout.num_parts = num_parts;
  bool sound = format <= static_cast<std::uint8_t>(ops::KvFormat::kF8E4M3) && reserved == 0 &&
               in_range(num_parts, 1, ops::KvLayout::kPartsMax) &&
               in_range(hello.layout.num_layers, 1, base::limits::kLayersMax) &&
               in_range(hello.layout.page_size, 1, kPageSizeMax);
  for (int p = 0; p < ops::KvLayout::kPartsMax; ++p) {
    ops::KvPart& part = hello.layout.parts[static_cast<std::size_t>(p)];
    part.elements = reader.take<std::int32_t>();
    part.scales = reader.take<std::int32_t>();
    part.first_group = reader.take<std::int32_t>();
    part.other_groups = reader.take<std::int32_t>();
    const auto kind = reader.take<std::uint32_t>();
    const std::int32_t least = p < num_parts ? 1 : 0;
    const std::int32_t most = p < num_parts ? kPartElementsMax : 0;
    sound = sound && in_range(part.elements, least, most) && in_range(part.scales, 0, part.elements) &&
            in_range(part.first_group, 0, part.elements) && in_range(part.other_groups, 0, part.elements);
    // Index keys are the last part, behind the values.
    const bool index_keys = kind == static_cast<std::uint32_t>(ops::KvPartKind::kIndexKeys);
    sound = sound && (kind == static_cast<std::uint32_t>(ops::KvPartKind::kValues) ||
                      (index_keys && p > 0 && p == num_parts - 1));
    if (index_keys) part.kind = ops::KvPartKind::kIndexKeys;
  }
  auto index_layers = hello.layout.index_layers.words();
  for (std::uint64_t& word : index_layers) word = reader.take<std::uint64_t>();
  hello.layout.index_layers = ops::LayerSet::from_words(index_layers);
  sound = sound && index_layers_sound(hello.layout);
  hello.shard_index = reader.take<std::uint32_t>();
  hello.shard_count = reader.take<std::uint32_t>();
  hello.chunk_pages_max = reader.take<std::int32_t>();
  hello.message_bytes_max = reader.take<std::int64_t>();
  const auto digest_bytes = reader.take<std::uint16_t>();
  const auto digest = reader.take_bytes(digest_bytes);
  sound = sound && hello.shard_index < hello.shard_count && in_range(hello.chunk_pages_max, 1, kChunkPagesMax) &&
          hello.message_bytes_max > 0 && digest_bytes <= kModelDigestBytesMax;
  if (!reader.ok() || !sound) return base::failure(malformed("a Hello out of range"));
  hello.layout.format = static_cast<ops::KvFormat>(format);
  hello.model_digest.assign(reinterpret_cast<const char*>(digest.data()), digest.size());
  return hello;
}

base::Result<Body> parse_offer(std::span<const std::byte> body) {
  Reader reader(body);
  Offer offer;
  offer.kv_len = reader.take<std::int32_t>();
  offer.num_pages = reader.take<std::int32_t>();
  offer.digest_key = reader.take<std::uint64_t>();
  offer.timeout_ns = reader.take<std::int64_t>();
  const auto blob_bytes = reader.take<std::uint32_t>();
  offer.blob = reader.take_bytes(blob_bytes);
  const bool sound = in_range(offer.kv_len, 1, base::limits::kContextMax) &&
                     in_range(offer.num_pages, 1, offer.kv_len) && offer.timeout_ns > 0 && blob_bytes <= kBlobBytesMax;
  if (!reader.ok() || !sound) return base::failure(malformed("an Offer out of range"));
  return offer;
}

base::Result<Body> parse_accept(std::span<const std::byte> body) {
  Reader reader(body);
  Accept accept;
  accept.first_page = reader.take<std::int32_t>();
  if (!reader.ok() || accept.first_page < 0) return base::failure(malformed("an Accept out of range"));
  return accept;
}

base::Result<base::Status> parse_reason(std::span<const std::byte> body) {
  Reader reader(body);
  const auto code = reader.take<std::uint16_t>();
  const auto bytes = reader.take<std::uint16_t>();
  const auto text = reader.take_bytes(bytes);
  if (!reader.ok() || code >= kWireCodes.size() || bytes > kReasonBytesMax) {
    return base::failure(malformed("a reason out of range"));
  }
  return base::Status(kWireCodes[code], printable(text));
}

base::Result<Body> parse_page_data(std::span<const std::byte> body) {
  Reader reader(body);
  PageData data;
  data.layer = reader.take<std::int32_t>();
  data.first_page = reader.take<std::int32_t>();
  data.num_pages = reader.take<std::int32_t>();
  const auto reserved = reader.take<std::uint32_t>();
  data.page_bytes = reader.take<std::int64_t>();
  const bool sound = in_range(data.layer, 0, base::limits::kLayersMax - 1) &&
                     in_range(data.first_page, 0, base::limits::kContextMax) &&
                     in_range(data.num_pages, 1, kChunkPagesMax) && reserved == 0 && data.page_bytes > 0;
  const auto images_bytes = base::checked_mul(data.num_pages, data.page_bytes);
  if (!sound || !images_bytes.has_value()) return base::failure(malformed("a PageData out of range"));
  data.digests = reader.take_bytes(std::int64_t{data.num_pages} * 8);
  data.images = reader.take_bytes(*images_bytes);
  if (!reader.ok()) return base::failure(malformed("a PageData whose size does not fit its page count"));
  return data;
}

base::Result<Body> parse_commit(std::span<const std::byte> body) {
  Reader reader(body);
  Commit commit;
  commit.combined_digest = reader.take<std::uint64_t>();
  if (!reader.ok()) return base::failure(malformed("a Commit of the wrong size"));
  return commit;
}

base::Result<Body> parse_body(MessageType type, std::span<const std::byte> body) {
  switch (type) {
    case MessageType::kHello:
      return parse_hello(body);
    case MessageType::kOffer:
      return parse_offer(body);
    case MessageType::kAccept:
      return parse_accept(body);
    case MessageType::kReject: {
      TESSERA_ASSIGN_OR_RETURN(base::Status reason, parse_reason(body));
      return Reject{std::move(reason)};
    }
    case MessageType::kPageData:
      return parse_page_data(body);
    case MessageType::kCommit:
      return parse_commit(body);
    case MessageType::kDone:
      if (!body.empty()) return base::failure(malformed("a Done with a body"));
      return Done{};
    case MessageType::kAbort: {
      TESSERA_ASSIGN_OR_RETURN(base::Status reason, parse_reason(body));
      return Abort{std::move(reason)};
    }
    case MessageType::kAbortAck:
      if (!body.empty()) return base::failure(malformed("an AbortAck with a body"));
      return AbortAck{};
    case MessageType::kQueued:
      if (!body.empty()) return base::failure(malformed("a Queued with a body"));
      return Queued{};
  }
  return base::failure(malformed("unknown type " + std::to_string(static_cast<int>(type))));
}

void write_header(std::span<std::byte> message, MessageType type, SessionId session, HandoffId handoff) {
  const std::int64_t body_bytes = std::ssize(message) - kHeaderBytes;
  TESSERA_CHECK(body_bytes >= 0 && body_bytes <= std::numeric_limits<std::uint32_t>::max());
  store(message, 0, kMagic);
  store(message, 4, kVersion);
  store(message, kTypeOffset, static_cast<std::uint16_t>(type));
  store(message, kSessionOffset, session);
  store(message, kHandoffOffset, handoff);
  store(message, kBodyBytesOffset, static_cast<std::uint32_t>(body_bytes));
}

void write_reason(Writer& writer, const base::Status& reason) {
  const auto code = std::find(kWireCodes.begin(), kWireCodes.end(), reason.code());
  TESSERA_CHECK(code != kWireCodes.end(), "a reason must be a failure");
  const std::string_view text = std::string_view(reason.message()).substr(0, kReasonBytesMax);
  writer.put(static_cast<std::uint16_t>(code - kWireCodes.begin()));
  writer.put(static_cast<std::uint16_t>(text.size()));
  writer.put_text(text);
}

// Writes a body, and says which type it is.
struct BodyWriter {
  Writer& writer;

  MessageType operator()(const Hello& hello) const {
    TESSERA_CHECK(std::ssize(hello.model_digest) <= kModelDigestBytesMax, "model digest too long");
    writer.put(static_cast<std::uint8_t>(hello.layout.format));
    writer.put(static_cast<std::uint8_t>(hello.layout.num_parts));
    writer.put(std::uint16_t{0});
    writer.put(hello.layout.num_layers);
    writer.put(hello.layout.page_size);
    for (int p = 0; p < ops::KvLayout::kPartsMax; ++p) {
      const ops::KvPart part =
          p < hello.layout.num_parts ? hello.layout.parts[static_cast<std::size_t>(p)] : ops::KvPart{};
      writer.put(part.elements);
      writer.put(part.scales);
      writer.put(part.first_group);
      writer.put(part.other_groups);
      writer.put(static_cast<std::uint32_t>(part.kind));
    }
    for (const std::uint64_t word : hello.layout.index_layers.words()) writer.put(word);
    writer.put(hello.shard_index);
    writer.put(hello.shard_count);
    writer.put(hello.chunk_pages_max);
    writer.put(hello.message_bytes_max);
    writer.put(static_cast<std::uint16_t>(hello.model_digest.size()));
    writer.put_text(hello.model_digest);
    return MessageType::kHello;
  }
  MessageType operator()(const Offer& offer) const {
    TESSERA_CHECK(std::ssize(offer.blob) <= kBlobBytesMax, "request blob too long");
    writer.put(offer.kv_len);
    writer.put(offer.num_pages);
    writer.put(offer.digest_key);
    writer.put(offer.timeout_ns);
    writer.put(static_cast<std::uint32_t>(offer.blob.size()));
    writer.put_bytes(offer.blob);
    return MessageType::kOffer;
  }
  MessageType operator()(const Accept& accept) const {
    writer.put(accept.first_page);
    return MessageType::kAccept;
  }
  MessageType operator()(const Reject& reject) const {
    write_reason(writer, reject.reason);
    return MessageType::kReject;
  }
  MessageType operator()(const PageData& data) const {
    TESSERA_CHECK(std::ssize(data.digests) == std::int64_t{data.num_pages} * 8 &&
                  std::ssize(data.images) == data.num_pages * data.page_bytes);
    writer.put(data.layer);
    writer.put(data.first_page);
    writer.put(data.num_pages);
    writer.put(std::uint32_t{0});
    writer.put(data.page_bytes);
    writer.put_bytes(data.digests);
    writer.put_bytes(data.images);
    return MessageType::kPageData;
  }
  MessageType operator()(const Commit& commit) const {
    writer.put(commit.combined_digest);
    return MessageType::kCommit;
  }
  MessageType operator()(const Done&) const { return MessageType::kDone; }
  MessageType operator()(const Abort& abort) const {
    write_reason(writer, abort.reason);
    return MessageType::kAbort;
  }
  MessageType operator()(const AbortAck&) const { return MessageType::kAbortAck; }
  MessageType operator()(const Queued&) const { return MessageType::kQueued; }
};

}  // namespace

std::uint64_t PageData::digest(std::int32_t page) const {
  TESSERA_CHECK(page >= 0 && page < num_pages);
  return load<std::uint64_t>(digests, static_cast<std::size_t>(page) * 8);
}

std::expected<Message, ParseError> parse(std::span<const std::byte> bytes) {
  ParseError error;
  const auto refuse = [&error](base::Status status) {
    error.status = std::move(status);
    return std::unexpected(error);
  };
  if (std::ssize(bytes) < kHeaderBytes) {
    return refuse(damaged(std::to_string(bytes.size()) + " bytes; a header has " + std::to_string(kHeaderBytes)));
  }
  if (load<std::uint32_t>(bytes, 0) != kMagic) return refuse(damaged("not of this protocol"));
  if (checksum(bytes.first(kHeaderChecksumOffset)) != load<std::uint64_t>(bytes, kHeaderChecksumOffset)) {
    return refuse(damaged("header checksum"));
  }
  const auto version = load<std::uint16_t>(bytes, 4);
  const auto type = static_cast<MessageType>(load<std::uint16_t>(bytes, kTypeOffset));
  error.has_header = true;
  error.header = Header{type, load<SessionId>(bytes, kSessionOffset), load<HandoffId>(bytes, kHandoffOffset)};
  if (version != kVersion) {
    return refuse(base::unimplemented("handoff protocol version " + std::to_string(version) + "; expected " +
                                      std::to_string(kVersion)));
  }
  if (load<std::uint32_t>(bytes, kReservedOffset) != 0) return refuse(malformed("reserved bytes that are not zero"));
  const auto body = bytes.subspan(kHeaderBytes);
  if (load<std::uint32_t>(bytes, kBodyBytesOffset) != body.size()) {
    return refuse(damaged("a body of " + std::to_string(body.size()) + " bytes; its header says " +
                          std::to_string(load<std::uint32_t>(bytes, kBodyBytesOffset))));
  }
  const std::uint64_t expected = load<std::uint64_t>(bytes, kBodyChecksumOffset);
  if (const std::uint64_t found = checksum(body); found != expected) {
    return refuse(damaged(fmt::format("body checksum: expected {:#x}, found {:#x}", expected, found)));
  }
  base::Result<Body> parsed = parse_body(type, body);
  if (!parsed.has_value()) return refuse(std::move(parsed.error()));
  return Message{error.header, std::move(*parsed)};
}

std::vector<std::byte> encode(SessionId session, HandoffId handoff, const Body& body) {
  std::vector<std::byte> message(kHeaderBytes);
  Writer writer(message);
  const MessageType type = std::visit(BodyWriter{writer}, body);
  write_header(message, type, session, handoff);
  seal(message);
  return message;
}

base::Status check_compatible(const Hello& sender, const Hello& receiver) {
  const auto differ = [](std::string_view what, const auto& a, const auto& b) {
    return base::invalid_argument("handoff: " + std::string(what) + " is " + std::to_string(a) + " on prefill, " +
                                  std::to_string(b) + " on decode");
  };
  const ops::KvLayout& from = sender.layout;
  const ops::KvLayout& to = receiver.layout;
  if (sender.model_digest != receiver.model_digest) return base::invalid_argument("handoff: the models differ");
  if (sender.shard_count != receiver.shard_count) {
    return differ("the number of shards", sender.shard_count, receiver.shard_count);
  }
  if (sender.shard_index != receiver.shard_index) return differ("the shard", sender.shard_index, receiver.shard_index);
  if (from.num_layers != to.num_layers) return differ("the number of layers", from.num_layers, to.num_layers);
  if (from.page_size != to.page_size) return differ("the page size", from.page_size, to.page_size);
  if (from.num_parts != to.num_parts) return differ("the number of KV parts", from.num_parts, to.num_parts);
  for (int p = 0; p < from.num_parts; ++p) {
    const ops::KvPart& a = from.parts[static_cast<std::size_t>(p)];
    const ops::KvPart& b = to.parts[static_cast<std::size_t>(p)];
    if (a.kind != b.kind) return base::invalid_argument("handoff: the kinds of a KV part differ");
    if (a.elements != b.elements) return differ("the width of a KV part", a.elements, b.elements);
    if (a.scales != b.scales || a.first_group != b.first_group || a.other_groups != b.other_groups) {
      return base::invalid_argument("handoff: the scale groups of a KV part differ");
    }
  }
  if (from.index_layers != to.index_layers) {
    return base::invalid_argument("handoff: the layers that have index keys differ");
  }
  TESSERA_RETURN_IF_ERROR(ops::check_conversion(from.format, to.format).with_context("handoff"));
  const std::int64_t least = page_data_bytes(1, to.page_layer_bytes_max());
  if (to.page_layer_bytes_max() > from.page_layer_bytes_max()) {
    return base::invalid_argument("handoff: a page is larger in the decode engine's format than in prefill's");
  }
  const std::int64_t most = std::min(sender.message_bytes_max, receiver.message_bytes_max);
  if (most < least) return differ("the largest message, against one page of KV,", most, least);
  return base::ok_status();
}

std::int64_t page_data_bytes(std::int64_t num_pages, std::int64_t page_bytes) {
  return kHeaderBytes + kPageDataFieldsBytes + num_pages * (8 + page_bytes);
}

std::int64_t page_data_pages_max(std::int64_t message_bytes, std::int64_t page_bytes) {
  return (message_bytes - page_data_bytes(0, page_bytes)) / (8 + page_bytes);
}

std::vector<std::byte> make_page_data(SessionId session, HandoffId handoff, std::int32_t layer, std::int32_t first_page,
                                      std::int32_t num_pages, std::int64_t page_bytes) {
  TESSERA_CHECK(num_pages >= 1 && page_bytes >= 1);
  std::vector<std::byte> message(static_cast<std::size_t>(page_data_bytes(num_pages, page_bytes)));
  write_header(message, MessageType::kPageData, session, handoff);
  const std::span<std::byte> fields = std::span(message).subspan(kHeaderBytes);
  store(fields, 0, layer);
  store(fields, 4, first_page);
  store(fields, 8, num_pages);
  store(fields, 16, page_bytes);
  return message;
}

std::span<std::byte> page_data_images(std::span<std::byte> message) {
  const std::int32_t num_pages = load<std::int32_t>(message, kHeaderBytes + 8);
  return message.subspan(static_cast<std::size_t>(kHeaderBytes + kPageDataFieldsBytes + std::int64_t{num_pages} * 8));
}

void set_page_data_digest(std::span<std::byte> message, std::int32_t page, std::uint64_t digest) {
  TESSERA_CHECK(page >= 0 && page < load<std::int32_t>(message, kHeaderBytes + 8));
  store(message, static_cast<std::size_t>(kHeaderBytes + kPageDataFieldsBytes + std::int64_t{page} * 8), digest);
}

void seal(std::span<std::byte> message) {
  TESSERA_CHECK(std::ssize(message) >= kHeaderBytes);
  store(message, kBodyChecksumOffset, checksum(message.subspan(kHeaderBytes)));
  store(message, kHeaderChecksumOffset, checksum(message.first(kHeaderChecksumOffset)));
}

}  // namespace tessera::kv_transfer::wire
