#include "tessera/server/api_request.h"

#include <gtest/gtest.h>

namespace tessera::server {
namespace {

std::string chat_error(const std::string& body) {
  const auto request = parse_chat_request(body);
  if (request.has_value()) return "accepted";
  EXPECT_EQ(request.error().http_status, 400);
  return request.error().message;
}

std::string completion_error(const std::string& body) {
  const auto request = parse_completion_request(body);
  return request.has_value() ? "accepted" : request.error().message;
}

constexpr const char* kMessages = R"("messages":[{"role":"user","content":"hi"}])";

std::string chat_with(const std::string& field) { return std::string("{") + kMessages + "," + field + "}"; }

TEST(ChatRequest, ReadsEveryField) {
  const auto request = parse_chat_request(R"({
    "model":"m","messages":[{"role":"system","content":"s"},
      {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
      {"role":"assistant","content":null,"refusal":null}],
    "temperature":0.5,"top_p":0.25,"top_k":7,"seed":-3,"n":2,"max_tokens":5,"max_completion_tokens":9,
    "stop":["x","y"],"stop_token_ids":[3],"logprobs":true,"top_logprobs":4,"stream":true,"ignore_eos":true,
    "stream_options":{"include_usage":true,"continuous_usage_stats":true},
    "require_precision":{"decode_kv":"bf16"},"user":"someone","presence_penalty":0,"frequency_penalty":0.0})");
  ASSERT_TRUE(request.has_value()) << request.error().message;
  const GenerationOptions& o = request->options;
  ASSERT_EQ(request->conversation.messages.size(), 3u);
  EXPECT_EQ(request->conversation.messages[0].role, text::Role::kSystem);
  EXPECT_EQ(request->conversation.messages[1].content, "ab");
  EXPECT_EQ(request->conversation.messages[2].content, std::nullopt);
  EXPECT_EQ(o.model, "m");
  EXPECT_FLOAT_EQ(o.temperature, 0.5f);
  EXPECT_FLOAT_EQ(o.top_p, 0.25f);
  EXPECT_EQ(o.top_k, 7);
  EXPECT_EQ(o.seed, static_cast<std::uint64_t>(-3));
  EXPECT_EQ(o.n, 2);
  EXPECT_EQ(o.max_tokens, 9);  // The newer name wins.
  EXPECT_EQ(o.stop, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(o.stop_token_ids, std::vector<std::int32_t>{3});
  EXPECT_TRUE(o.logprobs && o.stream && o.include_usage && o.continuous_usage && o.ignore_eos);
  EXPECT_EQ(o.top_logprobs, 4);
  ASSERT_EQ(o.require_precision.size(), 1u);
  EXPECT_EQ(o.require_precision[0].second, "bf16");
}

TEST(ChatRequest, NullMeansAbsent) {
  EXPECT_EQ(chat_error(chat_with(R"("temperature":null,"stop":null,"max_tokens":null,"tools":null)")), "accepted");
}

TEST(ChatRequest, RefusesAndNamesTheField) {
  EXPECT_EQ(chat_error("{"), "the body is not valid JSON: incomplete JSON");
  EXPECT_EQ(chat_error("[]"), "the body must be a JSON object");
  EXPECT_EQ(chat_error("{}"), "'messages': required");
  EXPECT_EQ(chat_error(R"({"messages":[]})"), "'messages': at least one message is needed");
  EXPECT_EQ(chat_error(R"({"messages":"hi"})"), "'messages': expected an array");
  EXPECT_EQ(chat_error(R"({"messages":[{"role":"user","content":5}]})"),
            "'messages[0].content': expected a string or an array of parts");
  EXPECT_EQ(chat_error(R"({"messages":[{"content":"x"}]})"), "'messages[0].role': required");
  EXPECT_NE(chat_error(R"({"messages":[{"role":"robot","content":"x"}]})").find("messages[0].role"), std::string::npos);
  EXPECT_NE(chat_error(R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":"x"}]}]})")
                .find("messages[0].content"),
            std::string::npos);
  EXPECT_EQ(chat_error(chat_with(R"("temperature":"hot")")), "'temperature': expected a number");
  EXPECT_EQ(chat_error(chat_with(R"("temperature":2.5)")), "'temperature': 2.5 is outside 0 to 2");
  EXPECT_EQ(chat_error(chat_with(R"("n":0)")), "'n': 0 is outside 1 to 16");
  EXPECT_EQ(chat_error(chat_with(R"("n":1.5)")), "'n': expected an integer");
  EXPECT_EQ(chat_error(chat_with(R"("top_p":0)")), "'top_p': must be greater than 0");
  EXPECT_EQ(chat_error(chat_with(R"("max_tokens":0)")), "'max_tokens': 0 is outside 1 to 16777216");
  EXPECT_EQ(chat_error(chat_with(R"("max_tokens":99999999999999999999)")), "'max_tokens': expected an integer");
  EXPECT_EQ(chat_error(chat_with(R"("stream":"yes")")), "'stream': expected true or false");
  EXPECT_EQ(chat_error(chat_with(R"("stop":[""])")), "'stop': expected a string that is not empty");
  EXPECT_EQ(chat_error(chat_with(R"("top_logprobs":3)")), "'top_logprobs': needs logprobs to be true");
  EXPECT_EQ(chat_error(chat_with(R"("stream_options":{"wat":1})")), "'stream_options.wat': unknown field");
  EXPECT_EQ(chat_error(chat_with(R"("temprature":1)")), "'temprature': unknown field");
  EXPECT_EQ(chat_error(chat_with(R"("presence_penalty":0.5)")),
            "'presence_penalty': not supported by this server; leave it out or send 0");
}

constexpr const char* kTool =
    R"({"type":"function","function":{"name":"get_weather","description":"d","strict":true,"parameters":{"type":"object"}}})";

TEST(ChatRequest, ReadsToolsAndTheirHistory) {
  const auto request = parse_chat_request(std::string(R"({"messages":[
      {"role":"user","content":"hi"},
      {"role":"assistant","content":null,"reasoning_content":"hm","tool_calls":[
        {"id":"a","type":"function","function":{"name":"get_weather","arguments":"{\"city\": 1}"}},
        {"id":"b","type":"function","index":1,"function":{"name":"f","arguments":{"x":[1.0,"é"]}}},
        {"id":"c","type":"function","function":{"name":"g","arguments":""}}]},
      {"role":"tool","tool_call_id":"a","content":[{"type":"text","text":"sun"},{"type":"text","text":"ny"}]},
      {"role":"assistant","reasoning":"ok","reasoning_content":"ok","content":"done"}],
    "tools":[)") + kTool + R"(],"tool_choice":"auto","parallel_tool_calls":true,
    "chat_template_kwargs":{"thinking":true,"enable_thinking":true,"clear_thinking":false,"preserve_thinking":true,
    "reasoning_effort":"high"},"reasoning_effort":"high"})");
  ASSERT_TRUE(request.has_value()) << request.error().message;
  const std::vector<text::ChatMessage>& messages = request->conversation.messages;
  ASSERT_EQ(messages.size(), 4u);
  EXPECT_EQ(messages[1].content, std::nullopt);
  EXPECT_EQ(messages[1].reasoning, "hm");
  ASSERT_EQ(messages[1].tool_calls.size(), 3u);
  EXPECT_EQ(messages[1].tool_calls[0].id, "a");
  EXPECT_EQ(messages[1].tool_calls[0].name, "get_weather");
  EXPECT_EQ(messages[1].tool_calls[0].arguments, R"({"city": 1})");
  EXPECT_EQ(messages[1].tool_calls[1].arguments, R"({"x": [1.0, "é"]})");
  EXPECT_EQ(messages[1].tool_calls[2].arguments, "{}");
  EXPECT_EQ(messages[2].role, text::Role::kTool);
  EXPECT_EQ(messages[2].tool_call_id, "a");
  EXPECT_EQ(messages[2].content, "sunny");
  EXPECT_EQ(messages[3].reasoning, "ok");
  ASSERT_EQ(request->conversation.tools.size(), 1u);
  EXPECT_EQ(request->conversation.tools[0].name(), "get_weather");
  EXPECT_TRUE(request->conversation.tools[0].declaration.at("function").at("strict").as_bool());
  EXPECT_EQ(request->render.thinking, true);
  EXPECT_EQ(request->render.keep_reasoning, true);
  EXPECT_EQ(request->render.reasoning_effort, "high");
}

// What OpenAI's own client adds to the messages that its helpers give, which programs send back as they are.
TEST(ChatRequest, TakesMessagesBackFromClientHelpers) {
  const auto request = parse_chat_request(R"({"messages":[
      {"role":"user","content":"hi"},
      {"role":"assistant","content":null,"refusal":null,"annotations":null,"audio":null,"function_call":null,
       "parsed":null,"reasoning_content":"hm","tool_calls":[
        {"id":"a","index":0,"type":"function","function":{"name":"f","arguments":"{}","parsed_arguments":null}},
        {"id":"b","index":1,"type":"function","function":{"name":"g","arguments":"{\"x\":1}","parsed_arguments":{"x":1}}}]},
      {"role":"tool","tool_call_id":"a","content":"1"},
      {"role":"assistant","content":"{\"a\":1}","parsed":{"a":1},"refusal":null,"annotations":[],"tool_calls":null}]})");
  ASSERT_TRUE(request.has_value()) << request.error().message;
  const std::vector<text::ChatMessage>& messages = request->conversation.messages;
  ASSERT_EQ(messages.size(), 4u);
  ASSERT_EQ(messages[1].tool_calls.size(), 2u);
  EXPECT_EQ(messages[1].tool_calls[1].arguments, R"({"x":1})");
  EXPECT_EQ(messages[3].content, R"({"a":1})");
  EXPECT_TRUE(messages[3].tool_calls.empty());
  // What nobody adds stays a mistake.
  EXPECT_EQ(chat_error(R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","x":1}}]}]})"),
            "'messages[0].tool_calls[0].function.x': unknown field");
}

