// Completions that begin with their prompt, with log-probabilities: the scripted engine says -i/4 of token i of a
// prompt and -1/2 of what it generates.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>
#include <vector>

#include "tests/support/http_server_fixture.h"

namespace tessera::server {
namespace {

namespace json = boost::json;
using test_support::byte_tokens;
using test_support::http_post;
using test_support::HttpAnswer;
using test_support::HttpServerTest;
using test_support::Script;

class HttpEcho : public HttpServerTest {
 protected:
  void serve_xy() {
    serve([](const auto&) { return Script{.tokens = byte_tokens("xy")}; });
  }
  json::value ask(const std::string& fields) {
    const HttpAnswer answer = http_post(port_, "/v1/completions", "{" + fields + "}");
    EXPECT_EQ(answer.status, 200) << answer.body;
    return json::parse(answer.body);
  }
  json::value choice(const std::string& fields) { return ask(fields).at("choices").at(0); }
  std::string error(const std::string& fields, const char* path = "/v1/completions") {
    const HttpAnswer answer = http_post(port_, path, "{" + fields + "}");
    return fmt::format("{} {}", answer.status,
                       std::string(json::parse(answer.body).at("error").at("message").as_string()));
  }
};

TEST_F(HttpEcho, GivesLogprobsOfPromptAndAnswer) {
  serve_xy();
  const json::value one = choice(R"("prompt":"abc","max_tokens":2,"logprobs":2,"echo":true)");
  EXPECT_EQ(one.at("text").as_string(), "abcxy");
  EXPECT_EQ(one.at("finish_reason").as_string(), "length");
  // The alternatives of the prompt are bytes 200 and 201, of the answer 0 and 1; each token itself comes with them.
  EXPECT_EQ(one.at("logprobs"), json::parse(R"({"tokens":["a","b","c","x","y"],
      "token_logprobs":[null,-0.25,-0.5,-0.5,-0.5],
      "top_logprobs":[null,
        {"\ufffd":-1,"token_id:201":-2,"b":-0.25},
        {"\ufffd":-1,"token_id:201":-2,"c":-0.5},
        {"\u0000":-1,"\u0001":-2,"x":-0.5},
        {"\u0000":-1,"\u0001":-2,"y":-0.5}],
      "text_offset":[0,1,2,3,4]})"));
}

TEST_F(HttpEcho, NeverLosesTheTokensOwnLogprob) {
  serve_xy();
  // Token 8 is one of the alternatives; token 4 is none, and has the text of one.
  const json::value top = choice(R"("prompt":[1,1,1,1,250,1,1,1,201],"max_tokens":1,"logprobs":2,"echo":true)")
                              .at("logprobs")
                              .at("top_logprobs");
  EXPECT_EQ(top.at(8), json::parse(R"({"token_id:200":-1,"\ufffd":-2})"));
  EXPECT_EQ(top.at(4), json::parse(R"({"token_id:200":-1,"token_id:201":-2,"\ufffd":-1})"));
  const json::value none = choice(R"("prompt":"ab","max_tokens":1,"logprobs":0,"echo":true)").at("logprobs");
  EXPECT_EQ(none.at("top_logprobs"), json::parse(R"([null,{"b":-0.25},{"x":-0.5}])"));
}

TEST_F(HttpEcho, OfThePromptAlone) {
  serve_xy();
  const json::value answer = ask(R"("prompt":"ab","max_tokens":0,"logprobs":0,"echo":true)");
  const json::value& one = answer.at("choices").at(0);
  EXPECT_EQ(one.at("text").as_string(), "ab");
  EXPECT_EQ(one.at("logprobs").at("token_logprobs"), json::parse("[null,-0.25]"));
  EXPECT_EQ(one.at("finish_reason").as_string(), "length");
  EXPECT_EQ(answer.at("usage").at("prompt_tokens").as_int64(), 2);
  EXPECT_EQ(answer.at("usage").at("completion_tokens").as_int64(), 0);
  EXPECT_EQ(engine_->started().back().sampling.max_tokens, 0);
  const json::value single = choice(R"("prompt":[97],"max_tokens":0,"logprobs":1,"echo":true)");
  EXPECT_EQ(single.at("logprobs"),
            json::parse(R"({"tokens":["a"],"token_logprobs":[null],"top_logprobs":[null],"text_offset":[0]})"));
  const json::value plain = choice(R"("prompt":"ab","max_tokens":0,"echo":true)");
  EXPECT_EQ(plain.at("text").as_string(), "ab");
  EXPECT_TRUE(plain.at("logprobs").is_null());
}

TEST_F(HttpEcho, CharactersOfSeveralTokensAndControlTokens) {
  serve_xy();
  // An offset is where the text stood before the token: within a character, before the character.
  const json::value one = choice(R"("prompt":"né!","max_tokens":1,"logprobs":0,"echo":true)");
  EXPECT_EQ(one.at("text").as_string(), "né!x");
  EXPECT_EQ(one.at("logprobs").at("tokens"), json::parse(R"(["n","\ufffd","\ufffd","!","x"])"));
  EXPECT_EQ(one.at("logprobs").at("text_offset"), json::parse("[0,1,1,3,4]"));
  // A rendered chat, as /tokenize gives it: control tokens are prompt tokens, and no text.
  const HttpAnswer rendered = http_post(port_, "/tokenize", R"({"messages":[{"role":"user","content":"hi"}]})");
  const json::value ids = json::parse(rendered.body).at("tokens");
  EXPECT_EQ(ids.at(0).as_int64(), 256);
  const json::value chat =
      choice(fmt::format(R"("prompt":{},"max_tokens":1,"logprobs":0,"echo":true)", json::serialize(ids)));
  EXPECT_EQ(engine_->started().back().prompt, json::value_to<std::vector<std::int32_t>>(ids));
  EXPECT_EQ(chat.at("text").as_string(), "user:hix");
  EXPECT_EQ(chat.at("logprobs").at("tokens").at(0).as_string(), "<|turn|>");
  EXPECT_EQ(chat.at("logprobs").at("text_offset"), json::parse("[0,0,1,2,3,4,5,6,7,7,7]"));
  // A prompt that ends within a character.
  const json::value cut = choice(R"("prompt":[97,195],"max_tokens":1,"logprobs":0,"echo":true)");
  EXPECT_EQ(cut.at("text").as_string(), "a\xef\xbf\xbdx");
  EXPECT_EQ(cut.at("logprobs").at("text_offset"), json::parse("[0,1,4]"));
}

TEST_F(HttpEcho, ChoicesAreInTheOrderOfTheirPrompts) {
  serve_xy();
  // What clients that score choices send.
  const json::value answer = ask(
      R"("model":"toy","prompt":[[97,98,99],[100],[101,102]],"temperature":0,"max_tokens":1,"logprobs":1,"seed":1234,"echo":true)");
  ASSERT_EQ(answer.at("choices").as_array().size(), 3u);
  EXPECT_EQ(answer.at("choices").at(0).at("logprobs").at("tokens"), json::parse(R"(["a","b","c","x"])"));
  EXPECT_EQ(answer.at("choices").at(1).at("logprobs").at("tokens"), json::parse(R"(["d","x"])"));
  EXPECT_EQ(answer.at("choices").at(2).at("logprobs").at("tokens"), json::parse(R"(["e","f","x"])"));
  const json::value twice = ask(R"("prompt":["ab",[99,100]],"n":2,"max_tokens":1,"logprobs":1,"echo":true)");
  ASSERT_EQ(twice.at("choices").as_array().size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(twice.at("choices").at(i).at("text").as_string(), i < 2 ? "abx" : "cdx");
    EXPECT_EQ(twice.at("choices").at(i).at("logprobs").at("token_logprobs"), json::parse("[null,-0.25,-0.5]"));
  }
}

TEST_F(HttpEcho, StreamedItIsTheSame) {
  serve_xy();
  const std::string request = R"("prompt":["né, and so on","b"],"max_tokens":2,"logprobs":2,"echo":true,"seed":1)";
  const json::value whole = ask(request);
  const HttpAnswer streamed = http_post(port_, "/v1/completions", "{" + request + R"(,"stream":true})");
  ASSERT_EQ(streamed.status, 200);
  struct Joined {
    std::string text;
    json::object logprobs;
    json::value reason;
    int chunks = 0;
  };
  std::vector<Joined> joined(2);
  std::size_t at = 0;
  while ((at = streamed.body.find("data: {", at)) != std::string::npos) {
    const std::size_t end = streamed.body.find("\n\n", at);
    const json::value one = json::parse(streamed.body.substr(at + 6, end - at - 6)).at("choices").at(0);
    at = end;
    Joined& into = joined.at(static_cast<std::size_t>(one.at("index").as_int64()));
    ++into.chunks;
    into.text += std::string_view(one.at("text").as_string());
    into.reason = one.at("finish_reason");
    if (one.at("logprobs").is_null()) continue;
    for (const auto& [name, values] : one.at("logprobs").as_object()) {
      json::value& all = into.logprobs[name];
      if (all.is_null()) all = json::array();
      for (const json::value& value : values.as_array()) all.as_array().push_back(value);
    }
  }
  for (std::size_t i = 0; i < 2; ++i) {
    const json::value& expected = whole.at("choices").at(i);
    EXPECT_EQ(joined[i].text, std::string_view(expected.at("text").as_string()));
    EXPECT_EQ(json::value(joined[i].logprobs), expected.at("logprobs"));
    EXPECT_EQ(joined[i].reason, expected.at("finish_reason"));
  }
  // The prompt comes as the engine gets on with it.
  EXPECT_GE(joined[0].chunks, 5);
}

TEST_F(HttpEcho, AFailureAmongThePromptsEndsTheAnswer) {
  serve([](const auto&) { return Script{.failure = base::corruption("x")}; });
  EXPECT_TRUE(error(R"("prompt":"abcdefgh","logprobs":1,"echo":true)").starts_with("500 "));
  EXPECT_TRUE(becomes_idle());
}

TEST_F(HttpEcho, RoomForThePrompt) {
  serve_xy();
  const auto prompt = [](int tokens) {
    std::string ids = "[1";
    for (int i = 1; i < tokens; ++i) ids += ",1";
    return fmt::format(R"("prompt":{}],"echo":true,"logprobs":0)", ids);
  };
  EXPECT_EQ(choice(prompt(256) + R"(,"max_tokens":0)").at("logprobs").at("tokens").as_array().size(), 256u);
  EXPECT_EQ(error(prompt(257) + R"(,"max_tokens":0)"), "400 the prompt has 257 tokens; this server has room for 256");
  EXPECT_EQ(error(prompt(256) + R"(,"max_tokens":1)"),
            "400 the prompt has 256 tokens; with at least one to generate this server has room for 255");
  EXPECT_EQ(error(R"("prompt":"a","max_tokens":0)"), "400 'max_tokens': 0 is outside 1 to 16777216");
  EXPECT_EQ(error(R"("messages":[{"role":"user","content":"x"}],"echo":true)", "/v1/chat/completions"),
            "400 'echo': unknown field");
}

TEST_F(HttpEcho, LogprobsOfOneAnswerAreLimited) {
  serve_xy();
  std::string ids = "[1";
  for (int i = 1; i < 255; ++i) ids += ",1";
  std::string prompts = ids + "]";
  for (int i = 1; i < 16; ++i) prompts += "," + ids + "]";
  // 16 prompts, 16 choices of each, 255 tokens, 21 numbers for each.
  EXPECT_EQ(
      error(fmt::format(R"("prompt":[{}],"n":16,"echo":true,"logprobs":20,"max_tokens":1)", prompts)),
      "400 'echo': with 'logprobs' one answer has at most 1048576 log-probabilities of prompt tokens, alternatives "
      "included, over all choices; send fewer prompts at a time");
}

}  // namespace
}  // namespace tessera::server
