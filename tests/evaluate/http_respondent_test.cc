#include "http_respondent.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <chrono>
#include <thread>

#include "tests/evaluate/canned_server.h"
#include "tests/support/http_server_fixture.h"

namespace tessera::app {
namespace {

namespace json = boost::json;
using quality::ChatQuestion;
using quality::TokenId;
using test_support::CannedServer;
using test_support::http_reply;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const char* const kOneModel = R"({"object":"list","data":[{"id":"some/model","object":"model","max_model_len":4096}]})";

ChatQuestion question(std::string text) {
  return {.messages = {{"user", std::move(text)}}, .tools = {}, .max_tokens = 100};
}

// A server that somebody else wrote: its answers are as they come.
class ForeignServerTest : public testing::Test {
 protected:
  // It is connected to a server that says this after its models; null: it could not be.
  std::unique_ptr<HttpRespondent> connect(std::vector<std::string> replies, const std::string& model = "",
                                          const char* models = kOneModel) {
    replies.insert(replies.begin(), http_reply(200, models));
    server_ = std::make_unique<CannedServer>(std::move(replies));
    RespondentOptions options;
    options.model = model;
    options.http.server.port = server_->port();
    options.http.attempts_max = 2;
    options.http.first_wait = std::chrono::milliseconds(1);
    auto respondent = HttpRespondent::connect(options, stop_);
    error_ = respondent.has_value() ? base::ok_status() : respondent.error();
    return respondent.has_value() ? std::move(*respondent) : nullptr;
  }
  json::value sent() {
    const std::string request = server_->requests().back();
    return json::parse(request.substr(request.find("\r\n\r\n") + 4));
  }

  std::atomic<bool> stop_ = false;
  std::unique_ptr<CannedServer> server_;
  base::Status error_;
};

TEST_F(ForeignServerTest, FindsItsModel) {
  const auto respondent = connect({});
  ASSERT_NE(respondent, nullptr);
  EXPECT_EQ(respondent->info().model, "some/model");
  EXPECT_EQ(respondent->info().context_tokens, 4096);
  EXPECT_EQ(respondent->info().precision, "");
  EXPECT_EQ(respondent->info().digest, "");
  EXPECT_EQ(connect({}, "other"), nullptr);
  EXPECT_EQ(error_.message(), "the server has no model 'other'; it has 'some/model'");
  const char* const two = R"({"data":[{"id":"a"},{"id":"b"}]})";
  EXPECT_EQ(connect({}, "", two), nullptr);
  EXPECT_EQ(error_.message(), "the server has several models, 'a', 'b': expected model=NAME");
  EXPECT_NE(connect({}, "b", two), nullptr);
  for (const char* const bad : {"no JSON", "[]", R"({"data":7})", R"({"data":[{"name":"x"}]})"}) {
    EXPECT_EQ(connect({}, "", bad), nullptr) << bad;
  }
  EXPECT_EQ(connect({}, "", R"({"data":[]})"), nullptr);
  EXPECT_EQ(error_.message(), "the server has no models: expected one at least");
  EXPECT_EQ(connect({}, "b", R"({"data":[{"id":"a\u001b[2J"}]})"), nullptr);
  EXPECT_EQ(error_.message(), "the server has no model 'b'; it has 'a\\u001b[2J'");
}

TEST_F(ForeignServerTest, AsksAndReadsChats) {
  const auto respondent = connect(
      {http_reply(200, R"({"choices":[{"index":0,"finish_reason":"length","message":{"role":"assistant","content":null,
           "reasoning":"hm","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}},
           {"id":"c2","type":"function","function":{"name":"g","arguments":"{"}}]}}]})")});
  ChatQuestion asked = question("Hi \"you\"");
  asked.messages.insert(asked.messages.begin(), {"system", "Be short."});
  asked.messages.push_back({.role = "assistant", .content = "", .calls = {{"id1", "f", "{}"}}});
  asked.messages.push_back({.role = "tool", .content = "7", .tool_call_id = "id1", .name = "f"});
  asked.tools = R"([{"type":"function","function":{"name":"f"}}])";
  const auto answer = respondent->chat(asked);
  ASSERT_TRUE(answer.has_value()) << answer.error().message();
  EXPECT_EQ(answer->text, "");
  EXPECT_EQ(answer->reasoning, "hm");
  EXPECT_TRUE(answer->cut_off);
  ASSERT_EQ(answer->calls.size(), 2u);
  EXPECT_EQ(answer->calls[0].id, "c1");
  EXPECT_EQ(answer->calls[0].arguments, "{\"a\": 1}");
  EXPECT_EQ(answer->calls[1].name, "g");
  EXPECT_EQ(answer->calls[1].arguments, "{");
  EXPECT_THAT(server_->requests().back(), HasSubstr("POST /v1/chat/completions HTTP/1.1"));
  EXPECT_EQ(sent(), json::parse(R"({"model":"some/model","max_tokens":100,"temperature":0,
      "tools":[{"type":"function","function":{"name":"f"}}],
      "messages":[{"role":"system","content":"Be short."},{"role":"user","content":"Hi \"you\""},
      {"role":"assistant","content":null,"tool_calls":[{"id":"id1","type":"function",
      "function":{"name":"f","arguments":"{}"}}]},
      {"role":"tool","content":"7","tool_call_id":"id1","name":"f"}]})"));
}