// Whatever a model calls a function, the answer that says so may come back: the limits of both are these.
TEST(ChatRequest, TakesNamesAndIdsUpToTheirLimits) {
  const auto with = [](std::size_t name, std::size_t id) {
    return chat_error(R"({"messages":[{"role":"assistant","tool_calls":[{"id":")" + std::string(id, 'i') +
                      R"(","function":{"name":")" + std::string(name, 'n') +
                      R"("}}]},{"role":"tool","tool_call_id":")" + std::string(id, 'i') + R"(","content":""}]})");
  };
  EXPECT_EQ(with(256, 512), "accepted");
  EXPECT_EQ(with(257, 512), "'messages[0].tool_calls[0].function.name': 257 bytes long; at most 256 are allowed");
  EXPECT_EQ(with(256, 513), "'messages[0].tool_calls[0].id': 513 bytes long; at most 512 are allowed");
}

TEST(ChatRequest, ToolsThatMayNotBeCalledAreNotDeclared) {
  const auto request = parse_chat_request(chat_with(std::string(R"("tool_choice":"none","tools":[)") + kTool + "]"));
  ASSERT_TRUE(request.has_value()) << request.error().message;
  EXPECT_TRUE(request->conversation.tools.empty());
}

TEST(ChatRequest, NoEffortMeansNoThinking) {
  const auto request = parse_chat_request(chat_with(R"("reasoning_effort":"none")"));
  ASSERT_TRUE(request.has_value()) << request.error().message;
  EXPECT_EQ(request->render.thinking, false);
  EXPECT_EQ(request->render.reasoning_effort, std::nullopt);
}

