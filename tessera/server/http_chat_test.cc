// Reasoning and tool calls, streamed and not, as clients get them.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <boost/json.hpp>
#include <chrono>
#include <set>
#include <thread>

#include "tessera/base/limits.h"
#include "tests/support/http_server_fixture.h"

namespace tessera::server {
namespace {

namespace json = boost::json;
using test_support::http_get;
using test_support::http_post;
using test_support::HttpAnswer;
using test_support::HttpServerTest;

constexpr const char* kTools =
    R"("tools":[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{
      "city":{"type":"string"},"days":{"type":"integer"}}}}}])";

std::string body_with(const std::string& fields, const char* stream = "false") {
  return std::string(R"({"messages":[{"role":"user","content":"hi"}],"stream":)") + stream + "," + fields + "}";
}

// An answer put together from what a client is given; two of these are equal if the client sees the same.
struct Seen {
  std::string reasoning, content, finish_reason;
  std::vector<std::string> calls;  // "name arguments"
  std::vector<std::string> ids;
  friend bool operator==(const Seen& a, const Seen& b) {
    return a.reasoning == b.reasoning && a.content == b.content && a.finish_reason == b.finish_reason &&
           a.calls == b.calls;
  }
};

std::string string_in(const json::object& object, const char* name) {
  const json::value* value = object.if_contains(name);
  return value == nullptr || value->is_null() ? "" : std::string(value->as_string());
}

class HttpChat : public HttpServerTest {
 protected:
  Seen whole(const std::string& fields) {
    const HttpAnswer answer = http_post(port_, "/v1/chat/completions", body_with(fields));
    EXPECT_EQ(answer.status, 200) << answer.body;
    Seen seen;
    if (answer.status != 200) return seen;
    const json::value choice = json::parse(answer.body).at("choices").at(0);
    const json::object& message = choice.at("message").as_object();
    seen.finish_reason = choice.at("finish_reason").as_string();
    seen.reasoning = string_in(message, field_);
    seen.content = string_in(message, "content");
    if (const json::value* calls = message.if_contains("tool_calls")) {
      EXPECT_EQ(message.at("content").is_null(), seen.content.empty());
      for (const json::value& call : calls->as_array()) {
        EXPECT_EQ(call.at("type").as_string(), "function");
        seen.ids.emplace_back(call.at("id").as_string());
        seen.calls.push_back(string_in(call.at("function").as_object(), "name") + " " +
                             string_in(call.at("function").as_object(), "arguments"));
      }
    }
    return seen;
  }

  Seen streamed(const std::string& fields) {
    const HttpAnswer answer = http_post(port_, "/v1/chat/completions", body_with(fields, "true"));
    EXPECT_EQ(answer.status, 200) << answer.body;
    EXPECT_TRUE(answer.body.ends_with("data: [DONE]\n\n"));
    EXPECT_EQ(answer.body.find("usage"), std::string::npos);  // Nobody asked for it.
    Seen seen;
    std::size_t at = 0;
    while ((at = answer.body.find("data: {", at)) != std::string::npos) {
      const std::size_t end = answer.body.find("\n\n", at);
      const json::value choice = json::parse(answer.body.substr(at + 6, end - at - 6)).at("choices").at(0);
      at = end;
      EXPECT_EQ(seen.finish_reason, "") << "a chunk after the last one";
      seen.finish_reason += string_in(choice.as_object(), "finish_reason");
      const json::object& delta = choice.at("delta").as_object();
      seen.reasoning += string_in(delta, field_);
      seen.content += string_in(delta, "content");
      const json::value* calls = delta.if_contains("tool_calls");
      if (calls != nullptr) add_calls(calls->as_array(), seen);
    }
    return seen;
  }

  // The answer, after a look at whether it comes the same streamed.
  Seen answer(const std::string& fields) {
    const Seen seen = whole(fields);
    const Seen in_parts = streamed(fields);
    EXPECT_EQ(in_parts, seen) << in_parts.content << "|" << seen.content << "|" << in_parts.finish_reason;
    return seen;
  }