TEST_F(ForeignServerTest, AsksAndReadsCompletions) {
  const auto respondent = connect({http_reply(200, R"({"choices":[{"text":" four","finish_reason":"stop"}]})")});
  const auto answer = respondent->complete({.prompt = "2 + 2 =", .max_tokens = 5, .stop = {"\n", "Q:"}});
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->text, " four");
  EXPECT_FALSE(answer->cut_off);
  EXPECT_EQ(sent(), json::parse(R"({"model":"some/model","prompt":"2 + 2 =","max_tokens":5,"temperature":0,
                                    "stop":["\n","Q:"]})"));
}

// What is no answer by the API's rules must not become a model's wrong answer.
TEST_F(ForeignServerTest, RefusesChatsThatAreNotWhatTheApiHas) {
  const auto chat = [&](const std::string& choice) {
    return connect({http_reply(200, R"({"choices":[{)" + choice + "}]}")})->chat(question("x"));
  };
  const auto message_of = [](const std::string& fields, const char* reason = "stop") {
    return fmt::format(R"("finish_reason":"{}","message":{{"role":"assistant",{}}})", reason, fields);
  };
  const auto calls = [](const char* function) {
    return fmt::format(R"("content":null,"tool_calls":[{{"id":"c","type":"function","function":{}}}])", function);
  };
  for (const auto& [choice, what] : std::initializer_list<std::pair<std::string, const char*>>{
           {R"("finish_reason":"stop","message":"four")", R"("four" in 'message': expected an object)"},
           {message_of(R"("content":[{"type":"text","text":"four"}])"), "in 'content': expected a text or null"},
           {message_of(R"("content":4)"), "4 in 'content': expected a text or null"},
           {message_of(R"("refusal":null)"), "nothing in 'content'"},
           {message_of(R"("content":"","reasoning_content":[])"), "[] in 'reasoning_content'"},
           {message_of(R"("content":"","reasoning":{})"), "{} in 'reasoning'"},
           {message_of(R"("content":null,"tool_calls":{"name":"f"})"), "in 'tool_calls': expected a list"},
           {message_of(R"("content":null,"tool_calls":["f"])"), "nothing in 'tool_calls.function.name'"},
           {message_of(calls(R"({"name":"f","arguments":{"a":1}})")),
            R"({"a":1} in 'tool_calls.function.arguments': expected a text)"},
           {message_of(calls(R"({"arguments":"{}"})")), "nothing in 'tool_calls.function.name': expected a text"},
           {message_of(R"("content":"four")", "content_filter"),
            R"("content_filter" in 'finish_reason': expected stop, length or tool_calls)"},
           {R"("finish_reason":null,"message":{"content":"four"})", "null in 'finish_reason'"},
           {R"("message":{"content":"four"})", "nothing in 'finish_reason'"}}) {
    const auto answer = chat(choice);
    ASSERT_FALSE(answer.has_value()) << choice;
    EXPECT_EQ(answer.error().code(), base::StatusCode::kDataLoss) << choice;
    EXPECT_THAT(answer.error().message(), HasSubstr(what));
    EXPECT_THAT(answer.error().message(), HasSubstr("/v1/chat/completions: the server's answer has "));
  }
  EXPECT_TRUE(chat(message_of(R"("content":null)")).has_value());
  const auto called = chat(message_of(
      R"("tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}])", "tool_calls"));
  ASSERT_TRUE(called.has_value()) << called.error().message();
  EXPECT_FALSE(called->cut_off);
  const auto completion = connect({http_reply(200, R"({"choices":[{"text":"four","finish_reason":"abort"}]})")})
                              ->complete({.prompt = "x", .max_tokens = 5});
  ASSERT_FALSE(completion.has_value());
  EXPECT_THAT(completion.error().message(), HasSubstr(R"(/v1/completions: the server's answer has "abort")"));
}