TEST(ChatRequest, RefusesToolsAndNamesTheField) {
  const auto tools = [](const std::string& tool) { return chat_error(chat_with("\"tools\":[" + tool + "]")); };
  const std::string with = std::string("\"tools\":[") + kTool + "],";
  EXPECT_EQ(tools("5"), "'tools[0]': expected an object");
  EXPECT_EQ(tools("{}"), "'tools[0].type': required");
  EXPECT_EQ(tools(R"({"type":"web_search"})"), "'tools[0].type': 'web_search' is not supported; only function is");
  EXPECT_EQ(tools(R"({"type":"function"})"), "'tools[0].function': required");
  EXPECT_EQ(tools(R"({"type":"function","function":{}})"), "'tools[0].function.name': required");
  for (const char* name : {"", "a b", "a<b", "é", "a:1"}) {
    EXPECT_EQ(tools(std::string(R"({"type":"function","function":{"name":")") + name + "\"}}"),
              "'tools[0].function.name': expected letters, digits, '_', '-' and '.'");
  }
  EXPECT_EQ(tools(R"({"type":"function","function":{"name":"f","parameters":[]}})"),
            "'tools[0].function.parameters': expected an object");
  EXPECT_EQ(chat_error(chat_with(with + R"("tool_choice":"required")")),
            R"('tool_choice': expected "auto" or "none": this server cannot force a call)");
  EXPECT_EQ(chat_error(chat_with(with + R"("tool_choice":{"type":"function","function":{"name":"get_weather"}})")),
            R"('tool_choice': expected "auto" or "none": this server cannot force a call)");
  EXPECT_TRUE(chat_error(chat_with(with + R"("parallel_tool_calls":false)")).starts_with("'parallel_tool_calls': "));
  EXPECT_EQ(chat_error(chat_with(R"("parallel_tool_calls":false)")), "accepted");  // There are none anyway.
  const auto message = [](const std::string& fields) {
    return chat_error(R"({"messages":[{"role":)" + fields + "}]}");
  };
  EXPECT_EQ(message(R"("user")"), "'messages[0].content': required");
  EXPECT_EQ(message(R"("user","content":"x","reasoning":"y")"),
            "'messages[0].reasoning': only an assistant's message has reasoning");
  EXPECT_EQ(message(R"("user","content":"x","tool_call_id":"y")"),
            "'messages[0].tool_call_id': only a tool's message answers a call");
  EXPECT_EQ(message(R"("assistant","reasoning":"x","reasoning_content":"y")"),
            "'messages[0].reasoning': differs from reasoning_content");
  EXPECT_EQ(message(R"("user","content":"x","tool_calls":[{"function":{"name":"f"}}])"),
            "'messages[0].tool_calls': only an assistant's message has calls");
  EXPECT_EQ(message(R"("assistant","tool_calls":[{"id":"a"}])"), "'messages[0].tool_calls[0].function': required");
  EXPECT_EQ(message(R"("assistant","tool_calls":[{"function":{"name":"f","arguments":[]}}])"),
            "'messages[0].tool_calls[0].function.arguments': expected the JSON text of an object, or an object");
  EXPECT_EQ(message(R"("assistant","function_call":{"name":"f"})"),
            "'messages[0].function_call': not supported by this server; leave it out or send null");
}