  const char* field_ = "reasoning_content";

 private:
  static void add_calls(const json::array& calls, Seen& seen) {
    for (const json::value& call : calls) {
      const auto index = static_cast<std::size_t>(call.at("index").as_int64());
      const json::object& function = call.at("function").as_object();
      if (index == seen.calls.size()) {
        EXPECT_EQ(call.at("type").as_string(), "function");
        seen.ids.emplace_back(call.at("id").as_string());
        seen.calls.push_back(string_in(function, "name") + " ");
      } else {
        EXPECT_EQ(index + 1, seen.calls.size());
        EXPECT_FALSE(call.as_object().contains("id") || call.as_object().contains("type") || function.contains("name"));
      }
      seen.calls.back() += string_in(function, "arguments");
    }
  }
};

constexpr const char* kKimiAnswer =
    "Let me see.</think>I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
    "<|tool_call_argument_begin|>{\"city\": \"Zürich\", \"days\": 2}<|tool_call_end|><|tool_call_begin|>"
    "functions.get_weather:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>";

TEST_F(HttpChat, ReasoningContentAndCallsComeTheSameStreamedAndNot) {
  speak("kimi_k25");
  serve([&](const auto&) { return write(kKimiAnswer); });
  const Seen seen = answer(kTools);
  EXPECT_EQ(seen.reasoning, "Let me see.");
  EXPECT_EQ(seen.content, "I look.");
  EXPECT_EQ(seen.calls,
            (std::vector<std::string>{"get_weather {\"city\": \"Zürich\", \"days\": 2}", "get_weather {}"}));
  EXPECT_EQ(seen.ids, (std::vector<std::string>{"functions.get_weather:0", "functions.get_weather:1"}));
  EXPECT_EQ(seen.finish_reason, "tool_calls");
}

TEST_F(HttpChat, CallsWithoutIdsOfTheirOwnGetUniqueOnes) {
  speak("glm47");
  serve([&](const auto&) {
    return write(
        "</think><tool_call>get_weather<arg_key>city</arg_key><arg_value>Bern</arg_value><arg_key>days</arg_key>"
        "<arg_value>3</arg_value></tool_call><tool_call>get_weather</tool_call>");
  });
  std::set<std::string> ids;
  for (int i = 0; i < 2; ++i) {
    const Seen seen = i == 0 ? whole(kTools) : streamed(kTools);
    ASSERT_EQ(seen.calls.size(), 2u);
    EXPECT_EQ(json::parse(seen.calls[0].substr(12)), (json::value{{"city", "Bern"}, {"days", 3}}));
    EXPECT_EQ(seen.calls[1], "get_weather {}");
    for (const std::string& id : seen.ids) {
      EXPECT_TRUE(id.starts_with("call_") && id.size() == 29) << id;
      ids.insert(id);
    }
  }
  EXPECT_EQ(ids.size(), 4u);
}

// Kimi's ids are the model's text: nothing else keeps it from using one twice, or from one that is far too long.
TEST_F(HttpChat, CallsThatTheModelGaveOneIdGetDifferentOnes) {
  speak("kimi_k2");
  const std::string id = "functions.get_weather:0";
  const auto call = [](const std::string& name) {
    return "<|tool_call_begin|>" + name + "<|tool_call_argument_begin|>{}<|tool_call_end|>";
  };
  serve([&](const auto&) {
    return write("<|tool_calls_section_begin|>" + call(id) + call(id) +
                 call("functions.ping:" + std::string(600, '1')) + call(id) + "<|tool_calls_section_end|>");
  });
  for (int i = 0; i < 2; ++i) {
    const Seen seen = i == 0 ? whole(kTools) : streamed(kTools);
    ASSERT_EQ(seen.ids.size(), 4u);
    EXPECT_EQ(seen.ids[0], id);
    EXPECT_EQ(std::set<std::string>(seen.ids.begin(), seen.ids.end()).size(), 4u);
    for (std::size_t at = 1; at < 4; ++at) EXPECT_TRUE(seen.ids[at].starts_with("call_")) << seen.ids[at];
  }
}