// What a server says is shown in a terminal, and may be anything.
TEST_F(ForeignServerTest, ShowsErrorsCutAndClean) {
  const std::string page = "<html>\n\x1b[2J\xff" + std::string(5000, 'x');
  for (const int status : {429, 500}) {
    const std::string message = connect({http_reply(status, page)})->chat(question("x")).error().message();
    EXPECT_THAT(message, HasSubstr(fmt::format("{}: <html>\\n\\u001b[2J\xEF\xBF\xBDxxx", status)));
    EXPECT_TRUE(message.ends_with("xxx [...]")) << message;
    EXPECT_LT(message.size(), 800u);
  }
  // What tells a question that is too long from others may stand behind what is shown.
  const std::string late = R"({"error":{"message":")" + std::string(700, 'x') + R"( context length"}})";
  EXPECT_EQ(connect({http_reply(400, late)})->chat(question("x")).error().code(), base::StatusCode::kOutOfRange);
}

TEST_F(ForeignServerTest, ReadsTokens) {
  const auto respondent = connect({http_reply(200, R"({"count":2,"tokens":[1,300]})")});
  EXPECT_THAT(*respondent->encode_prompt("ab"), ElementsAre(1, 300));
  EXPECT_EQ(sent(), json::parse(R"({"model":"some/model","prompt":"ab"})"));
  EXPECT_THAT(*respondent->encode("ab"), ElementsAre(1, 300));
  EXPECT_EQ(sent(), json::parse(R"({"model":"some/model","prompt":"ab","add_special_tokens":false})"));
  EXPECT_THAT(*respondent->encode_chat(question("ab")), ElementsAre(1, 300));
  EXPECT_EQ(sent(), json::parse(R"({"model":"some/model","messages":[{"role":"user","content":"ab"}],
                                    "add_generation_prompt":true})"));
  for (const char* const bad : {R"({"tokens":[1,-3]})", R"({"tokens":[1.5]})", R"({"tokens":"x"})", "{}"}) {
    EXPECT_FALSE(connect({http_reply(200, bad)})->encode("ab").has_value()) << bad;
  }
  const auto without = connect({http_reply(404, "Not Found")});
  EXPECT_EQ(without->encode("ab").error().message(),
            "this task needs the server's tokenizer: /tokenize: 404: Not Found");
}

// What a server says of the prompt "a b c" and one token after it; the second has a tie, the third is not the best.
TEST_F(ForeignServerTest, ReadsScores) {
  const auto respondent = connect({http_reply(200, R"({"choices":[{"text":"abcd","logprobs":{
      "tokens":["a","b","c","d"],"token_logprobs":[null,-0.5,-2.25,0],
      "top_logprobs":[null,{"b":-0.5,"x":-0.5},{"c":-2.25,"y":-0.125},{"d":0}]}}]})")});
  const TokenId tokens[] = {7, 8, 9};
  const auto scores = respondent->score(tokens, 1);
  ASSERT_TRUE(scores.has_value()) << scores.error().message();
  ASSERT_EQ(scores->size(), 2u);
  EXPECT_EQ((*scores)[0].logprob, -0.5);
  EXPECT_TRUE((*scores)[0].is_best);
  EXPECT_EQ((*scores)[1].logprob, -2.25);
  EXPECT_FALSE((*scores)[1].is_best);
  EXPECT_EQ(sent(), json::parse(R"({"model":"some/model","prompt":[7,8,9],"max_tokens":1,"temperature":0,"echo":true,
                                    "logprobs":1})"));
  EXPECT_EQ(respondent->score(tokens, 2)->size(), 1u);
}