TEST(ChatRequest, RefusesRenderOptionsThatItDoesNotKnow) {
  const auto options = [](const std::string& fields) {
    return chat_error(chat_with("\"chat_template_kwargs\":{" + fields + "}"));
  };
  EXPECT_EQ(options(R"("chat_template":"x")"), "'chat_template_kwargs.chat_template': unknown field");
  EXPECT_EQ(options(R"("thinking":"yes")"), "'chat_template_kwargs.thinking': expected true or false");
  EXPECT_EQ(options(R"("thinking":true,"enable_thinking":false)"),
            "'chat_template_kwargs.enable_thinking': contradicts another field");
  EXPECT_EQ(options(R"("clear_thinking":true,"preserve_thinking":true)"),
            "'chat_template_kwargs.clear_thinking': contradicts another field");
  EXPECT_EQ(options(R"("thinking":false,"reasoning_effort":"high")"),
            "'reasoning_effort': contradicts thinking that is turned off");
  EXPECT_EQ(options(R"("reasoning_effort":"high"},"reasoning_effort":"low","x":{)"),
            "'reasoning_effort': contradicts another field");
}

// Depth, counts and lengths are bounded before anything is built from them.
TEST(ChatRequest, BoundsWhatItReads) {
  EXPECT_NE(chat_error(chat_with("\"x\":" + std::string(3000, '[') + std::string(3000, ']'))).find("not valid JSON"),
            std::string::npos);
  EXPECT_EQ(chat_error(chat_with("\"stop\":[\"" + std::string(257, 'a') + "\"]")), "'stop': longer than 256 bytes");
  const std::string deep = std::string(3000, '[') + std::string(3000, ']');
  EXPECT_NE(
      chat_error(chat_with(R"("tools":[{"type":"function","function":{"name":"f","parameters":{"a":)" + deep + "}}}]"))
          .find("not valid JSON"),
      std::string::npos);
  std::string tools = kTool;
  for (int i = 0; i < 1024; ++i) tools += std::string(",") + kTool;
  EXPECT_EQ(chat_error(chat_with("\"tools\":[" + tools + "]")), "'tools': 1025 elements; at most 1024 are allowed");
  EXPECT_EQ(
      chat_error(chat_with(R"("tools":[{"type":"function","function":{"name":")" + std::string(257, 'n') + "\"}}]")),
      "'tools[0].function.name': 257 bytes long; at most 256 are allowed");
  std::string many = "\"stop\":[";
  for (int i = 0; i < 17; ++i) many += i == 0 ? "\"a\"" : ",\"a\"";
  EXPECT_EQ(chat_error(chat_with(many + "]")), "'stop': 17 elements; at most 16 are allowed");
}