// A message that has calls alone has no content, not even an empty one, and one that has nothing has an empty one: also
// when it is put together from deltas.
TEST_F(HttpChat, DeltasHaveContentWhereTheWholeAnswerHas) {
  speak("kimi_k25");
  std::string text;
  serve([&](const auto&) { return write(text); });
  const std::string calls = std::string(kKimiAnswer).substr(std::string(kKimiAnswer).find("<|"));
  for (const auto& [written, content] : {std::pair<std::string, json::value>{"r</think>" + calls, nullptr},
                                         {"r</think>", ""},
                                         {"</think>", ""},
                                         {"r</think>c" + calls, "c"},
                                         {"r</think>c", "c"}}) {
    text = written;
    const HttpAnswer answer = http_post(port_, "/v1/chat/completions", body_with(kTools));
    EXPECT_EQ(json::parse(answer.body).at("choices").at(0).at("message").at("content"), content) << written;
    json::value sum;
    const HttpAnswer stream = http_post(port_, "/v1/chat/completions", body_with(kTools, "true"));
    for (std::size_t at = 0; (at = stream.body.find("data: {", at)) != std::string::npos; ++at) {
      const std::string event = stream.body.substr(at + 6, stream.body.find("\n\n", at) - at - 6);
      const json::value parsed = json::parse(event);
      const json::object& delta = parsed.at("choices").at(0).at("delta").as_object();
      if (!delta.contains("content")) continue;
      sum = (sum.is_null() ? "" : std::string(sum.as_string())) + std::string(delta.at("content").as_string());
    }
    EXPECT_EQ(sum, content) << written;
  }
}

// Clients make the choices of an answer in the order in which they first see them.
TEST_F(HttpChat, ChoicesBeginInOrderWhicheverIsFirst) {
  speak("kimi_k2");
  std::atomic<int> sequences = 0;
  serve([&](const auto&) { return sequences++ == 0 ? test_support::Script{.hold = true} : write("x"); });
  test_support::HttpConnection client(port_);
  client.send_request("POST", "/v1/chat/completions", body_with(R"("n":2)", "true"));
  ASSERT_TRUE(client.read_until("\"content\":\"x\""));
  const std::string begin = client.buffered();
  EXPECT_LT(begin.find(R"("index":0,"delta":{"role":"assistant"})"), begin.find(R"("index":1,"delta":{"role":)"));
  EXPECT_LT(begin.find(R"("index":1,"delta":{"role":)"), begin.find(R"("index":1,"delta":{"content":"x")"));
  const request::SequenceId held = engine_->started()[0].id;
  ASSERT_TRUE(events_.try_push({0, request::SequenceFinished{held, request::FinishReason::kStop, {}}}));
  const HttpAnswer answer = client.read_answer();
  EXPECT_TRUE(answer.body.ends_with("data: [DONE]\n\n"));
}

