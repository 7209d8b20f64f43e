#include "tessera/server/http_server.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <thread>

#include "tests/support/http_server_fixture.h"

namespace tessera::server {
namespace {

namespace json = boost::json;
using test_support::byte_tokens;
using test_support::http_get;
using test_support::http_post;
using test_support::HttpAnswer;
using test_support::HttpConnection;
using test_support::HttpServerTest;
using test_support::Script;

constexpr const char* kHi = R"({"messages":[{"role":"user","content":"hi"}]})";
constexpr const char* kHiStream =
    R"({"messages":[{"role":"user","content":"hi"}],"stream":true,"stream_options":{"include_usage":true}})";

// The payloads of a stream of events.
std::vector<std::string> payloads(const std::string& body) {
  std::vector<std::string> all;
  std::size_t at = 0;
  while (at < body.size()) {
    const std::size_t end = body.find("\n\n", at);
    EXPECT_NE(end, std::string::npos) << "an event without its end";
    if (end == std::string::npos) break;
    const std::string line = body.substr(at, end - at);
    if (line.starts_with("data: ")) all.push_back(line.substr(6));
    at = end + 2;
  }
  return all;
}

std::string streamed_text(const std::vector<std::string>& events, const char* container) {
  std::string text;
  for (const std::string& event : events) {
    if (event == "[DONE]") continue;
    const json::value value = json::parse(event);
    for (const json::value& choice : value.at("choices").as_array()) {
      const json::object& holder =
          std::string(container) == "delta" ? choice.at("delta").as_object() : choice.as_object();
      const json::value* part = holder.if_contains(std::string(container) == "delta" ? "content" : "text");
      if (part != nullptr) text += part->as_string();
    }
  }
  return text;
}

TEST_F(HttpServerTest, AnswersAChat) {
  serve([](const auto&) {
    Script script = say("héllo");
    script.cached_tokens = 3;
    return script;
  });
  const HttpAnswer answer = http_post(port_, "/v1/chat/completions", kHi, "x-request-id: abc\r\n");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const json::value value = json::parse(answer.body);
  EXPECT_EQ(value.at("object").as_string(), "chat.completion");
  EXPECT_EQ(value.at("model").as_string(), "toy");
  EXPECT_EQ(value.at("choices").at(0).at("message").at("content").as_string(), "héllo");
  EXPECT_EQ(value.at("choices").at(0).at("finish_reason").as_string(), "stop");
  EXPECT_EQ(value.at("usage").at("prompt_tokens").as_int64(), 10);  // <|turn|>user:hi<|end|><|turn|>
  EXPECT_EQ(value.at("usage").at("completion_tokens").as_int64(), 7);
  EXPECT_EQ(value.at("usage").at("prompt_tokens_details").at("cached_tokens").as_int64(), 3);
  EXPECT_NE(answer.headers.find("x-request-id: abc"), std::string::npos);
  EXPECT_NE(answer.headers.find("x-tessera-precision: prefill=bf16/bf16; decode=bf16/bf16; digest=d1ge57"),
            std::string::npos);
}

TEST_F(HttpServerTest, StreamsTheSameText) {
  serve([](const auto&) { return say("naïve 😀 text"); });
  const HttpAnswer answer = http_post(port_, "/v1/chat/completions", kHiStream);
  ASSERT_EQ(answer.status, 200);
  const std::vector<std::string> events = payloads(answer.body);
  ASSERT_GE(events.size(), 4u);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(streamed_text(events, "delta"), "naïve 😀 text");
  EXPECT_EQ(json::parse(events[0]).at("choices").at(0).at("delta").at("role").as_string(), "assistant");
  EXPECT_EQ(json::parse(events[events.size() - 3]).at("choices").at(0).at("finish_reason").as_string(), "stop");
  const json::value usage = json::parse(events[events.size() - 2]);
  EXPECT_TRUE(usage.at("choices").as_array().empty());
  EXPECT_EQ(usage.at("usage").at("completion_tokens").as_int64(), 17);
}

TEST_F(HttpServerTest, NoUsageChunkUnlessAsked) {
  serve([](const auto&) { return say("x"); });
  const HttpAnswer answer =
      http_post(port_, "/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"}],"stream":true})");
  EXPECT_EQ(answer.body.find("usage"), std::string::npos);
}

