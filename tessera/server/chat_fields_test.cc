#include "tessera/server/chat_fields.h"

#include <gtest/gtest.h>

#include "tessera/server/api_request.h"
#include "tessera/server/json_source.h"

namespace tessera::server {
namespace {

using Sources = std::vector<std::string_view>;

TEST(JsonSource, FindsValuesInTheirText) {
  const std::string_view text = R"( { "a" : [ 1.50e-3 , "x,]}\"\\" ,{"b":[[],{}]}, null] ,"b":"{\"a\":1}","":{ } } )";
  EXPECT_EQ(member_source(text, "a"), R"([ 1.50e-3 , "x,]}\"\\" ,{"b":[[],{}]}, null])");
  EXPECT_EQ(element_sources(member_source(text, "a")),
            (Sources{"1.50e-3", R"("x,]}\"\\")", R"({"b":[[],{}]})", "null"}));
  EXPECT_EQ(member_source(text, "b"), R"("{\"a\":1}")");
  EXPECT_EQ(member_source(text, ""), "{ }");
  EXPECT_EQ(member_source(text, "c"), "");
  EXPECT_EQ(member_source("{}", "a"), "");
  EXPECT_EQ(element_sources(" [ ] "), Sources{});
  EXPECT_EQ(element_sources("[-1]"), Sources{"-1"});
  // Of equal names the last counts, as in the parser; names may be escaped.
  EXPECT_EQ(member_source(R"({"a":1,"\u0061":2,"\"a":3})", "a"), "2");
  EXPECT_EQ(boost::json::object(parse_json(R"({"a":1,"\u0061":2,"\"a":3})")->as_object()).at("a"), 2);
}

// The parser of bodies would give 1.1000000000000001e-30, and a double for the integer.
TEST(ChatFields, ToolsAndArgumentsKeepTheirNumbers) {
  const std::string tool = R"({"type" : "function","function":{"name":"f","parameters":{"minimum":1.1e-30,
    "maximum":123456789012345678901234567890}}})";
  const auto request =
      parse_chat_request(R"({"\u0074ools":[ )" + tool + R"(,{"type":"function","function":{"name":"g"}} ],
    "messages":[{"role":"user","content":"[{\"tool_calls\":1}]"},{"role":"assistant","tool_calls":[
      {"id":"a","function":{"name":"f","arguments":"{}"}},
      {"id":"b","function":{"arguments":{"x":1.1e-30,"y":[123456789012345678901234567890,-0,1e2],"x":2.50e-7},"name":"f"}}
    ]}]})");
  ASSERT_TRUE(request.has_value()) << request.error().message;
  ASSERT_EQ(request->conversation.tools.size(), 2u);
  EXPECT_EQ(request->conversation.tools[0].source, tool);
  EXPECT_EQ(request->conversation.tools[1].source, R"({"type":"function","function":{"name":"g"}})");
  ASSERT_EQ(request->conversation.messages[1].tool_calls.size(), 2u);
  EXPECT_EQ(request->conversation.messages[1].tool_calls[0].arguments, "{}");
  EXPECT_EQ(request->conversation.messages[1].tool_calls[1].arguments,
            R"({"x": 2.5e-07, "y": [123456789012345678901234567890, 0, 100.0]})");
}

// All calls of a request together.
TEST(ChatFields, TheValuesOfArgumentsAreCounted) {
  std::string zeros = "[0";
  for (int i = 0; i < 120'000; ++i) zeros += ",0";
  const std::string call = R"({"id":"a","function":{"name":"f","arguments":{"x":)" + zeros + "]}}}";
  const auto error = [](const std::string& calls) {
    const auto request = parse_chat_request(R"({"messages":[{"role":"assistant","tool_calls":[)" + calls + "]}]}");
    return request.has_value() ? "accepted" : request.error().message;
  };
  EXPECT_EQ(error(call), "accepted");
  EXPECT_EQ(
      error(call + "," + call),
      "'messages[0].tool_calls[1].function.arguments': more than 200000 JSON values in the tools and calls of one "
      "request");
}

TEST(ChatFields, ADeveloperIsNotASystem) {
  const auto request = parse_chat_request(R"({"messages":[{"role":"developer","content":"x"}]})");
  ASSERT_TRUE(request.has_value()) << request.error().message;
  EXPECT_EQ(request->conversation.messages[0].role, text::Role::kDeveloper);
}

}  // namespace
}  // namespace tessera::server