// A model may write for long what cannot be told yet. Then too nothing is silent for longer than the interval.
TEST_F(HttpChat, KeepsTheStreamAliveWhileTheParserHoldsBack) {
  speak("kimi_k2");
  HttpServerOptions options;
  options.keep_alive_interval = std::chrono::milliseconds(100);
  serve(
      [&](const auto&) {
        return test_support::Script{
            .tokens = test_support::marked_tokens("<|tool_calls_section_begin|><|tool_call_begin|>functions."),
            .hold = true};
      },
      options);
  test_support::HttpConnection client(port_);
  client.send_request("POST", "/v1/chat/completions", body_with(kTools, "true"));
  ASSERT_TRUE(client.read_until("\"role\""));
  const request::SequenceId id = engine_->started()[0].id;
  std::int32_t index = static_cast<std::int32_t>(
      test_support::marked_tokens("<|tool_calls_section_begin|><|tool_call_begin|>functions.").size());
  for (int i = 0; i < 40; ++i) {
    request::TokenEvent token;
    token.id = id;
    token.index = index++;
    token.token = 'x';
    ASSERT_TRUE(events_.try_push({0, token}));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ASSERT_TRUE(events_.try_push({0, request::SequenceFinished{id, request::FinishReason::kLength, {}}}));
  const std::string body = client.read_answer().body;
  EXPECT_NE(body.find(": waiting\n\n"), std::string::npos) << body;
  EXPECT_TRUE(body.ends_with("data: [DONE]\n\n"));
}

TEST_F(HttpChat, RefusalsOfTheRenderingNameTheirField) {
  speak("smollm2");
  serve([&](const auto&) { return write("x"); });
  for (const auto& [fields, param] : {std::pair<const char*, const char*>{kTools, "tools"},
                                      {R"("chat_template_kwargs":{"thinking":true})", "chat_template_kwargs"},
                                      {R"("chat_template_kwargs":{"preserve_thinking":true})", "chat_template_kwargs"},
                                      {R"("reasoning_effort":"high")", "reasoning_effort"}}) {
    const HttpAnswer answer = http_post(port_, "/v1/chat/completions", body_with(fields));
    EXPECT_EQ(answer.status, 400) << answer.body;
    EXPECT_EQ(json::parse(answer.body).at("error").at("param").as_string(), param) << answer.body;
  }
  const HttpAnswer answer = http_post(port_, "/v1/chat/completions", R"({"messages":[{"role":"assistant",
      "tool_calls":[{"function":{"name":"f"}}]}]})");
  EXPECT_EQ(json::parse(answer.body).at("error").at("param").as_string(), "messages") << answer.body;
}

TEST_F(HttpChat, RefusesToolsOfTooManyValuesByTheirField) {
  speak("qwen25");
  serve([&](const auto&) { return write("x"); });
  std::string values = "0";
  for (std::int64_t i = 0; i < base::limits::kToolValuesMax; ++i) values += ",0";
  const HttpAnswer answer = http_post(
      port_, "/v1/chat/completions",
      body_with(R"("tools":[{"type":"function","function":{"name":"f","parameters":{"enum":[)" + values + "]}}}]"));
  EXPECT_EQ(answer.status, 400) << answer.body;
  EXPECT_EQ(json::parse(answer.body).at("error").at("param").as_string(), "tools") << answer.body;
}

// What ends an answer is told truly, whatever calls are in it.
TEST_F(HttpChat, FinishReasonSaysWhatHappened) {
  speak("kimi_k25");
  serve([&](const auto&) { return write(kKimiAnswer); });
  const std::string tools = kTools;
  const Seen cut = answer(tools + R"(,"max_tokens":70)");  // In the first call's arguments.
  EXPECT_EQ(cut.finish_reason, "length");
  ASSERT_EQ(cut.calls.size(), 1u);
  EXPECT_TRUE(cut.calls[0].starts_with("get_weather {\"city\"")) << cut.calls[0];
  const Seen stopped = answer(tools + R"(,"stop":"rich")");
  EXPECT_EQ(stopped.finish_reason, "stop");
  EXPECT_EQ(stopped.calls, std::vector<std::string>{"get_weather {\"city\": \"Zü"});
  const Seen after_a_call = answer(tools + R"(,"stop":":1")");
  EXPECT_EQ(after_a_call.finish_reason, "stop");
  EXPECT_EQ(after_a_call.calls.size(), 1u);
  const Seen thinking = answer(tools + R"(,"max_tokens":5)");
  EXPECT_EQ(thinking.reasoning, "Let m");
  EXPECT_EQ(thinking.content, "");
  EXPECT_EQ(thinking.finish_reason, "length");
}