TEST_F(HttpServerTest, StopStringsEndTheSequence) {
  serve([](const auto&) { return say("one STOP two"); });
  for (const char* stream : {"false", "true"}) {
    const HttpAnswer answer =
        http_post(port_, "/v1/completions",
                  std::string(R"({"prompt":"p","max_tokens":50,"stop":"STOP","stream":)") + stream + "}");
    ASSERT_EQ(answer.status, 200) << answer.body;
    const std::string text = std::string(stream) == "true"
                                 ? streamed_text(payloads(answer.body), "text")
                                 : std::string(json::parse(answer.body).at("choices").at(0).at("text").as_string());
    EXPECT_EQ(text, "one ");
    EXPECT_NE(answer.body.find(R"("finish_reason":"stop")"), std::string::npos);
  }
}

TEST_F(HttpServerTest, ChoicesPromptsEchoAndLogprobs) {
  serve([](const request::SequenceSpec& spec) {
    Script script{.tokens = {spec.prompt[0], 'A' + static_cast<std::int32_t>(spec.sampling.seed % 2)}};
    return script;
  });
  const HttpAnswer answer =
      http_post(port_, "/v1/completions", R"({"prompt":["x",[121]],"n":2,"max_tokens":2,"seed":0,"echo":true})");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const json::value value = json::parse(answer.body);
  const json::array& choices = value.at("choices").as_array();
  ASSERT_EQ(choices.size(), 4u);
  EXPECT_EQ(choices[0].at("text").as_string(), "xxA");
  EXPECT_EQ(choices[1].at("text").as_string(), "xxB");
  EXPECT_EQ(choices[2].at("text").as_string(), "yyA");
  EXPECT_EQ(choices[3].at("text").as_string(), "yyB");
  EXPECT_EQ(choices[3].at("finish_reason").as_string(), "length");
  EXPECT_EQ(value.at("usage").at("prompt_tokens").as_int64(), 2);
  EXPECT_EQ(value.at("usage").at("completion_tokens").as_int64(), 8);

  const HttpAnswer with = http_post(port_, "/v1/completions", R"({"prompt":"x","max_tokens":2,"logprobs":1})");
  const json::value logprobs = json::parse(with.body).at("choices").at(0).at("logprobs");
  EXPECT_EQ(logprobs.at("tokens").at(0).as_string(), "x");
  EXPECT_EQ(logprobs.at("token_logprobs").at(1).to_number<double>(), -0.5);
  EXPECT_EQ(logprobs.at("text_offset").at(1).as_int64(), 1);

  const HttpAnswer chat =
      http_post(port_, "/v1/chat/completions",
                R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":2,"logprobs":true,"top_logprobs":2})");
  const json::value content = json::parse(chat.body).at("choices").at(0).at("logprobs").at("content");
  EXPECT_EQ(content.at(1).at("top_logprobs").as_array().size(), 2u);
  EXPECT_EQ(content.at(1).at("bytes").as_array().size(), 1u);
}

TEST_F(HttpServerTest, EngineFailureBeforeTheFirstTokenIsAnHttpError) {
  serve([](const auto&) { return Script{.failure = base::corruption("page 7 tag 1 expected 2")}; });
  for (const char* body : {kHi, kHiStream}) {
    const HttpAnswer answer = http_post(port_, "/v1/chat/completions", body);
    EXPECT_EQ(answer.status, 500);
    EXPECT_EQ(json::parse(answer.body).at("error").at("code").as_string(), "kv_integrity_error");
    EXPECT_EQ(answer.body.find("page 7"), std::string::npos);
  }
}

TEST_F(HttpServerTest, EngineFailureInMidStreamIsAnEvent) {
  serve([](const auto&) { return Script{.tokens = byte_tokens("ab"), .failure = base::corruption("x")}; });
  const HttpAnswer answer = http_post(port_, "/v1/chat/completions", kHiStream);
  ASSERT_EQ(answer.status, 200);
  const std::vector<std::string> events = payloads(answer.body);
  EXPECT_EQ(answer.body.find(R"("finish_reason":"stop")"), std::string::npos);
  ASSERT_GE(events.size(), 2u);
  EXPECT_EQ(json::parse(events[events.size() - 2]).at("error").at("code").as_string(), "kv_integrity_error");
  // The server lives on, and counts.
  EXPECT_EQ(http_get(port_, "/health").status, 200);
  EXPECT_NE(http_get(port_, "/metrics").body.find("tessera_kv_integrity_errors_total{model_name=\"toy\"} 1"),
            std::string::npos);
}