TEST(CompletionRequest, ReadsEveryFormOfPrompt) {
  const auto prompts = [](const std::string& prompt) {
    auto request = parse_completion_request("{\"prompt\":" + prompt + "}");
    EXPECT_TRUE(request.has_value());
    return request->prompts;
  };
  using Ids = std::vector<std::int32_t>;
  EXPECT_EQ(prompts("\"a\""), std::vector<Prompt>{"a"});
  EXPECT_EQ(prompts("[\"a\",\"b\"]"), (std::vector<Prompt>{"a", "b"}));
  EXPECT_EQ(prompts("[1,2]"), (std::vector<Prompt>{Ids{1, 2}}));
  EXPECT_EQ(prompts("[[1],[2,3]]"), (std::vector<Prompt>{Ids{1}, Ids{2, 3}}));
}

TEST(CompletionRequest, RefusesOtherPrompts) {
  EXPECT_EQ(completion_error("{}"), "'prompt': required");
  for (const char* prompt : {"5", "[1.5]", "[-1]", "[4294967296]", "[[\"a\"]]", "{}", "[1,\"a\"]"}) {
    EXPECT_NE(completion_error(std::string("{\"prompt\":") + prompt + "}"), "accepted") << prompt;
  }
  EXPECT_EQ(completion_error("{\"prompt\":[]}"), "'prompt': must not be empty");
}

TEST(CompletionRequest, EchoGoesWithLogprobsAndWithoutTokens) {
  const auto request = parse_completion_request(R"({"prompt":[[1,2],[3]],"echo":true,"logprobs":20,"max_tokens":0})");
  ASSERT_TRUE(request.has_value()) << request.error().message;
  EXPECT_TRUE(request->echo && request->options.logprobs);
  EXPECT_EQ(request->options.top_logprobs, 20);
  EXPECT_EQ(request->options.max_tokens, 0);
  EXPECT_EQ(completion_error(R"({"prompt":"x","echo":true,"logprobs":21})"), "'logprobs': 21 is outside 0 to 20");
  EXPECT_EQ(completion_error(R"({"prompt":"x","echo":true,"max_tokens":-1})"),
            "'max_tokens': -1 is outside 0 to 16777216");
  EXPECT_EQ(completion_error(R"({"prompt":"x","echo":false,"max_tokens":0})"),
            "'max_tokens': 0 is outside 1 to 16777216");
}

TEST(TokenizeRequest, WantsExactlyOneInput) {
  EXPECT_TRUE(parse_tokenize_request(R"({"prompt":"x"})").has_value());
  EXPECT_TRUE(parse_tokenize_request(std::string("{") + kMessages + "}").has_value());
  EXPECT_FALSE(parse_tokenize_request("{}").has_value());
  // What is about a rendering says nothing about a prompt: refused, not ignored.
  for (const std::string& field :
       {std::string(R"("tools":[)") + kTool + "]", std::string(R"("tool_choice":"auto")"),
        std::string(R"("chat_template_kwargs":{"thinking":true})"), std::string(R"("reasoning_effort":"high")"),
        std::string(R"("add_generation_prompt":true)"), std::string(R"("parallel_tool_calls":true)")}) {
    const auto request = parse_tokenize_request(R"({"prompt":"x",)" + field + "}");
    ASSERT_FALSE(request.has_value()) << field;
    EXPECT_TRUE(field.starts_with("\"" + request.error().param + "\":")) << request.error().param;
    EXPECT_TRUE(parse_tokenize_request(std::string("{") + kMessages + "," + field + "}").has_value()) << field;
  }
  EXPECT_FALSE(parse_tokenize_request(std::string(R"({"prompt":"x",)") + kMessages + "}").has_value());
}

TEST(AbortRequest, WantsAnIdOrAll) {
  EXPECT_EQ(parse_abort_request(R"({"rid":"a"})"), "a");
  EXPECT_EQ(parse_abort_request(R"({"abort_all":true})"), "");
  EXPECT_FALSE(parse_abort_request("{}").has_value());
  EXPECT_FALSE(parse_abort_request(R"({"rid":"a","abort_all":true})").has_value());
}

TEST(ApiError, HidesInternals) {
  const ApiError error = from_status(base::internal_error("pointer 0x1234 in engine.cc"));
  EXPECT_EQ(error.http_status, 500);
  EXPECT_EQ(error_body(error).find("0x1234"), std::string::npos);
  EXPECT_EQ(from_status(base::corruption("page 7")).code, "kv_integrity_error");
  EXPECT_EQ(from_status(base::corruption("page 7")).message.find("page 7"), std::string::npos);
  EXPECT_EQ(from_status(base::resource_exhausted("full")).http_status, 429);
}

}  // namespace
}  // namespace tessera::server