TEST_F(HttpChat, ToolsThatMayNotBeCalledAreNeitherDeclaredNorParsed) {
  speak("kimi_k25");
  serve([&](const auto&) { return write(kKimiAnswer); });
  const std::string tools = kTools;
  const Seen seen = answer(tools + R"(,"tool_choice":"none")");
  EXPECT_TRUE(seen.calls.empty());
  EXPECT_EQ(seen.finish_reason, "stop");
  EXPECT_EQ(seen.content.find("<|"), std::string::npos) << "a marker leaked: " << seen.content;
  answer(tools);
  const auto prompt = [&](std::size_t i) {
    return tokenizer_->decode(engine_->started()[i].prompt, text::SpecialTokens::kKeep);
  };
  EXPECT_EQ(prompt(0).find("get_weather"), std::string::npos);
  EXPECT_NE(prompt(2).find("get_weather"), std::string::npos);
}

TEST_F(HttpChat, ThinkingIsChosenByTheRequest) {
  speak("kimi_k25");
  serve([&](const auto&) { return write("plain"); });
  const Seen seen = answer(R"("chat_template_kwargs":{"thinking":false})");
  EXPECT_EQ(seen.content, "plain");
  EXPECT_EQ(seen.reasoning, "");
  EXPECT_TRUE(
      tokenizer_->decode(engine_->started()[0].prompt, text::SpecialTokens::kKeep).ends_with("<think></think>"));
  EXPECT_EQ(answer(R"("temperature":0)").reasoning, "plain");
  const HttpAnswer refused = http_post(port_, "/v1/chat/completions", body_with(R"("reasoning_effort":"high")"));
  EXPECT_EQ(refused.status, 400);
  EXPECT_NE(refused.body.find("reasoning_effort"), std::string::npos) << refused.body;
}

TEST_F(HttpChat, FlagsChooseParsersAndTheNameOfReasoning) {
  speak("kimi_k25");
  service_options_.parsers = {*reasoning_parser_named("auto"), *tool_call_parser_named("none")};
  service_options_.reasoning_field = ReasoningField::kReasoning;
  field_ = "reasoning";
  serve([&](const auto&) { return write(kKimiAnswer); });
  const Seen seen = answer(kTools);
  EXPECT_EQ(seen.reasoning, "Let me see.");
  EXPECT_TRUE(seen.calls.empty());
  const json::value info = json::parse(http_get(port_, "/get_server_info").body);
  EXPECT_EQ(info.at("chat_format").as_string(), "kimi_k25");
  EXPECT_EQ(info.at("reasoning_parser").as_string(), "think");
  EXPECT_EQ(info.at("tool_call_parser").as_string(), "none");
  EXPECT_EQ(tool_call_parser_named("qwen25"), text::ToolCallSyntax::kHermes);
  EXPECT_EQ(reasoning_parser_named("deepseek-r1"), text::ReasoningSyntax::kInside);
  EXPECT_NE(tool_call_parser_named("pythonic").error().message().find("kimi_k2"), std::string::npos);
}

TEST_F(HttpChat, AReasoningParserThatTheFormatCannotFollowIsRefused) {
  tokenizer_ = test_support::byte_tokenizer(test_support::family_control_tokens());
  const auto check = [&](std::string_view parser, std::string_view format) {
    const ParserChoice choice{.reasoning = *reasoning_parser_named(parser)};
    return check_reasoning_parser(**text::ChatFormat::by_name(format, *tokenizer_), choice).message();
  };
  for (const char* parser : {"qwen3-thinking", "deepseek-r1", "deepseek_r1"}) {
    EXPECT_NE(check(parser, "qwen3").find("qwen3"), std::string::npos) << parser;
    EXPECT_NE(check(parser, "kimi_k2_thinking").find("kimi_k2_thinking"), std::string::npos) << parser;
    EXPECT_EQ(check(parser, "qwen3_thinking_2507"), "");
    EXPECT_EQ(check(parser, "glm47"), "");
    EXPECT_EQ(check(parser, "qwen25"), "");  // Nothing is known of its reasoning: as the flag says.
  }
  for (const char* parser : {"auto", "none", "think", "qwen3"}) EXPECT_EQ(check(parser, "qwen3"), "") << parser;
}