TEST_F(HttpServerTest, AClientThatGoesAwayAbortsItsSequences) {
  serve([](const auto&) { return Script{.tokens = byte_tokens("abc"), .hold = true}; });
  {
    HttpConnection streamed(port_);
    streamed.send_request("POST", "/v1/chat/completions", kHiStream);
    ASSERT_TRUE(streamed.read_until("\"content\":\"c\""));
    HttpConnection whole(port_);
    whole.send_request("POST", "/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"}],"n":2})");
    for (int i = 0; i < 1000 && router_->live() < 3; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(router_->live(), 3);
  }
  EXPECT_TRUE(becomes_idle());
  EXPECT_EQ(engine_->aborted().size(), 3u);
}

TEST_F(HttpServerTest, BytesThatComeEarlyDoNotHideAClientsGoing) {
  serve([](const auto&) { return Script{.hold = true}; });
  HttpConnection connection(port_);
  connection.send_request("POST", "/v1/completions", R"({"prompt":"x"})");
  for (int i = 0; i < 1000 && router_->live() < 1; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ASSERT_EQ(router_->live(), 1);
  connection.send("\r\n");
  connection.close();
  EXPECT_TRUE(becomes_idle());
}

TEST_F(HttpServerTest, TooManyEarlyBytesEndTheConnection) {
  serve([](const auto&) { return Script{.hold = true}; });
  HttpConnection connection(port_);
  connection.send_request("POST", "/v1/completions", R"({"prompt":"x"})");
  for (int i = 0; i < 1000 && router_->live() < 1; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ASSERT_EQ(router_->live(), 1);
  connection.send(std::string(200'000, 'x'));
  EXPECT_TRUE(becomes_idle());
  EXPECT_EQ(connection.read_answer().status, 0);
}

TEST_F(HttpServerTest, ARequestSentEarlyIsAnsweredInItsTurn) {
  serve([](const auto&) { return Script{.hold = true}; });
  HttpConnection connection(port_);
  connection.send_request("POST", "/v1/completions", R"({"prompt":"x"})", "x-request-id: mine\r\n");
  for (int i = 0; i < 1000 && router_->live() < 1; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  connection.send("GET /version HTTP/1.1\r\nHost: test\r\nX-Filler: " + std::string(4000, 'f') + "\r\n\r\n");
  EXPECT_EQ(http_post(port_, "/abort_request", R"({"rid":"mine"})").body, R"({"aborted":1})");
  EXPECT_EQ(connection.read_answer().status, 499);
  EXPECT_EQ(connection.read_answer().body, R"({"version":"1.2.3"})");
}

TEST_F(HttpServerTest, AbortRequestEndsItsStream) {
  serve([](const auto&) { return Script{.tokens = byte_tokens("abc"), .hold = true}; });
  HttpConnection stream(port_);
  stream.send_request("POST", "/v1/chat/completions", kHiStream, "x-request-id: mine\r\n");
  ASSERT_TRUE(stream.read_until("\"content\":\"c\""));
  EXPECT_EQ(http_post(port_, "/abort_request", R"({"rid":"other"})").body, R"({"aborted":0})");
  EXPECT_EQ(http_post(port_, "/abort_request", R"({"rid":"mine"})").body, R"({"aborted":1})");
  EXPECT_NE(stream.read_answer().body.find(R"("code":"cancelled")"), std::string::npos);
  EXPECT_TRUE(becomes_idle());
}

TEST_F(HttpServerTest, BadInputGetsAClearErrorAndTheServerLivesOn) {
  serve([](const auto&) { return say("fine"); });
  const auto error = [&](const std::string& body, const char* path = "/v1/chat/completions") {
    const HttpAnswer answer = http_post(port_, path, body);
    return std::to_string(answer.status) + " " +
           std::string(json::parse(answer.body).at("error").at("message").as_string());
  };
  EXPECT_TRUE(error("{").starts_with("400 the body is not valid JSON"));
  EXPECT_TRUE(error(std::string(3000, '[')).starts_with("400 the body is not valid JSON"));
  EXPECT_EQ(error(R"({"messages":5})"), "400 'messages': expected an array");
  EXPECT_EQ(error(R"({"model":"gpt","messages":[{"role":"user","content":"x"}]})"),
            "404 the model 'gpt' does not exist here; this server serves 'toy'");
  std::string ids = "1";
  for (int i = 1; i < 300; ++i) ids += ",1";
  EXPECT_EQ(error(R"({"prompt":[)" + ids + "]}", "/v1/completions"),
            "400 the prompt has 300 tokens; with at least one to generate this server has room for 255");
  EXPECT_EQ(error(R"({"prompt":"x","max_tokens":256})", "/v1/completions"),
            "400 the prompt has 1 tokens and 256 are to be generated; this server has room for 256 together");
  EXPECT_EQ(error(R"({"prompt":[258]})", "/v1/completions"),
            "400 'prompt': token id 258 is outside the vocabulary of 258");
  EXPECT_EQ(error(R"({"prompt":""})", "/v1/completions"), "400 'prompt': gives no tokens");
  EXPECT_EQ(error(R"({"prompt":"x","require_precision":{"decode_kv":"fp8_e4m3"}})", "/v1/completions"),
            "400 'require_precision.decode_kv': this server has bf16, not 'fp8_e4m3'");
  EXPECT_EQ(error(R"({"tokens":[999]})", "/detokenize"), "400 'tokens': 999 is not in the vocabulary");
  EXPECT_EQ(http_get(port_, "/nothing").status, 404);
  EXPECT_EQ(http_get(port_, "/v1/completions").status, 405);
  EXPECT_EQ(http_post(port_, "/health", "{}").status, 405);
  EXPECT_EQ(http_get(port_, "/v1/models/other").status, 404);
  HttpConnection garbage(port_);
  garbage.send("\x01\x02 this is not HTTP\r\n\r\n");
  EXPECT_EQ(garbage.read_answer().status, 400);
  HttpConnection headers(port_);
  headers.send("GET /health HTTP/1.1\r\nX: " + std::string(20000, 'x') + "\r\n\r\n");
  EXPECT_EQ(headers.read_answer().status, 431);
  HttpConnection large(port_);
  large.send("POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n");
  EXPECT_EQ(large.read_answer().status, 413);
  EXPECT_EQ(http_post(port_, "/v1/chat/completions", kHi).status, 200);
}

// Boost.JSON refuses ill-formed UTF-8, so that parsing proves the answer well-formed.
TEST_F(HttpServerTest, WhatIsEchoedIsValidUtf8) {
  serve([](const auto&) { return say("fine"); });
  const HttpAnswer model = http_get(port_, "/v1/models/\xff\xfe");
  EXPECT_EQ(model.status, 404);
  EXPECT_TRUE(json::parse(model.body).at("error").at("message").as_string().starts_with("the model '\uFFFD\uFFFD' "));
  // The hundredth byte is the first of a character's two.
  const std::string name = std::string(99, 'n') + "é" + "tail";
  const HttpAnswer field = http_post(port_, "/v1/completions", "{\"prompt\":\"x\",\"" + name + "\":1}");
  EXPECT_EQ(field.status, 400);
  const json::value error = json::parse(field.body).at("error");
  EXPECT_EQ(error.at("param").as_string(), std::string(99, 'n'));
  EXPECT_EQ(error.at("message").as_string(), "'" + std::string(99, 'n') + "': unknown field");
}

TEST_F(HttpServerTest, TooManySequencesAreRefused) {
  serve([](const auto&) { return Script{.hold = true}; });
  std::vector<std::unique_ptr<HttpConnection>> held;
  for (int i = 0; i < 4; ++i) {
    held.push_back(std::make_unique<HttpConnection>(port_));
    held.back()->send_request("POST", "/v1/completions", R"({"prompt":"x","n":10})");
  }
  for (int i = 0; i < 1000 && router_->live() < 40; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const HttpAnswer answer = http_post(port_, "/v1/completions", R"({"prompt":"x","n":2})");
  EXPECT_EQ(answer.status, 429) << answer.body;
  held.clear();
  EXPECT_TRUE(becomes_idle());
}

TEST_F(HttpServerTest, KeysAreTenants) {
  HttpServerOptions options;
  options.api_keys = {"alpha", "beta"};
  serve([](const auto&) { return say("ok"); }, options);
  EXPECT_EQ(http_post(port_, "/v1/chat/completions", kHi).status, 401);
  EXPECT_EQ(http_post(port_, "/v1/chat/completions", kHi, "Authorization: Bearer alphX\r\n").status, 401);
  EXPECT_EQ(http_post(port_, "/v1/chat/completions", kHi, "Authorization: Bearer alpha\r\n").status, 200);
  EXPECT_EQ(http_post(port_, "/v1/chat/completions", kHi, "Authorization: Bearer beta\r\n").status, 200);
  EXPECT_EQ(http_get(port_, "/metrics").status, 401);
  EXPECT_EQ(http_get(port_, "/health").status, 200);
  ASSERT_EQ(engine_->started().size(), 2u);
  EXPECT_NE(engine_->started()[0].tenant, engine_->started()[1].tenant);
}

TEST_F(HttpServerTest, ATenantEndsOnlyItsOwn) {
  HttpServerOptions options;
  options.api_keys = {"alpha", "beta"};
  serve([](const auto&) { return Script{.tokens = byte_tokens("abc"), .hold = true}; }, options);
  HttpConnection stream(port_);
  stream.send_request("POST", "/v1/chat/completions", kHiStream,
                      "Authorization: Bearer alpha\r\nx-request-id: mine\r\n");
  ASSERT_TRUE(stream.read_until("\"content\":\"c\""));
  const std::string beta = "Authorization: Bearer beta\r\n";
  EXPECT_EQ(http_post(port_, "/abort_request", R"({"abort_all":true})", beta).body, R"({"aborted":0})");
  EXPECT_EQ(http_post(port_, "/abort_request", R"({"rid":"mine"})", beta).body, R"({"aborted":0})");
  EXPECT_EQ(http_post(port_, "/flush_cache", "", beta).status, 403);
  EXPECT_TRUE(engine_->aborted().empty());
  EXPECT_EQ(http_post(port_, "/abort_request", R"({"rid":"mine"})", "Authorization: Bearer alpha\r\n").body,
            R"({"aborted":1})");
  EXPECT_TRUE(becomes_idle());
}

TEST_F(HttpServerTest, ConnectionsAreReusedAndPipelinesSurvive) {
  serve([](const auto&) { return say("ok"); });
  HttpConnection connection(port_);
  for (int i = 0; i < 3; ++i) {
    connection.send_request("POST", "/v1/chat/completions", i == 1 ? kHiStream : kHi);
    EXPECT_EQ(connection.read_answer().status, 200) << i;
  }
  connection.send_request("POST", "/tokenize", R"({"prompt":"ab"})");
  connection.send_request("POST", "/detokenize", R"({"tokens":[97,98,257]})");
  EXPECT_EQ(connection.read_answer().body, R"({"count":2,"max_model_len":256,"tokens":[97,98]})");
  EXPECT_EQ(connection.read_answer().body, R"({"prompt":"ab<|end|>"})");
}

TEST_F(HttpServerTest, TellsAboutItself) {
  serve([](const auto&) { return say("ok"); });
  const json::value models = json::parse(http_get(port_, "/v1/models").body);
  EXPECT_EQ(models.at("data").at(0).at("id").as_string(), "toy");
  EXPECT_EQ(models.at("data").at(0).at("precision").at("decode").at("kv").as_string(), "bf16");
  EXPECT_EQ(http_get(port_, "/version").body, R"({"version":"1.2.3"})");
  EXPECT_EQ(http_get(port_, "/ping").status, 200);
  EXPECT_EQ(json::parse(http_get(port_, "/get_server_info").body).at("engines").as_array().size(), 1u);
  http_post(port_, "/v1/chat/completions", kHi);
  const std::string metrics = http_get(port_, "/metrics").body;
  for (const char* name :
       {"tessera_prompt_tokens_total", "vllm:num_requests_running", "sglang:num_running_reqs", "tessera_engine_pages",
        "vllm:time_to_first_token_seconds_count", "tessera_http_responses_total"}) {
    EXPECT_NE(metrics.find(name), std::string::npos) << name;
  }
}

TEST_F(HttpServerTest, DrainsBeforeItStops) {
  serve([](const auto&) { return Script{.tokens = byte_tokens("abc"), .hold = true}; });
  HttpConnection stream(port_);
  stream.send_request("POST", "/v1/chat/completions", kHiStream, "x-request-id: mine\r\n");
  ASSERT_TRUE(stream.read_until("\"content\":\"c\""));
  server_->begin_drain();
  EXPECT_FALSE(server_->wait_drained(std::chrono::milliseconds(50)));
  EXPECT_EQ(service_->abort_by_request_id("mine", "default"), 1);
  EXPECT_TRUE(server_->wait_drained(std::chrono::milliseconds(5000)));
  EXPECT_NE(stream.read_answer().body.find("[DONE]"), std::string::npos);
}

TEST(HttpServerStart, RefusesOpenAddressesWithoutAKey) {
  base::SystemClock clock;
  request::EngineEventQueue events(1024);
  test_support::ScriptedEngine engine(events, [](const auto&) { return Script{}; });
  auto router = std::move(*router::Router::create({}, {&engine}, events, clock));
  const auto tokenizer = test_support::byte_tokenizer();
  Service service(ServiceOptions{"toy", "1", 258}, *tokenizer, nullptr, *router, clock);
  HttpServerOptions options;
  options.host = "0.0.0.0";
  options.port = 0;
  EXPECT_NE(HttpServer::start(options, service).error().message().find("--api-key"), std::string::npos);
  options.host = "nowhere";
  EXPECT_NE(HttpServer::start(options, service).error().message().find("nowhere"), std::string::npos);
}

}  // namespace
}  // namespace tessera::server
