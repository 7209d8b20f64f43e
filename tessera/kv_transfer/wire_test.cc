#include "tessera/kv_transfer/wire.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace tessera::kv_transfer::wire {
namespace {

using base::StatusCode;

std::vector<std::byte> bytes_of(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

Hello a_hello() {
  Hello hello;
  hello.layout = ops::gqa_kv_layout(ops::KvFormat::kF8E4M3, 30, 64, 3, 64);
  hello.shard_index = 1;
  hello.shard_count = 2;
  hello.chunk_pages_max = 16;
  hello.message_bytes_max = 1 << 20;
  hello.model_digest = "sha256:abc";
  return hello;
}

std::vector<std::byte> page_data() {
  std::vector<std::byte> message = make_page_data(7, 8, 2, 5, 3, 16);
  const auto images = page_data_images(message);
  for (std::size_t i = 0; i < images.size(); ++i) images[i] = static_cast<std::byte>(i);
  for (std::int32_t page = 0; page < 3; ++page) {
    set_page_data_digest(message, page, 0x1122334455667788u + static_cast<unsigned>(page));
  }
  seal(message);
  return message;
}

// One message of every type.
std::vector<std::vector<std::byte>> samples() {
  static const std::vector<std::byte> blob = bytes_of({1, 2, 3});
  Offer offer;
  offer.kv_len = 200;
  offer.num_pages = 4;
  offer.digest_key = 99;
  offer.timeout_ns = 1000;
  offer.blob = blob;
  return {encode(7, 0, a_hello()),
          encode(7, 8, offer),
          encode(7, 8, Accept{2}),
          encode(7, 8, Reject{base::resource_exhausted("full")}),
          page_data(),
          encode(7, 8, Commit{42}),
          encode(7, 8, Done{}),
          encode(7, 8, Abort{base::corruption("digest")}),
          encode(7, 8, AbortAck{}),
          encode(7, 8, Queued{})};
}

template <typename T>
void put(std::vector<std::byte>& message, std::size_t offset, T value) {
  std::memcpy(message.data() + offset, &value, sizeof(value));
}

TEST(Wire, EveryMessageRoundTrips) {
  const auto messages = samples();
  for (std::size_t type = 0; type < messages.size(); ++type) {
    const auto parsed = parse(messages[type]);
    ASSERT_TRUE(parsed.has_value()) << parsed.error().status.message();
    EXPECT_EQ(parsed->body.index(), type);
    EXPECT_EQ(static_cast<std::size_t>(parsed->header.type), type + 1);
    EXPECT_EQ(parsed->header.session, 7u);
    EXPECT_EQ(parsed->header.handoff, type == 0 ? 0u : 8u);
  }
  const Hello hello = std::get<Hello>(parse(messages[0])->body);
  EXPECT_EQ(hello.layout, a_hello().layout);
  EXPECT_EQ(hello.layout.parts[1].first_group, 64);
  EXPECT_EQ(hello.layout.parts[1].other_groups, 64);
  EXPECT_EQ(hello.shard_index, 1u);
  EXPECT_EQ(hello.shard_count, 2u);
  EXPECT_EQ(hello.chunk_pages_max, 16);
  EXPECT_EQ(hello.message_bytes_max, 1 << 20);
  EXPECT_EQ(hello.model_digest, "sha256:abc");
  const Offer offer = std::get<Offer>(parse(messages[1])->body);
  EXPECT_EQ(offer.kv_len, 200);
  EXPECT_EQ(offer.num_pages, 4);
  EXPECT_EQ(offer.digest_key, 99u);
  EXPECT_EQ(offer.timeout_ns, 1000);
  EXPECT_EQ(std::vector(offer.blob.begin(), offer.blob.end()), bytes_of({1, 2, 3}));
  EXPECT_EQ(std::get<Accept>(parse(messages[2])->body).first_page, 2);
  EXPECT_EQ(std::get<Reject>(parse(messages[3])->body).reason, base::resource_exhausted("full"));
  const PageData data = std::get<PageData>(parse(messages[4])->body);
  EXPECT_EQ(data.layer, 2);
  EXPECT_EQ(data.first_page, 5);
  EXPECT_EQ(data.num_pages, 3);
  EXPECT_EQ(data.page_bytes, 16);
  EXPECT_EQ(data.digest(2), 0x112233445566778au);
  ASSERT_EQ(data.images.size(), 48u);
  EXPECT_EQ(data.images[47], std::byte{47});
  EXPECT_EQ(std::get<Commit>(parse(messages[5])->body).combined_digest, 42u);
  EXPECT_EQ(std::get<Abort>(parse(messages[7])->body).reason, base::corruption("digest"));
}

// The bytes that docs/kv_page.md promises, but for the checksums.
TEST(Wire, BytesAreAsDocumented) {
  std::vector<std::byte> message = encode(0x0102030405060708u, 0x1112131415161718u, Accept{0x21222324});
  ASSERT_EQ(message.size(), 52u);
  std::fill(message.begin() + 32, message.begin() + 48, std::byte{0});
  EXPECT_EQ(message, bytes_of({'T',  'S',  'K',  'V',  3,    0,    3, 0, 8, 7, 6, 5, 4,    3,    2,    1,   0x18, 0x17,
                               0x16, 0x15, 0x14, 0x13, 0x12, 0x11, 4, 0, 0, 0, 0, 0, 0,    0,    0,    0,   0,    0,
                               0,    0,    0,    0,    0,    0,    0, 0, 0, 0, 0, 0, 0x24, 0x23, 0x22, 0x21}));
}

TEST(Wire, EveryTruncationIsRefused) {
  for (const auto& message : samples()) {
    for (std::size_t length = 0; length < message.size(); ++length) {
      const auto parsed = parse(std::span(message).first(length));
      ASSERT_FALSE(parsed.has_value()) << length;
      EXPECT_EQ(parsed.error().status.code(), StatusCode::kDataLoss);
      // A whole header still says whose message it was.
      EXPECT_EQ(parsed.error().has_header, length >= static_cast<std::size_t>(kHeaderBytes));
    }
    std::vector<std::byte> longer = message;
    longer.push_back(std::byte{0});
    EXPECT_FALSE(parse(longer).has_value());
  }
}

TEST(Wire, EveryFlippedBitIsRefused) {
  for (const auto& original : samples()) {
    std::vector<std::byte> message = original;
    for (std::size_t bit = 0; bit < message.size() * 8; ++bit) {
      message[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      const auto parsed = parse(message);
      ASSERT_FALSE(parsed.has_value()) << bit;
      EXPECT_EQ(parsed.error().has_header, bit / 8 >= static_cast<std::size_t>(kHeaderBytes)) << bit;
      message[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    }
  }
}

// What a sound header says of its body: every bit of the checksum counts, and the size.
TEST(Wire, ABodyThatIsNotItsHeadersIsRefused) {
  for (const auto& original : samples()) {
    for (std::size_t bit = 0; bit < 64; ++bit) {
      std::vector<std::byte> message = original;
      message[32 + bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      put(message, 40, std::uint64_t{XXH3_64bits(message.data(), 40)});
      const auto parsed = parse(message);
      ASSERT_FALSE(parsed.has_value()) << bit;
      EXPECT_EQ(parsed.error().status.code(), StatusCode::kDataLoss);
      EXPECT_TRUE(parsed.error().has_header);
    }
    const auto body_bytes = static_cast<std::uint32_t>(original.size() - static_cast<std::size_t>(kHeaderBytes));
    for (const std::uint32_t wrong : {body_bytes + 1, body_bytes - 1, body_bytes ^ 0x80000000u}) {
      std::vector<std::byte> message = original;
      put(message, 24, wrong);
      seal(message);
      const auto parsed = parse(message);
      ASSERT_FALSE(parsed.has_value()) << wrong;
      EXPECT_EQ(parsed.error().status.code(), StatusCode::kDataLoss);
    }
  }
}

// With right checksums, so that the fields themselves are judged.
TEST(Wire, FieldsOutOfRangeAreRefused) {
  const auto messages = samples();
  const auto refused = [&](std::size_t type, std::size_t offset, auto value) {
    std::vector<std::byte> message = messages[type];
    put(message, static_cast<std::size_t>(kHeaderBytes) + offset, value);
    seal(message);
    return !parse(message).has_value();
  };
  constexpr auto kLeast = std::numeric_limits<std::int32_t>::min();
  constexpr auto kMost = std::numeric_limits<std::int32_t>::max();
  // Hello: format, parts, layers, page size, elements, scales, kinds, index layers, shards, chunk, message, digest
  // length.
  EXPECT_TRUE(refused(0, 0, std::uint8_t{3}));
  EXPECT_TRUE(refused(0, 1, std::uint8_t{0}));
  EXPECT_TRUE(refused(0, 1, std::uint8_t{4}));
  for (const std::size_t offset : {4u, 8u, 12u, 208u}) {
    for (const std::int32_t value : {kLeast, -1, 0, kMost}) EXPECT_TRUE(refused(0, offset, value)) << offset;
  }
  EXPECT_TRUE(refused(0, 16, kMost));
  EXPECT_TRUE(refused(0, 52, std::int32_t{1}));   // A part that the layout does not have.
  EXPECT_TRUE(refused(0, 28, std::uint32_t{1}));  // Index keys before the last part.
  EXPECT_TRUE(refused(0, 48, std::uint32_t{2}));
  EXPECT_TRUE(refused(0, 68, std::uint32_t{1}));
  EXPECT_TRUE(refused(0, 72, std::uint64_t{1}));  // A layer with index keys, without such a part.
  EXPECT_TRUE(refused(0, 200, std::uint32_t{2}));
  EXPECT_TRUE(refused(0, 204, std::uint32_t{0}));
  EXPECT_TRUE(refused(0, 212, std::int64_t{0}));
  EXPECT_TRUE(refused(0, 220, std::uint16_t{65535}));
  // Offer: length, pages, timeout, blob length.
  for (const std::int32_t value : {kLeast, -1, 0, kMost}) EXPECT_TRUE(refused(1, 0, value));
  for (const std::int32_t value : {kLeast, -1, 0, 201, kMost}) EXPECT_TRUE(refused(1, 4, value));
  EXPECT_TRUE(refused(1, 16, std::int64_t{0}));
  for (const std::uint32_t value : {0u, 2u, 4u, 0xffffffffu}) EXPECT_TRUE(refused(1, 24, value));
  // Accept: first page.
  EXPECT_TRUE(refused(2, 0, std::int32_t{-1}));
  // Reject: code, length.
  EXPECT_TRUE(refused(3, 0, std::uint16_t{11}));
  EXPECT_TRUE(refused(3, 2, std::uint16_t{65535}));
  // PageData: layer, first page, pages, page bytes.
  for (const std::size_t offset : {0u, 4u}) {
    for (const std::int32_t value : {kLeast, -1, kMost}) EXPECT_TRUE(refused(4, offset, value)) << offset;
  }
  for (const std::int32_t value : {kLeast, -1, 0, 1, 2, 4, kMost}) EXPECT_TRUE(refused(4, 8, value)) << value;
  EXPECT_TRUE(refused(4, 12, std::uint32_t{1}));
  for (const std::int64_t value : {std::numeric_limits<std::int64_t>::min(), std::int64_t{-1}, std::int64_t{0},
                                   std::int64_t{17}, std::numeric_limits<std::int64_t>::max()}) {
    EXPECT_TRUE(refused(4, 16, value)) << value;
  }
}

TEST(Wire, OtherTypesAndVersionsAreNamed) {
  std::vector<std::byte> message = encode(7, 8, Done{});
  put(message, 6, std::uint16_t{77});
  seal(message);
  EXPECT_EQ(parse(message).error().status.code(), StatusCode::kInternal);
  message = encode(7, 8, Done{});
  for (const int version : {1, 2, 4}) {
    put(message, 4, static_cast<std::uint16_t>(version));
    seal(message);
    const auto parsed = parse(message);
    ASSERT_FALSE(parsed.has_value());
    EXPECT_EQ(parsed.error().status.code(), StatusCode::kUnimplemented);
    EXPECT_NE(parsed.error().status.message().find("version " + std::to_string(version)), std::string::npos);
  }
}

TEST(Wire, ReservedBytesAreZero) {
  std::vector<std::byte> message = encode(7, 8, Done{});
  put(message, 28, std::uint32_t{1});
  seal(message);
  EXPECT_FALSE(parse(message).has_value());
}

TEST(Wire, ReasonsAreCutAndMadePrintable) {
  const auto message = encode(1, 2, Abort{base::Status(StatusCode::kCancelled, std::string(2000, 'x'))});
  EXPECT_EQ(std::get<Abort>(parse(message)->body).reason.message().size(), static_cast<std::size_t>(kReasonBytesMax));
  const auto rude = encode(1, 2, Abort{base::internal_error("a\n\x1b[31mb\xff")});
  EXPECT_EQ(std::get<Abort>(parse(rude)->body).reason, base::internal_error("a??[31mb?"));
}

TEST(Wire, GarbageIsRefused) {
  std::mt19937 rng(5);
  const auto messages = samples();
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::byte> bytes(rng() % 300);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng());
    EXPECT_FALSE(parse(bytes).has_value());
    // With the header of a real message, and right checksums: whatever is accepted must hold together.
    if (bytes.size() < static_cast<std::size_t>(kHeaderBytes)) continue;
    std::vector<std::byte> message = bytes;
    const auto& sample = messages[static_cast<std::size_t>(i % 9)];
    std::copy_n(sample.begin(), kHeaderBytes, message.begin());
    put(message, 24, static_cast<std::uint32_t>(message.size() - static_cast<std::size_t>(kHeaderBytes)));
    seal(message);
    const auto parsed = parse(message);
    if (!parsed.has_value()) continue;
    if (const auto* data = std::get_if<PageData>(&parsed->body)) {
      EXPECT_EQ(std::ssize(data->images), data->num_pages * data->page_bytes);
    }
  }
}

Hello an_indexed_hello() {
  Hello hello = a_hello();
  ops::LayerSet index_layers;
  for (const std::int32_t layer : {0, 5, 63, 64, 77}) index_layers.insert(layer);
  hello.layout = ops::mla_kv_layout(ops::KvFormat::kBF16, 78, 64, 512, 64, 128, index_layers);
  return hello;
}

TEST(Wire, LayoutsWithIndexKeysRoundTrip) {
  const Hello hello = an_indexed_hello();
  const auto parsed = parse(encode(7, 0, hello));
  ASSERT_TRUE(parsed.has_value()) << parsed.error().status.message();
  EXPECT_EQ(std::get<Hello>(parsed->body).layout, hello.layout);
}

TEST(Wire, LayoutsWithMisplacedIndexKeysAreRefused) {
  const auto refused = [](auto change) {
    Hello hello = an_indexed_hello();
    change(hello.layout);
    const auto parsed = parse(encode(7, 0, hello));
    return !parsed.has_value() && parsed.error().status.code() == StatusCode::kInternal;
  };
  EXPECT_FALSE(refused([](ops::KvLayout&) {}));
  EXPECT_TRUE(refused([](ops::KvLayout& l) { l.index_layers.insert(78); }));
  EXPECT_TRUE(refused([](ops::KvLayout& l) { l.index_layers.insert(1023); }));
  EXPECT_TRUE(refused([](ops::KvLayout& l) { l.num_parts = 1; }));  // Layers are named, and there is no such part.
  EXPECT_TRUE(refused([](ops::KvLayout& l) { l.parts[1].kind = ops::KvPartKind::kValues; }));
  EXPECT_TRUE(refused([](ops::KvLayout& l) { l.parts[0].kind = ops::KvPartKind::kIndexKeys; }));
  EXPECT_TRUE(refused([](ops::KvLayout& l) { l.parts[1].kind = static_cast<ops::KvPartKind>(2); }));
  EXPECT_TRUE(refused([](ops::KvLayout& l) {
    l.num_parts = 1;
    l.parts[0].kind = ops::KvPartKind::kIndexKeys;
  }));
}

TEST(WireCompatibility, NamesTheDifferenceOfIndexKeys) {
  const Hello receiver = an_indexed_hello();
  EXPECT_TRUE(check_compatible(receiver, receiver).ok());
  Hello sender = receiver;
  sender.layout.index_layers.insert(6);
  EXPECT_NE(check_compatible(sender, receiver).message().find("index keys"), std::string::npos);
  sender = receiver;
  sender.layout.parts[1].kind = ops::KvPartKind::kValues;
  EXPECT_NE(check_compatible(sender, receiver).message().find("kinds"), std::string::npos);
}

TEST(WireCompatibility, NamesTheDifference) {
  Hello receiver = a_hello();
  Hello sender = a_hello();
  sender.layout.format = ops::KvFormat::kBF16;
  EXPECT_TRUE(check_compatible(sender, receiver).ok());
  EXPECT_TRUE(check_compatible(receiver, receiver).ok());
  const auto refusal = [&](auto change) {
    Hello changed = sender;
    change(changed);
    const base::Status status = check_compatible(changed, receiver);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  using ::std::string;
  const auto names = [](const string& message, const char* what) { return message.find(what) != string::npos; };
  EXPECT_TRUE(names(refusal([](Hello& h) { h.model_digest = "x"; }), "models"));
  EXPECT_TRUE(names(refusal([](Hello& h) { h.shard_count = 4; }), "shards"));
  EXPECT_TRUE(names(refusal([](Hello& h) { h.shard_index = 0; }), "shard"));
  EXPECT_TRUE(names(refusal([](Hello& h) { h.layout.num_layers = 31; }), "layers"));
  EXPECT_TRUE(names(refusal([](Hello& h) { h.layout.page_size = 32; }), "page size"));
  EXPECT_TRUE(names(refusal([](Hello& h) { h.layout.num_parts = 1; }), "parts"));
  EXPECT_TRUE(names(refusal([](Hello& h) { h.layout.parts[1].elements = 64; }), "width"));
  EXPECT_TRUE(names(refusal([](Hello& h) { h.layout.parts[1].first_group = 32; }), "scale groups"));
  EXPECT_TRUE(names(refusal([](Hello& h) { h.layout.format = ops::KvFormat::kF32; }), "f32 to fp8_e4m3"));
  EXPECT_TRUE(names(refusal([](Hello& h) { h.message_bytes_max = 1000; }), "message"));
}

}  // namespace
}  // namespace tessera::kv_transfer::wire
