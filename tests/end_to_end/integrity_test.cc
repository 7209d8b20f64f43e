// A failed page check as clients and operators meet it: a whole server over sockets, engines on their threads, and one
// request's page damaged in mid-stream.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <boost/json.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tessera/server/http_server.h"
#include "tessera/server/service.h"
#include "tests/serving/serving_harness.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/fault_access.h"
#include "tests/support/http_client.h"

namespace tessera::test_support {
namespace {

namespace json = boost::json;
using testing::HasSubstr;
using testing::StartsWith;

constexpr std::int64_t kVictimPrompt = 60;
constexpr std::int64_t kTokensBefore = 10;  // That the victim has when it is struck.
constexpr std::int64_t kVictimTokens = 30;
constexpr std::int64_t kNeighbourTokens = 300;

// Damages, when it is armed, a page of the victim once it has some tokens, beside the neighbour, which came before it.
class MidStream final : public engine::StepObserver {
 public:
  void arm() { armed_ = true; }
  std::int64_t struck() const { return struck_; }
  // From now on the neighbour need not wait for victims.
  void hurry() { hurries_ = true; }

  void before_check(const engine::StepView& step) override {
    if (step.rows.size() < 2) {
      if (!hurries_) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      return;
    }
    if (!armed_) return;
    const engine::StepRowView& victim =
        *std::ranges::max_element(step.rows, {}, [](const engine::StepRowView& row) { return row.id; });
    if (victim.start < kVictimPrompt + kTokensBefore) return;
    fault_injection::Access::tags(step.pool)[victim.leases.back().page] ^= 1;
    armed_ = false;
    ++struck_;
  }
  void before_second_check(const engine::StepView&) override {}

