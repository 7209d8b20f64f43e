// How engines start: what they refuse, what they say about memory, and that a failed start leaves nothing behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/serving/serving_harness.h"
#include "tests/support/failing_backend.h"

namespace tessera::test_support {
namespace {

using testing::HasSubstr;

struct Start {
  std::unique_ptr<ops::Backend> backend = backends::cpu::make_reference_backend();
  tests::FailingBackend failing{*backend};
  ContextOracleModel model{failing, {}};
  request::EngineEventQueue events{1024};
  base::ManualClock clock;
  kv_transfer::LoopbackTransport transport{kv_transfer::LoopbackOptions{}};
  engine::EngineConfig config;

  Start() {
    config.id = 1;
    config.page_size = 4;
    config.pages = 16;
  }
  base::Result<std::unique_ptr<engine::Engine>> create() {
    return engine::Engine::create(
        config, {model, failing, events, clock,
                 config.role == request::EngineRole::kUnified ? nullptr : transport.make_endpoint(1)});
  }
  base::Status status() {
    auto made = create();
    return made.has_value() ? base::ok_status() : made.error();
  }
};

TEST(Start, NeedsPagesOrABudget) {
  Start start;
  start.config.pages = 0;
  EXPECT_EQ(start.status().code(), base::StatusCode::kInvalidArgument);
  EXPECT_THAT(start.status().message(), HasSubstr("number of KV pages or a memory budget"));
}

TEST(Start, LendsOpsScratchForWholePages) {
  // The page check passes a length of 32 in the eight pages of a row, whatever the context.
  Start start;
  start.config.context_tokens_max = 30;
  auto made = start.create();
  ASSERT_TRUE(made.has_value());
  EXPECT_EQ((*made)->info().context_tokens_max, 30);
  EXPECT_THAT((*made)->memory_plan().to_string(), HasSubstr(", 32 of context"));
}

TEST(Start, RefusesNumbersOutOfRangeByName) {
  const auto refusal = [](auto change) {
    Start start;
    change(start.config);
    const base::Status status = start.status();
    EXPECT_EQ(status.code(), base::StatusCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_THAT(refusal([](auto& c) { c.page_size = 0; }), HasSubstr("page size is 0"));
  EXPECT_THAT(refusal([](auto& c) { c.page_size = -4; }), HasSubstr("page size is -4"));
  EXPECT_THAT(refusal([](auto& c) { c.pages = 1ll << 40; }), HasSubstr("number of KV pages"));
  EXPECT_THAT(refusal([](auto& c) { c.running_max = 0; }), HasSubstr("running sequences"));
  EXPECT_THAT(refusal([](auto& c) { c.chunked_prefill_size = 0; }), HasSubstr("chunked prefill size"));
  EXPECT_THAT(refusal([](auto& c) { c.context_tokens_max = -1; }), HasSubstr("context length"));
  EXPECT_THAT(refusal([](auto& c) { c.memory_budget_bytes = -1; }), HasSubstr("memory budget"));
}

TEST(Start, SplitEnginesNeedATransportAndUnifiedOnesNone) {
  Start start;
  start.config.role = request::EngineRole::kDecode;
  auto none = engine::Engine::create(start.config, {start.model, start.failing, start.events, start.clock, nullptr});
  ASSERT_FALSE(none.has_value());
  EXPECT_THAT(none.error().message(), HasSubstr("transport endpoint"));
  start.config.role = request::EngineRole::kUnified;
  auto one = engine::Engine::create(
      start.config, {start.model, start.failing, start.events, start.clock, start.transport.make_endpoint(1)});
  EXPECT_FALSE(one.has_value());
}

TEST(Start, ABudgetThatIsTooSmallIsRefusedWithTheArithmetic) {
  Start start;
  start.config.pages = 1000;
  start.config.memory_budget_bytes = 200'000;
  const base::Status status = start.status();
  EXPECT_EQ(status.code(), base::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("1000 pages of 4 tokens"));
  EXPECT_THAT(status.message(), HasSubstr("weights"));
  EXPECT_THAT(status.message(), HasSubstr("page verifier"));
  EXPECT_THAT(status.message(), HasSubstr("of a budget of"));
}

TEST(Start, ABudgetAloneDecidesTheNumberOfPages) {
  for (const auto role : {request::EngineRole::kUnified, request::EngineRole::kPrefill, request::EngineRole::kDecode}) {
    Start start;
    start.config.integrity.level = kv_cache::IntegrityLevel::kDigestStep;
    start.config.role = role;
    start.config.pages = 0;
    start.config.context_tokens_max = 256;
    start.config.memory_budget_bytes = 1 << 20;
    auto made = start.create();
    ASSERT_TRUE(made.has_value()) << made.error().to_string();
    const engine::MemoryPlan& plan = (*made)->memory_plan();
    EXPECT_LE(plan.total(), 1 << 20);
    // One page more would not fit.
    const ops::KvLayout& layout = (*made)->loop().pool().layout();
    const std::int64_t pages = (*made)->info().pages;
    EXPECT_GT(plan.total() + engine::page_pool_bytes(layout, pages + 1) - engine::page_pool_bytes(layout, pages),
              1 << 20);
    EXPECT_GT((*made)->info().pages, 100);
    EXPECT_EQ((*made)->info().context_tokens_max, 256);
    EXPECT_THAT(plan.to_string(), HasSubstr("KV pages"));
  }
}

TEST(Start, ThePlanCountsWhatTheDeviceHolds) {
  Start start;
  auto made = start.create();
  ASSERT_TRUE(made.has_value());
  for (const engine::MemoryLine& line : (*made)->memory_plan().lines) {
    if (line.part == "KV pages") {
      EXPECT_LE((*made)->loop().pool().device_bytes(), line.bytes);
      EXPECT_GE((*made)->loop().pool().device_bytes() + 2048, line.bytes);
    }
  }
}

TEST(Start, EveryAllocationMayFail) {
  for (const auto role : {request::EngineRole::kUnified, request::EngineRole::kPrefill, request::EngineRole::kDecode}) {
    std::int64_t failures = 0;
    for (std::int64_t n = 1;; ++n) {
      Start start;
      start.config.role = role;
      start.config.integrity.level = kv_cache::IntegrityLevel::kDigestStep;
      start.failing.fail_nth_allocation(n);
      const base::Status status = start.status();
      if (!start.failing.failed()) {
        EXPECT_TRUE(status.ok());
        break;
      }
      ++failures;
      EXPECT_EQ(status.code(), base::StatusCode::kResourceExhausted) << n;
      EXPECT_THAT(status.message(), HasSubstr("engine 1")) << n;
    }
    EXPECT_GE(failures, 8);
  }
}

// Serving allocates no device memory.
TEST(Start, NothingIsAllocatedAfterwards) {
  Start start;
  start.config.integrity.level = kv_cache::IntegrityLevel::kDigestStep;
  auto made = start.create();
  ASSERT_TRUE(made.has_value());
  const std::int64_t before = start.failing.allocations();
  request::StartSequence command;
  command.spec.id = 1;
  command.spec.prompt = make_prompt(1, 20);
  command.spec.sampling = greedy(30);
  ASSERT_TRUE((*made)->try_send(command));
  for (int i = 0; i < 100; ++i) (*made)->loop().turn();
  EXPECT_EQ((*made)->loop().stats().generated_tokens, 30);
  EXPECT_EQ(start.failing.allocations(), before);
}

TEST(Start, CommandsThatMakeNoSenseFailTheirSequence) {
  Start start;
  auto made = start.create();
  ASSERT_TRUE(made.has_value());
  const auto failure = [&](auto change) {
    request::StartSequence command;
    command.spec.id = 7;
    command.spec.prompt = make_prompt(1, 5);
    command.spec.sampling = greedy(3);
    change(command);
    EXPECT_TRUE((*made)->try_send(std::move(command)));
    (*made)->loop().turn();
    while (auto event = start.events.try_pop()) {
      if (auto* failed = std::get_if<request::SequenceFailed>(&event->body)) return failed->status.code();
    }
    return base::StatusCode::kOk;
  };
  using base::StatusCode;
  EXPECT_EQ(failure([](auto& c) { c.spec.prompt.clear(); }), StatusCode::kInvalidArgument);
  EXPECT_EQ(failure([](auto& c) { c.spec.id = 0; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(failure([](auto& c) { c.spec.sampling.max_tokens = -1; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(failure([](auto& c) { c.spec.prompt[2] = -1; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(failure([](auto& c) { c.spec.prompt[2] = ContextOracleModel::kVocab; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(failure([](auto& c) { c.generated = {-5}; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(failure([](auto& c) { c.spec.prompt = make_prompt(1, 64); }), StatusCode::kOutOfRange);
  EXPECT_EQ((*made)->loop().live(), 0);
}

}  // namespace
}  // namespace tessera::test_support
