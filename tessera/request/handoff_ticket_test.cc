#include "tessera/request/handoff_ticket.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace tessera::request {
namespace {

HandoffTicket sample_ticket() {
  HandoffTicket ticket;
  ticket.spec.id = 0x1234567890abcdefull;
  ticket.spec.request_id = "req-7";
  ticket.spec.tenant = "tenant";
  ticket.spec.prompt = {0, 1, 163839};
  ticket.spec.sampling.temperature = 0.5f;
  ticket.spec.sampling.top_p = 0.75f;
  ticket.spec.sampling.top_k = 40;
  ticket.spec.sampling.seed = ~0ull;
  ticket.spec.sampling.max_tokens = 77;
  ticket.spec.sampling.ignore_eos = true;
  ticket.spec.sampling.stop_token_ids = {2, 5};
  ticket.spec.sampling.logprobs = true;
  ticket.spec.sampling.top_logprobs = 3;
  ticket.generated = {9, 8};
  ticket.integrity_recomputes = 2;
  return ticket;
}

TEST(HandoffTicket, RoundTripKeepsEveryField) {
  const HandoffTicket ticket = sample_ticket();
  const auto bytes = encode_ticket(ticket);
  const auto back = decode_ticket(bytes);
  ASSERT_TRUE(back.has_value()) << back.error().to_string();
  EXPECT_EQ(back->spec.id, ticket.spec.id);
  EXPECT_EQ(back->spec.request_id, ticket.spec.request_id);
  EXPECT_EQ(back->spec.tenant, ticket.spec.tenant);
  EXPECT_EQ(back->spec.prompt, ticket.spec.prompt);
  EXPECT_EQ(back->spec.sampling.temperature, 0.5f);
  EXPECT_EQ(back->spec.sampling.top_p, 0.75f);
  EXPECT_EQ(back->spec.sampling.top_k, 40);
  EXPECT_EQ(back->spec.sampling.seed, ~0ull);
  EXPECT_EQ(back->spec.sampling.max_tokens, 77);
  EXPECT_TRUE(back->spec.sampling.ignore_eos);
  EXPECT_EQ(back->spec.sampling.stop_token_ids, ticket.spec.sampling.stop_token_ids);
  EXPECT_TRUE(back->spec.sampling.logprobs);
  EXPECT_EQ(back->spec.sampling.top_logprobs, 3);
  EXPECT_EQ(back->generated, ticket.generated);
  EXPECT_EQ(back->integrity_recomputes, 2);
}

TEST(HandoffTicket, EveryTruncationAndAnExtraByteAreRefused) {
  auto bytes = encode_ticket(sample_ticket());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const auto back = decode_ticket(std::span(bytes).first(size));
    ASSERT_FALSE(back.has_value()) << size;
    EXPECT_EQ(back.error().code(), base::StatusCode::kInvalidArgument);
  }
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(decode_ticket(bytes).has_value());
}

TEST(HandoffTicket, ImplausibleFieldsAreRefused) {
  const auto refused = [](auto change) {
    HandoffTicket ticket = sample_ticket();
    change(ticket);
    return !decode_ticket(encode_ticket(ticket)).has_value();
  };
  EXPECT_FALSE(refused([](HandoffTicket&) {}));
  EXPECT_TRUE(refused([](HandoffTicket& t) { t.spec.id = 0; }));
  EXPECT_TRUE(refused([](HandoffTicket& t) { t.spec.prompt.clear(); }));
  EXPECT_TRUE(refused([](HandoffTicket& t) { t.spec.prompt[1] = -1; }));
  EXPECT_TRUE(refused([](HandoffTicket& t) { t.spec.prompt[1] = std::numeric_limits<std::int32_t>::max(); }));
  EXPECT_TRUE(refused([](HandoffTicket& t) { t.generated.clear(); }));
  EXPECT_TRUE(refused([](HandoffTicket& t) { t.spec.sampling.temperature = std::nanf(""); }));
  EXPECT_TRUE(refused([](HandoffTicket& t) { t.spec.sampling.top_p = 1.5f; }));
  EXPECT_TRUE(refused([](HandoffTicket& t) { t.spec.sampling.max_tokens = 0; }));
  EXPECT_TRUE(refused([](HandoffTicket& t) { t.spec.sampling.top_logprobs = 21; }));
  EXPECT_TRUE(refused([](HandoffTicket& t) { t.integrity_recomputes = -1; }));
  EXPECT_TRUE(refused([](HandoffTicket& t) { t.spec.request_id.assign(5000, 'x'); }));
}

// Flipped bytes must give a ticket or an error, and never an allocation of what a corrupt length says.
TEST(HandoffTicket, FlippedBytesNeverCrash) {
  constexpr std::uint64_t kSeed = 20;
  std::mt19937_64 random(kSeed);
  const auto bytes = encode_ticket(sample_ticket());
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    auto flipped = bytes;
    for (int flips = 0; flips < 3; ++flips) {
      flipped[random() % flipped.size()] ^= static_cast<std::byte>(1u << (random() % 8));
    }
    refused += decode_ticket(flipped).has_value() ? 0 : 1;
  }
  EXPECT_GT(refused, 1000) << "seed " << kSeed;
}

}  // namespace
}  // namespace tessera::request