 private:
  std::atomic<bool> armed_ = false;
  std::atomic<bool> hurries_ = false;
  std::atomic<std::int64_t> struck_ = 0;
};

std::string text_of(const std::vector<std::int32_t>& tokens) {
  std::string text;
  for (const std::int32_t token : tokens) text += static_cast<char>(token);
  return text;
}

struct Streamed {
  std::string text;
  std::string finish_reason;
  std::string error_code;
  std::int64_t recomputes = 0;
};

Streamed read_stream(const HttpAnswer& answer) {
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_TRUE(answer.body.ends_with("data: [DONE]\n\n"));
  Streamed streamed;
  for (std::size_t at = 0; (at = answer.body.find("data: {", at)) != std::string::npos;) {
    const std::size_t end = answer.body.find("\n\n", at);
    const json::value event = json::parse(answer.body.substr(at + 6, end - at - 6));
    at = end;
    EXPECT_EQ(streamed.error_code, "") << "an event after the error";
    if (const json::value* error = event.as_object().if_contains("error")) {
      streamed.error_code = error->at("code").as_string();
      continue;
    }
    if (const json::value* usage = event.as_object().if_contains("usage")) {
      const json::value* recomputes = usage->as_object().if_contains("integrity_recomputes");
      if (recomputes != nullptr) streamed.recomputes = recomputes->as_int64();
    }
    for (const json::value& choice : event.at("choices").as_array()) {
      streamed.text += choice.at("text").as_string();
      if (choice.at("finish_reason").is_string()) streamed.finish_reason = choice.at("finish_reason").as_string();
    }
  }
  return streamed;
}

class Integrity : public testing::TestWithParam<Pools> {
 protected:
  void serve(kv_cache::OnIntegrityError on_error) {
    HarnessOptions options;
    options.pools = GetParam();
    options.driving = Driving::kThreads;
    options.page_size = 16;
    options.pages = options.prefill_pages = 100;
    options.chunk = 64;
    options.integrity.on_error = on_error;
    (GetParam() == Pools::kSplit ? options.decode_observer : options.first_observer) = &observer_;
    harness_ = std::make_unique<ServingHarness>(options);
    server::ServiceOptions service_options;
    service_options.served_model_name = "oracle";
    service_options.vocab_size = ContextOracleModel::kVocab;
    service_ = std::make_unique<server::Service>(service_options, *tokenizer_, nullptr, harness_->router(), clock_);
    server::HttpServerOptions http_options;
    http_options.port = 0;
    auto started = server::HttpServer::start(http_options, *service_);
    ASSERT_TRUE(started.has_value()) << started.error().message();
    server_ = std::move(*started);
    // A stream beside the victim, which must not notice.
    neighbour_ = std::make_unique<HttpConnection>(server_->port());
    neighbour_->send_request("POST", "/v1/completions", request(neighbour_prompt_, kNeighbourTokens, true));
    ASSERT_TRUE(neighbour_->read_until("data: {"));
  }
  // Subscribers of the router hold parts of the connections: the sockets stop first and are destroyed after it stopped.
  void TearDown() override {
    if (server_ != nullptr) server_->stop();
    if (harness_ != nullptr) harness_->router().stop();
    server_.reset();
  }
  static std::string request(const std::vector<std::int32_t>& prompt, std::int64_t max_tokens, bool stream) {
    return fmt::format(R"({{"prompt":[{}],"max_tokens":{},"temperature":0,"stream":{}{}}})", fmt::join(prompt, ","),
                       max_tokens, stream, stream ? R"(,"stream_options":{"include_usage":true})" : "");
  }
  HttpAnswer ask_victim(bool stream) const {
    return http_post(server_->port(), "/v1/completions", request(victim_prompt_, kVictimTokens, stream));
  }
  std::string expected_text(const std::vector<std::int32_t>& prompt, std::int64_t count) const {
    return text_of(harness_->expected(prompt, count));
  }
  std::string metrics() const { return http_get(server_->port(), "/metrics").body; }
  // Engines tell their stats now and then.
  bool becomes_metric(const std::string& line) const {
    for (int i = 0; i < 1000 && metrics().find(line) == std::string::npos; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return metrics().find(line) != std::string::npos;
  }
  std::string engine_metric(const char* name, const char* more = "") const {
    const bool split = GetParam() == Pools::kSplit;
    return fmt::format("tessera_engine_{}{{model_name=\"oracle\",engine=\"{}\",role=\"{}\"{}}}", name, split ? 2 : 1,
                       split ? "decode" : "unified", more);
  }
  void expect_neighbour_undisturbed() {
    observer_.hurry();
    const Streamed streamed = read_stream(neighbour_->read_answer());
    EXPECT_EQ(streamed.text, expected_text(neighbour_prompt_, kNeighbourTokens));
    EXPECT_EQ(streamed.finish_reason, "length");
    EXPECT_EQ(streamed.recomputes, 0);
  }
  // An operator's audit gives all pages back to service; then every page is accounted for.
  void expect_pages_come_back() {
    EXPECT_EQ(http_post(server_->port(), "/audit_quarantined_pages", "").status, 200);
    EXPECT_TRUE(becomes_metric(engine_metric("pages", ",state=\"quarantined\"") + " 0\n"));
    EXPECT_THAT(metrics(), testing::Not(HasSubstr(engine_metric("audited_pages_freed_total") + " 0\n")));
    server_->stop();
    harness_->expect_pages_balance();
  }

  MidStream observer_;
  base::SystemClock clock_;
  std::unique_ptr<text::Tokenizer> tokenizer_ = byte_tokenizer();
  std::unique_ptr<ServingHarness> harness_;
  std::unique_ptr<server::Service> service_;
  std::unique_ptr<server::HttpServer> server_;
  std::unique_ptr<HttpConnection> neighbour_;
  const std::vector<std::int32_t> victim_prompt_ = make_prompt(1, kVictimPrompt);
  const std::vector<std::int32_t> neighbour_prompt_ = make_prompt(2, 10);
};

INSTANTIATE_TEST_SUITE_P(Pools, Integrity, testing::Values(Pools::kUnified, Pools::kSplit),
                         [](const auto& test) { return test.param == Pools::kSplit ? "Split" : "Unified"; });

TEST_P(Integrity, TheClientSeesTheErrorInMidStreamAndTheServerGoesOn) {
  serve(kv_cache::OnIntegrityError::kAbort);
  const std::string right = expected_text(victim_prompt_, kVictimTokens);
  observer_.arm();
  const Streamed streamed = read_stream(ask_victim(true));
  ASSERT_EQ(observer_.struck(), 1);
  EXPECT_EQ(streamed.error_code, "kv_integrity_error");
  EXPECT_EQ(streamed.finish_reason, "");
  EXPECT_GE(std::ssize(streamed.text), kTokensBefore);
  EXPECT_LT(streamed.text.size(), right.size());
  EXPECT_THAT(right, StartsWith(streamed.text));

  // The same request, not streamed.
  observer_.arm();
  const HttpAnswer whole = ask_victim(false);
  ASSERT_EQ(observer_.struck(), 2);
  EXPECT_EQ(whole.status, 500);
  EXPECT_EQ(json::parse(whole.body).at("error").at("code").as_string(), "kv_integrity_error");

  // What an operator and a load balancer see, and the next client.
  EXPECT_EQ(http_get(server_->port(), "/health").status, 200);
  EXPECT_TRUE(becomes_metric("tessera_kv_integrity_errors_total{model_name=\"oracle\"} 2\n"));
  EXPECT_TRUE(becomes_metric(engine_metric("page_check_failures_total") + " 2\n"));
  EXPECT_THAT(http_get(server_->port(), "/get_server_info").body, HasSubstr(R"("on_integrity_error":"abort")"));
  const Streamed next = read_stream(ask_victim(true));
  EXPECT_EQ(next.text, right);
  EXPECT_EQ(next.finish_reason, "length");
  expect_neighbour_undisturbed();
  expect_pages_come_back();
}

TEST_P(Integrity, WithRecomputeTheClientSeesEveryTokenAndNoError) {
  serve(kv_cache::OnIntegrityError::kRecompute);
  const std::string right = expected_text(victim_prompt_, kVictimTokens);
  observer_.arm();
  const Streamed streamed = read_stream(ask_victim(true));
  ASSERT_EQ(observer_.struck(), 1);
  EXPECT_EQ(streamed.text, right);
  EXPECT_EQ(streamed.error_code, "");
  EXPECT_EQ(streamed.finish_reason, "length");
  EXPECT_EQ(streamed.recomputes, 1);
  EXPECT_EQ(http_get(server_->port(), "/health").status, 200);
  EXPECT_TRUE(becomes_metric("tessera_kv_integrity_recomputes_total{model_name=\"oracle\"} 1\n"));
  EXPECT_THAT(metrics(), HasSubstr("tessera_kv_integrity_errors_total{model_name=\"oracle\"} 0\n"));
  EXPECT_THAT(http_get(server_->port(), "/get_server_info").body, HasSubstr(R"("on_integrity_error":"recompute")"));
  expect_neighbour_undisturbed();
  expect_pages_come_back();
}

}  // namespace
}  // namespace tessera::test_support
