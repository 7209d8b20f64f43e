// A device that fails while engines serve: every request ends with that, no page is called damaged, nothing is computed
// again, and the server says that it is not ready and why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tessera/ops/forwarding_backend.h"
#include "tests/serving/serving_harness.h"

namespace tessera::test_support {
namespace {

using testing::HasSubstr;

// From lose(), or so many reads of its memory, on it is as ops::Backend::health says: what is read back is 0xff bytes.
// It knows that it is lost once somebody has read from it.
class LosableBackend final : public ops::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  void lose() { lost_ = true; }
  void lose_at_read(std::int64_t read) { lost_at_read_ = read; }
  std::int64_t reads() const { return reads_; }
  base::Status health() const override {
    return noticed_ ? base::internal_error("it fell off its bus") : ForwardingBackend::health();
  }
  void copy_to_host(ops::Stream& stream, void* host, const void* device, std::int64_t bytes) override {
    if (++reads_ == lost_at_read_) lost_ = true;
    if (lost_) {
      noticed_ = true;
      std::memset(host, 0xff, static_cast<std::size_t>(bytes));
    } else {
      ForwardingBackend::copy_to_host(stream, host, device, bytes);
    }
  }

 private:
  bool lost_ = false;
  bool noticed_ = false;
  std::int64_t reads_ = 0;
  std::int64_t lost_at_read_ = 0;
};

class DeviceFailureTest : public testing::TestWithParam<kv_cache::IntegrityLevel> {
 protected:
  HarnessOptions options(Pools pools) {
    HarnessOptions options;
    options.pools = pools;
    options.backend = &backend_;
    options.integrity.level = GetParam();
    options.integrity.on_error = kv_cache::OnIntegrityError::kRecompute;
    return options;
  }
  static void expect_no_finding(engine::Engine& engine) {
    const request::EngineStats stats = engine.loop().stats();
    EXPECT_EQ(stats.check_failures, 0);
    EXPECT_EQ(stats.digest_failures, 0);
    EXPECT_EQ(stats.integrity_recomputes, 0);
    EXPECT_EQ(stats.audit_failures, 0);
    EXPECT_EQ(stats.audited_pages_kept, 0);
    EXPECT_TRUE(stats.device_failed);
    EXPECT_EQ(stats.pages_leased, 0);
  }
  static void expect_not_ready(ServingHarness& harness) {
    harness.clock().advance(std::chrono::seconds(2));
    for (int i = 0; i < 4; ++i) harness.turn();
    EXPECT_EQ(harness.router().readiness().code(), base::StatusCode::kUnavailable);
    EXPECT_THAT(harness.router().readiness().message(), HasSubstr("the device of engine"));
  }