TEST_F(ForeignServerTest, SaysThatItDoesNotScore) {
  const TokenId tokens[] = {7, 8, 9};
  const std::string needs =
      "this task needs the log-probabilities of given tokens (/v1/completions with echo and "
      "logprobs): /v1/completions: ";
  for (const auto& [status, body, what] : std::initializer_list<std::tuple<int, const char*, const char*>>{
           {400, R"({"error":{"message":"echo is not supported"}})", "400: echo is not supported"},
           {404, "nothing here", "404: nothing here"},
           {200, R"({"choices":[{"text":"d","logprobs":{"token_logprobs":[-1],"top_logprobs":[{"d":-1}]}}]})",
            "the server's answer has no logprobs of all 3 tokens"},
           {200, R"({"choices":[{"text":"d","logprobs":null}]})",
            "the server's answer has no logprobs of all 3 tokens"},
           {200, R"({"choices":[{"logprobs":{"token_logprobs":[null,null,-1],"top_logprobs":[null,{},{}]}}]})",
            "the server's answer has no log-probability of token 1"}}) {
    const auto respondent = connect({http_reply(status, body)});
    EXPECT_EQ(respondent->score(tokens, 1).error().message(), needs + what);
  }
}

TEST_F(ForeignServerTest, TellsTooLongFromOtherErrors) {
  const auto code = [&](int status, const char* body) {
    return connect({http_reply(status, body)})->chat(question("x")).error().code();
  };
  using enum base::StatusCode;
  EXPECT_EQ(code(400, R"({"error":{"code":"context_length_exceeded","message":"too long"}})"), kOutOfRange);
  EXPECT_EQ(code(400, R"({"object":"error","message":"This model's maximum context length is 4096 tokens."})"),
            kOutOfRange);
  EXPECT_EQ(code(400, R"({"error":{"message":"bad"}})"), kInvalidArgument);
  EXPECT_EQ(code(401, "{}"), kInvalidArgument);
  EXPECT_EQ(code(500, "oops"), kInternal);
  EXPECT_EQ(code(429, "{}"), kUnavailable);
  EXPECT_EQ(code(200, "{"), kDataLoss);
  EXPECT_EQ(code(200, R"({"choices":[]})"), kUnimplemented);
  const auto respondent = connect({http_reply(500, R"({"error":{"message":"out of luck"}})")});
  EXPECT_EQ(respondent->chat(question("x")).error().message(), "/v1/chat/completions: 500: out of luck");
}

// The project's own server, over an engine that follows a script.
class OwnServerTest : public test_support::HttpServerTest {
 protected:
  std::unique_ptr<HttpRespondent> connect() {
    RespondentOptions options;
    options.http.server.port = port_;
    auto respondent = HttpRespondent::connect(options, stop_);
    EXPECT_TRUE(respondent.has_value()) << respondent.error().message();
    return std::move(*respondent);
  }
  std::atomic<bool> stop_ = false;
};

TEST_F(OwnServerTest, DisclosesAndAnswers) {
  serve([](const auto&) { return say("four"); });
  const auto respondent = connect();
  EXPECT_EQ(respondent->info().model, "toy");
  EXPECT_EQ(respondent->info().precision, "prefill=bf16/bf16; decode=bf16/bf16");
  EXPECT_EQ(respondent->info().digest, "d1ge57");
  EXPECT_EQ(respondent->info().context_tokens, 256);
  const auto answer = respondent->chat(question("2 + 2?"));
  ASSERT_TRUE(answer.has_value()) << answer.error().message();
  EXPECT_EQ(answer->text, "four");
  EXPECT_FALSE(answer->cut_off);
  const auto cut = respondent->complete({.prompt = "x", .max_tokens = 2});
  ASSERT_TRUE(cut.has_value()) << cut.error().message();
  EXPECT_EQ(cut->text, "fo");
  EXPECT_TRUE(cut->cut_off);
  const auto stopped = respondent->complete({.prompt = "x", .max_tokens = 10, .stop = {"u"}});
  EXPECT_EQ(stopped->text, "fo");
  EXPECT_FALSE(stopped->cut_off);
  EXPECT_THAT(*respondent->encode("ab"), ElementsAre('a', 'b'));
  EXPECT_EQ(respondent->chat(question(std::string(300, 'x'))).error().code(), base::StatusCode::kOutOfRange);
}

TEST_F(OwnServerTest, IsAskedByManyAtOnce) {
  serve([](const auto& spec) { return say(std::to_string(spec.prompt.size())); });
  const auto respondent = connect();
  std::vector<std::jthread> threads;
  threads.reserve(8);
  std::atomic<int> right = 0;
  for (int thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 10; ++i) {
        const std::string prompt(static_cast<std::size_t>(1 + thread * 10 + i), 'x');
        const auto answer = respondent->complete({.prompt = prompt, .max_tokens = 8});
        if (answer.has_value() && answer->text == std::to_string(prompt.size())) ++right;
      }
    });
  }
  threads.clear();
  EXPECT_EQ(right, 80);
}

}  // namespace
}  // namespace tessera::app