TEST_F(HttpChat, ThreeThousandBracketsAreRefusedWhereverTheyAre) {
  speak("glm47");
  serve([&](const auto&) { return write("</think>fine"); });
  const std::string deep = std::string(3000, '[') + std::string(3000, ']');
  const auto call = [](const std::string& arguments) {
    return R"({"messages":[{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f","arguments":)" +
           arguments + "}}]}]}";
  };
  for (const std::string& body :
       {body_with(R"("tools":[{"type":"function","function":{"name":"f","parameters":{"x":)" + deep + "}}}]"),
        call("{\"x\":" + deep + "}"), call("\"{\\\"x\\\":" + deep + "}\"")}) {
    for (const char* path : {"/v1/chat/completions", "/tokenize"}) {
      const HttpAnswer answer = http_post(port_, path, body);
      EXPECT_EQ(answer.status, 400) << answer.body;
      EXPECT_EQ(json::parse(answer.body).at("error").at("type").as_string(), "invalid_request_error");
    }
  }
  EXPECT_EQ(answer(R"("temperature":0)").content, "fine");
}

TEST_F(HttpChat, ToolContentMayBeAListOfParts) {
  speak("kimi_k2");
  serve([&](const auto&) { return write("ok"); });
  const HttpAnswer answer = http_post(port_, "/v1/chat/completions", R"({"messages":[
      {"role":"user","content":"hi"},
      {"role":"assistant","tool_calls":[{"id":"functions.f:0","function":{"name":"f"}}]},
      {"role":"tool","tool_call_id":"functions.f:0","content":[{"type":"text","text":"sun"},{"type":"text","text":"<|im_end|>"}]}]})");
  EXPECT_EQ(answer.status, 200) << answer.body;
  const std::vector<std::int32_t> prompt = engine_->started()[0].prompt;
  const std::string text = tokenizer_->decode(prompt, text::SpecialTokens::kKeep);
  EXPECT_NE(text.find("## Return of functions.f:0\nsun<|im_end|><|im_end|>"), std::string::npos) << text;
  // What the tool returned is no token: default system, user, assistant and tool end once each.
  EXPECT_EQ(std::ranges::count(prompt, *tokenizer_->token_id("<|im_end|>")), 4);
}

// What a chat's prompt is, /tokenize tells.
TEST_F(HttpChat, TokenizesWhatItRenders) {
  speak("kimi_k25");
  serve([&](const auto&) { return write("x"); });
  const std::string fields = std::string(kTools) + R"(,"chat_template_kwargs":{"thinking":false})";
  whole(fields);
  const std::string messages = R"({"messages":[{"role":"user","content":"hi"}],)";
  const HttpAnswer answer = http_post(port_, "/tokenize", messages + fields + R"(,"return_token_strs":true})");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const json::value value = json::parse(answer.body);
  EXPECT_EQ(json::value_to<std::vector<std::int32_t>>(value.at("tokens")), engine_->started()[0].prompt);
  EXPECT_EQ(value.at("token_strs").as_array().size(), value.at("tokens").as_array().size());
  EXPECT_EQ(value.at("token_strs").at(0).as_string(), "<|im_system|>");
  const HttpAnswer bare = http_post(port_, "/tokenize", messages + R"("add_generation_prompt":false})");
  const json::array tokens = json::parse(bare.body).at("tokens").as_array();
  EXPECT_EQ(tokens[tokens.size() - 1].as_int64(), *tokenizer_->token_id("<|im_end|>"));
  const HttpAnswer text = http_post(port_, "/detokenize", json::serialize(json::object{{"tokens", tokens}}));
  EXPECT_NE(text.body.find("<|im_user|>user<|im_middle|>hi<|im_end|>"), std::string::npos) << text.body;
}

}  // namespace
}  // namespace tessera::server
