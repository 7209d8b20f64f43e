// The messages of a handoff as bytes: a fixed, little-endian schema. docs/kv_page.md has it as tables.
//
// Every message is a header of kHeaderBytes and a body. The header has a checksum of its own, so that a message whose
// body was damaged or cut off can still be laid to the right handoff. parse() accepts any bytes: it allocates nothing
// that the message itself does not hold, and answers what is wrong with a status.
//
// Checksums (XXH3-64) guard the way; the digests of the pages (ops/page_transfer.h) guard what is stored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/ops/kv_layout.h"

namespace tessera::kv_transfer {

// Chosen by the sending engine: never 0, never twice in the life of a Sender.
using HandoffId = std::uint64_t;
// The life of one Sender: a random number that all messages of both directions carry, so that a peer that was started
// again is not taken for the one before.
using SessionId = std::uint64_t;

namespace wire {

inline constexpr std::uint32_t kMagic = 0x564b5354u;  // "TSKV"
inline constexpr std::uint16_t kVersion = 3;
inline constexpr std::int64_t kHeaderBytes = 48;
inline constexpr std::int64_t kModelDigestBytesMax = 128;
inline constexpr std::int64_t kReasonBytesMax = 512;
// The request blob of an offer: mostly the prompt's token ids, 4 bytes each.
inline constexpr std::int64_t kBlobBytesMax = 64 << 20;
// An offer without a blob.
inline constexpr std::int64_t kOfferBytesMin = kHeaderBytes + 28;

enum class MessageType : std::uint16_t {
  kHello = 1,
  kOffer = 2,
  kAccept = 3,
  kReject = 4,
  kPageData = 5,
  kCommit = 6,
  kDone = 7,
  kAbort = 8,
  kAbortAck = 9,
  kQueued = 10,
};

struct Header {
  MessageType type = MessageType::kHello;
  SessionId session = 0;
  HandoffId handoff = 0;  // 0 in Hello, and in a Reject of the whole session.
};

// Sender to receiver, and back as the answer: may the two hand over pages at all? See check_compatible.
struct Hello {
  ops::KvLayout layout;           // Of the one who says hello: the sender's source, the receiver's target.
  std::uint32_t shard_index = 0;  // Which rank of its engine, of how many.
  std::uint32_t shard_count = 1;
  std::int32_t chunk_pages_max = 0;  // The most pages that it takes in one PageData.
  std::int64_t message_bytes_max = 0;
  std::string model_digest;
};

// Sender to receiver: a sequence whose prompt is computed. blob is the engines' own business.
struct Offer {
  std::int32_t kv_len = 0;       // Tokens of KV, >= 1.
  std::int32_t num_pages = 0;    // ceil(kv_len / page_size)
  std::uint64_t digest_key = 0;  // Of all page digests of this handoff.
  std::int64_t timeout_ns = 0;   // How long the sender bears silence. A duration: clocks need not agree.
  std::span<const std::byte> blob;
};

// Receiver to sender: pages are allocated; logical pages first_page .. num_pages are wanted (those before it the
// receiver has in its prefix cache). first_page may be num_pages.
struct Accept {
  std::int32_t first_page = 0;
};

// Receiver to sender: no. For handoff 0: no to the session; `unavailable` then means "say hello (again) first".
struct Reject {
  base::Status reason;
};

// Sender to receiver: num_pages page images of one layer in the receiver's layout, with the digest of each.
struct PageData {
  std::int32_t layer = 0;
  std::int32_t first_page = 0;
  std::int32_t num_pages = 0;  // >= 1
  std::int64_t page_bytes = 0;
  std::span<const std::byte> digests;  // [num_pages] u64, little-endian; see digest().
  std::span<const std::byte> images;   // [num_pages, page_bytes]
  std::uint64_t digest(std::int32_t page) const;
};

// Sender to receiver: everything was sent.
struct Commit {
  std::uint64_t combined_digest = 0;  // Of all pages of all layers sent; see handoff.h.
};

// Receiver to sender: all is stored and verified; the sequence is the receiver's.
struct Done {};

// Either to the other: this handoff is over. Who sends it sends no page data of it afterwards.
struct Abort {
  base::Status reason;
};

// The answer to Abort: the one who sends it sends nothing more of this handoff.
struct AbortAck {};

// Receiver to sender: the offer waits for pages. Sender to receiver, now and then while it does: the offer stands; does
// it still wait? Both are signs of life, and no deadline runs between two that live.
struct Queued {};

using Body = std::variant<Hello, Offer, Accept, Reject, PageData, Commit, Done, Abort, AbortAck, Queued>;

// Views in it (blob, digests, images) point into the bytes that were parsed.
struct Message {
  Header header;
  Body body;
};

// What parse could not read. `header` is set when the header's own checksum was right: the handoff to blame.
struct ParseError {
  base::Status status;
  bool has_header = false;
  Header header;
};

std::expected<Message, ParseError> parse(std::span<const std::byte> bytes);

// header.type is taken from the body. Texts that are too long are cut; a blob or model digest that is too long is a
// programmer's error.
std::vector<std::byte> encode(SessionId session, HandoffId handoff, const Body& body);

// Whether a sender and a receiver that said these hellos can hand over pages: the same model, shards, layers, page size
// and parts, a conversion that exists, and messages large enough for one page. invalid_argument, naming the difference.
base::Status check_compatible(const Hello& sender, const Hello& receiver);

// PageData is filled in place, so that images are copied from the device straight into the message: make, fill digests
// and images, seal.
std::int64_t page_data_bytes(std::int64_t num_pages, std::int64_t page_bytes);
// How many pages fit in a message of that size.
std::int64_t page_data_pages_max(std::int64_t message_bytes, std::int64_t page_bytes);
std::vector<std::byte> make_page_data(SessionId session, HandoffId handoff, std::int32_t layer, std::int32_t first_page,
                                      std::int32_t num_pages, std::int64_t page_bytes);
std::span<std::byte> page_data_images(std::span<std::byte> message);
void set_page_data_digest(std::span<std::byte> message, std::int32_t page, std::uint64_t digest);
// Computes the checksums of a complete message.
void seal(std::span<std::byte> message);

}  // namespace wire
}  // namespace tessera::kv_transfer
