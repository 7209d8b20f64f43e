// Errors as clients meet them: what a failed page check looks like in every kind of answer, what becomes of a client
// that does not read, and what an operator does about pages in quarantine.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>
#include <vector>

#include "tests/support/http_server_fixture.h"

namespace tessera::server {
namespace {

namespace json = boost::json;
using test_support::byte_tokens;
using test_support::http_get;
using test_support::http_post;
using test_support::HttpAnswer;
using test_support::HttpConnection;
using test_support::Script;
using testing::HasSubstr;
using testing::Not;

class HttpErrors : public test_support::HttpServerTest {};

std::vector<json::value> events_of(const std::string& body) {
  std::vector<json::value> events;
  for (std::size_t at = 0; (at = body.find("data: ", at)) != std::string::npos;) {
    const std::size_t end = body.find("\n\n", at);
    const std::string payload = body.substr(at + 6, end - at - 6);
    if (payload != "[DONE]") events.push_back(json::parse(payload));
    at = end;
  }
  return events;
}

struct Kind {
  const char* path;
  const char* input;
};
constexpr Kind kKinds[] = {{"/v1/chat/completions", R"("messages":[{"role":"user","content":"hi"}])"},
                           {"/v1/completions", R"("prompt":"hi")"}};

std::string request_of(const Kind& kind, int n, bool stream) {
  return fmt::format(R"({{{},"n":{},"stream":{},"max_tokens":9,"temperature":1}})", kind.input, n, stream);
}

void expect_integrity_error(const json::value& body) {
  const json::value& error = body.at("error");
  EXPECT_EQ(error.at("code").as_string(), "kv_integrity_error");
  EXPECT_EQ(error.at("type").as_string(), "server_error");
  EXPECT_THAT(std::string(error.at("message").as_string()), Not(HasSubstr("page 7")));
}

// Chat and completion; whole, streamed from before the first token, and in mid-stream; one choice and the second of
// two.
TEST_F(HttpErrors, AFailedPageCheckHasItsOwnCodeInEveryKindOfAnswer) {
  std::string said;
  std::int64_t starts = 0;
  std::int64_t choices = 1;
  serve([&](const auto&) {
    // The last choice fails; the one before it ends well.
    Script script{.tokens = byte_tokens(said)};
    if (++starts % choices == 0) {
      script.failure = base::corruption("page 7 tag 1 expected 2");
    } else {
      script.hold = true;
    }
    return script;
  });
  std::int64_t failed = 0;
  for (const Kind& kind : kKinds) {
    for (const int n : {1, 2}) {
      choices = n;
      for (const char* text : {"", "ab"}) {
        said = text;
        SCOPED_TRACE(fmt::format("{} n={} after \"{}\"", kind.path, n, text));
        starts = 0;
        const HttpAnswer whole = http_post(port_, kind.path, request_of(kind, n, false));
        EXPECT_EQ(whole.status, 500);
        expect_integrity_error(json::parse(whole.body));
        EXPECT_THAT(whole.headers, HasSubstr("application/json"));

        starts = 0;
        const HttpAnswer streamed = http_post(port_, kind.path, request_of(kind, n, true));
        failed += 2;
        ASSERT_TRUE(becomes_idle());  // The other choice was aborted.
        if (said.empty()) {
          EXPECT_EQ(streamed.status, 500);
          expect_integrity_error(json::parse(streamed.body));
          continue;
        }
        EXPECT_EQ(streamed.status, 200);
        const std::vector<json::value> events = events_of(streamed.body);
        ASSERT_GE(events.size(), 2u);
        expect_integrity_error(events.back());
        // Nothing in the stream says that a choice has ended.
        for (const json::value& event : events) {
          if (&event == &events.back()) continue;
          EXPECT_TRUE(event.at("choices").at(0).at("finish_reason").is_null()) << json::serialize(event);
        }
      }
    }
  }
  const std::string metrics = http_get(port_, "/metrics").body;
  EXPECT_THAT(metrics, HasSubstr(fmt::format("tessera_kv_integrity_errors_total{{model_name=\"toy\"}} {}\n", failed)));
  EXPECT_EQ(http_get(port_, "/health").status, 200);
}

// Who reads the code need not guess: no other failure has it.
TEST_F(HttpErrors, NoOtherFailureHasThatCode) {
  base::Status failure;
  serve([&](const auto&) { return Script{.failure = failure}; });
  using base::StatusCode;
  for (const StatusCode code :
       {StatusCode::kInvalidArgument, StatusCode::kNotFound, StatusCode::kOutOfRange, StatusCode::kResourceExhausted,
        StatusCode::kUnavailable, StatusCode::kCancelled, StatusCode::kDataLoss, StatusCode::kDeadlineExceeded,
        StatusCode::kInternal, StatusCode::kUnimplemented}) {
    failure = {code, "kv_integrity"};
    const HttpAnswer answer = http_post(port_, "/v1/completions", R"({"prompt":"hi"})");
    EXPECT_GE(answer.status, 400);
    EXPECT_THAT(answer.body, Not(HasSubstr("kv_integrity_error"))) << answer.body;
  }
}

TEST_F(HttpErrors, RecomputesAreInUsageAndMetrics) {
  serve([](const auto&) {
    Script script = say("ok");
    script.integrity_recomputes = 2;
    return script;
  });
  const HttpAnswer whole = http_post(port_, "/v1/completions", R"({"prompt":"hi","n":2,"temperature":1})");
  EXPECT_EQ(json::parse(whole.body).at("usage").at("integrity_recomputes").as_int64(), 4);
  const HttpAnswer streamed =
      http_post(port_, "/v1/completions", R"({"prompt":"hi","stream":true,"stream_options":{"include_usage":true}})");
  EXPECT_EQ(events_of(streamed.body).back().at("usage").at("integrity_recomputes").as_int64(), 2);
}

TEST_F(HttpErrors, AnOperatorHasQuarantinedPagesAudited) {
  serve([](const auto&) { return say("ok"); });
  EXPECT_EQ(http_get(port_, "/audit_quarantined_pages").status, 405);
  const HttpAnswer answer = http_post(port_, "/audit_quarantined_pages", "");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, R"({"auditing":true})");
  EXPECT_EQ(engine_->audits(), 1);
}

TEST_F(HttpErrors, NoTenantOfSeveralAuditsForTheOthers) {
  HttpServerOptions options;
  options.api_keys = {"alpha", "beta"};
  serve([](const auto&) { return say("ok"); }, options);
  EXPECT_EQ(http_post(port_, "/audit_quarantined_pages", "", "Authorization: Bearer beta\r\n").status, 403);
  EXPECT_EQ(http_post(port_, "/audit_quarantined_pages", "").status, 401);
  EXPECT_EQ(engine_->audits(), 0);
}

TEST_F(HttpErrors, TheAdminKeyAuditsAndFlushesAndIsNoTenant) {
  for (const std::vector<std::string>& keys : std::vector<std::vector<std::string>>{{}, {"alpha"}, {"alpha", "beta"}}) {
    SCOPED_TRACE(keys.size());
    HttpServerOptions options;
    options.api_keys = keys;
    options.admin_api_key = "root";
    serve([](const auto&) { return say("ok"); }, options);
    const std::string admin = "Authorization: Bearer root\r\n";
    const std::string tenant = keys.empty() ? "" : "Authorization: Bearer alpha\r\n";
    EXPECT_EQ(http_post(port_, "/audit_quarantined_pages", "", tenant).status, 403);
    EXPECT_EQ(http_post(port_, "/flush_cache", "", tenant).status, 403);
    EXPECT_EQ(engine_->audits(), 0);
    EXPECT_EQ(http_post(port_, "/audit_quarantined_pages", "", admin).status, 200);
    EXPECT_EQ(http_post(port_, "/flush_cache", "", admin).status, 200);
    EXPECT_EQ(engine_->audits(), 1);
    const HttpAnswer refused = http_post(port_, "/v1/completions", R"({"prompt":"hi"})", admin);
    EXPECT_EQ(refused.status, 403);
    EXPECT_THAT(refused.body, HasSubstr("not_permitted"));
    EXPECT_EQ(http_post(port_, "/v1/completions", R"({"prompt":"hi"})", tenant).status, 200);
    EXPECT_EQ(http_get(port_, "/metrics", admin).status, 200);
    for (const std::string wrong : {"roo", "root2", "Root"}) {
      EXPECT_EQ(http_post(port_, "/audit_quarantined_pages", "", "Authorization: Bearer " + wrong + "\r\n").status,
                keys.empty() ? 403 : 401);
    }
    TearDown();
  }
}

// A shared prefix cache is one scope for all keys; what a key may abort stays its own.
TEST_F(HttpErrors, KeysShareAPrefixCacheOnlyWhereConfigured) {
  service_options_.prefix_sharing = PrefixSharing::kEverybody;
  HttpServerOptions options;
  options.api_keys = {"alpha", "beta"};
  serve([](const auto&) { return Script{.tokens = byte_tokens("a"), .hold = true}; }, options);
  const std::string alpha = "Authorization: Bearer alpha\r\n";
  const std::string beta = "Authorization: Bearer beta\r\n";
  HttpConnection first(port_);
  first.send_request("POST", "/v1/completions", R"({"prompt":"hi","stream":true})", alpha);
  HttpConnection second(port_);
  second.send_request("POST", "/v1/completions", R"({"prompt":"hi","stream":true})", beta);
  ASSERT_TRUE(holds_live(2));
  ASSERT_EQ(engine_->started().size(), 2u);
  EXPECT_EQ(engine_->started()[0].tenant, engine_->started()[1].tenant);
  EXPECT_EQ(http_post(port_, "/abort_request", R"({"abort_all":true})", beta).body, R"({"aborted":1})");
  EXPECT_TRUE(holds_live(1));
  EXPECT_THAT(http_get(port_, "/get_server_info", alpha).body, HasSubstr(R"("shared_prefix_cache":true)"));
}

// Its sequence is aborted, so that its pages are free again; nobody else waits for it.
TEST_F(HttpErrors, AClientThatReadsNothingIsDroppedAndItsSequenceAborted) {
  context_tokens_max_ = 8192;
  HttpServerOptions options;
  options.write_timeout = std::chrono::milliseconds(200);
  // More than sockets hold: every token comes with 20 others.
  serve(
      [](const auto& spec) {
        return spec.sampling.logprobs ? Script{.tokens = std::vector<std::int32_t>(7000, 'x'), .hold = true}
                                      : say("ok");
      },
      options);
  HttpConnection stalled(port_);
  stalled.send_request(
      "POST", "/v1/chat/completions",
      R"({"messages":[{"role":"user","content":"hi"}],"stream":true,"logprobs":true,"top_logprobs":20})");
  ASSERT_TRUE(stalled.read_until("\"content\":\"x\""));
  EXPECT_EQ(http_post(port_, "/v1/completions", R"({"prompt":"hi"})").status, 200);
  EXPECT_TRUE(becomes_idle());
  EXPECT_EQ(engine_->aborted().size(), 1u);
}

}  // namespace
}  // namespace tessera::server