  std::unique_ptr<ops::Backend> reference_ = backends::cpu::make_reference_backend();
  LosableBackend backend_{*reference_};
};
INSTANTIATE_TEST_SUITE_P(Levels, DeviceFailureTest,
                         testing::Values(kv_cache::IntegrityLevel::kTags, kv_cache::IntegrityLevel::kDigest,
                                         kv_cache::IntegrityLevel::kDigestStep));

TEST_P(DeviceFailureTest, WithinAStepEndsEveryRequestAndIsNoFindingAboutPages) {
  int steps = 0;
  HarnessOptions with = options(Pools::kUnified);
  with.on_first_batch = [&](const models::ForwardBatch&) {
    if (++steps == 6) backend_.lose();
  };
  ServingHarness harness(with);
  const auto prompt = make_prompt(1, 21);
  const auto other_prompt = make_prompt(2, 9);
  const auto id = harness.submit(prompt, 30);
  const auto other = harness.submit(other_prompt, 30);
  harness.run_until_ended();
  for (const auto& [sequence, given] : {std::pair{id, prompt}, {other, other_prompt}}) {
    const Heard heard = harness.heard(sequence);
    ASSERT_TRUE(heard.failed.has_value());
    EXPECT_EQ(heard.failed->code(), base::StatusCode::kInternal);
    EXPECT_THAT(heard.failed->message(), HasSubstr("device"));
    EXPECT_EQ(heard.terminals, 1);
    // What was emitted before was right.
    const auto emitted = heard.ids();
    EXPECT_EQ(emitted, harness.expected(given, std::ssize(emitted)));
  }
  EXPECT_EQ(steps, 6);
  expect_no_finding(harness.first());
  EXPECT_EQ(harness.first().loop().stats().pages_quarantined, 0);
  expect_not_ready(harness);

  // Whoever comes now is told, at once, and nothing is computed.
  const auto late = harness.submit(prompt, 5);
  harness.run_until_ended();
  ASSERT_TRUE(harness.heard(late).failed.has_value());
  EXPECT_EQ(harness.heard(late).failed->code(), base::StatusCode::kUnavailable);
  EXPECT_EQ(steps, 6);
  harness.router().flush_prefix_cache();
  harness.router().audit_quarantined_pages();
  for (int i = 0; i < 4; ++i) harness.turn();
  expect_no_finding(harness.first());
}

// In every turn of a request's life, and with whatever is read of the device: so in every state of its handoff, and in
// each of the handoff's checks. Pages into which a write was under way are kept out of service, as after any handoff
// that breaks off.
TEST_P(DeviceFailureTest, EndsHandoffsToo) {
  const auto prompt = make_prompt(3, 21);
  const auto lose_during = [&](LosableBackend& backend, auto when) {
    HarnessOptions with = options(Pools::kSplit);
    with.backend = &backend;
    ServingHarness harness(with);
    const auto id = harness.submit(prompt, 12);
    when(harness, backend);
    const bool ended_before = harness.heard(id).ended();
    harness.run_until_ended();
    const Heard heard = harness.heard(id);
    EXPECT_EQ(heard.terminals, 1);
    if (!ended_before && heard.failed.has_value()) {
      EXPECT_NE(heard.failed->code(), base::StatusCode::kCorruption) << heard.failed->to_string();
    }
    const auto emitted = heard.ids();
    EXPECT_EQ(emitted, harness.expected(prompt, std::ssize(emitted)));
    // Whoever has not read from it since learns of it from what it does next.
    harness.submit(make_prompt(4, 9), 2);
    harness.run_until_ended();
    expect_not_ready(harness);
    expect_no_finding(harness.first());
    expect_no_finding(harness.decode());
  };
  for (int turns = 1; turns < 24; ++turns) {
    SCOPED_TRACE(turns);
    LosableBackend backend(*reference_);
    lose_during(backend, [&](ServingHarness& harness, LosableBackend& device) {
      for (int i = 0; i < turns; ++i) harness.turn();
      device.lose();
    });
  }
  LosableBackend sound(*reference_);
  std::int64_t first = 0;
  {
    HarnessOptions with = options(Pools::kSplit);
    with.backend = &sound;
    ServingHarness harness(with);
    first = sound.reads();
    harness.submit(prompt, 12);
    harness.run_until_ended();
  }
  ASSERT_GT(sound.reads(), first + 20);
  for (std::int64_t read = first + 1; read <= sound.reads(); ++read) {
    SCOPED_TRACE(read);
    LosableBackend backend(*reference_);
    backend.lose_at_read(read);
    lose_during(backend, [](ServingHarness&, LosableBackend&) {});
  }
}

// Nothing reads from the device until its pages are counted, a minute later.
TEST_P(DeviceFailureTest, OfAnIdleEngineIsTold) {
  HarnessOptions with = options(Pools::kUnified);
  with.integrity.sweep_pages_per_second = 0;
  ServingHarness harness(with);
  harness.submit(make_prompt(4, 9), 3);
  harness.run_until_ended();
  EXPECT_TRUE(harness.router().readiness().ok());
  backend_.lose();
  harness.clock().advance(std::chrono::minutes(5));
  for (int i = 0; i < 4; ++i) harness.turn();
  expect_not_ready(harness);
  expect_no_finding(harness.first());
}

}  // namespace
}  // namespace tessera::test_support
