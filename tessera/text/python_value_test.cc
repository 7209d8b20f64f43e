#include "tessera/text/python_value.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/text/typescript_tools.h"

namespace tessera::text {
namespace {

using ::testing::HasSubstr;

base::Result<PythonValue> parsed(std::string_view text) {
  ValueBudget budget;
  return parse_python_json(text, budget);
}

std::string dumped(std::string_view text, JsonSpacing spacing = JsonSpacing::kSpaces) {
  const auto value = parsed(text);
  if (!value.has_value()) return value.error().to_string();
  std::string out;
  append_python_json(*value, spacing, out);
  return out;
}

// What Python 3.11 prints for the number.
TEST(PythonFloat, IsWrittenAsPythonDoes) {
  const std::pair<double, const char*> cases[] = {{0.0, "0.0"},
                                                  {-0.0, "-0.0"},
                                                  {1.0, "1.0"},
                                                  {-1.5, "-1.5"},
                                                  {0.1, "0.1"},
                                                  {1e-4, "0.0001"},
                                                  {1e-5, "1e-05"},
                                                  {1.25e-7, "1.25e-07"},
                                                  {1e15, "1000000000000000.0"},
                                                  {1e16, "1e+16"},
                                                  {1.5e16, "1.5e+16"},
                                                  {123456789012345.6, "123456789012345.6"},
                                                  {9999999999999998.0, "9999999999999998.0"},
                                                  {1e100, "1e+100"},
                                                  {5e-324, "5e-324"},
                                                  {1.7976931348623157e308, "1.7976931348623157e+308"},
                                                  {0.30000000000000004, "0.30000000000000004"}};
  for (const auto& [value, text] : cases) EXPECT_EQ(python_float(value), text);
}

TEST(PythonJson, IsWrittenAsPythonDoes) {
  EXPECT_EQ(dumped(" {\"a\":[1,2.50,1E5,-0,-0.0,true,null] , \"b\":{} } "),
            "{\"a\": [1, 2.5, 100000.0, 0, -0.0, true, null], \"b\": {}}");
  EXPECT_EQ(dumped("{\"a\":[1,{\"b\":[]}]}", JsonSpacing::kCompact), "{\"a\":[1,{\"b\":[]}]}");
  EXPECT_EQ(dumped("123456789012345678901234567890"), "123456789012345678901234567890");
  EXPECT_EQ(dumped("[1e400, -1e400, 1e-400, 0.1000000000000000055511151231257827]"), "[Infinity, -Infinity, 0.0, 0.1]");
  EXPECT_EQ(dumped(R"("\u0000\u001f\u007f\b\f\n\r\t\"\\\/\u00e9\ud83d\ude00\u2028<>&'")"),
            "\"\\u0000\\u001f\x7f\\b\\f\\n\\r\\t\\\"\\\\/é😀\u2028<>&'\"");
}

TEST(PythonJson, OfEqualKeysTheLastValueIsAtTheFirstPlace) {
  EXPECT_EQ(dumped(R"({"a": 1, "b": 2, "a": {"c": 3, "c": 4}})"), R"({"a": {"c": 4}, "b": 2})");
}

TEST(PythonJson, RefusesWhatIsNoJson) {
  for (const char* text : {"", "{", "{\"a\": 1,}", "nul", "1 2", "{'a': 1}", "[1]]", "\"\\ud800\"", "01", "NaN"}) {
    EXPECT_THAT(dumped(text), HasSubstr("data_loss: not valid JSON at byte ")) << text;
  }
  EXPECT_THAT(dumped(std::string(10000, '[')), HasSubstr("data_loss: not valid JSON"));
}

TEST(PythonJson, SortsKeysByCodePoint) {
  auto value = parsed(R"({"b": 1, "é": 2, "a": {"z": 3, "B": 4}, "😀": 5, "中": 6})");
  ASSERT_TRUE(value.has_value());
  std::string out;
  append_python_json(with_sorted_keys(*std::move(value)), JsonSpacing::kCompact, out);
  EXPECT_EQ(out, R"({"a":{"B":4,"z":3},"b":1,"é":2,"中":6,"😀":5})");
}

TEST(PythonStr, IsWrittenAsPythonDoes) {
  const auto value = parsed(R"([true, null, 1.0, "a'b", "\"'", "\n\u0001\\", {"k": [false]}])");
  ASSERT_TRUE(value.has_value());
  EXPECT_EQ(python_str(*value), R"([True, None, 1.0, "a'b", '"\'', '\n\x01\\', {'k': [False]}])");
  EXPECT_EQ(python_str(*parsed("\"as it is\\n\"")), "as it is\n");
}

TEST(PythonStrip, KnowsUnicodesWhiteSpace) {
  EXPECT_EQ(python_strip("\t\n\v\f\r\x1c\x1d\x1e\x1f \u0085\u00a0\u1680\u2000\u200a\u2028\u2029\u202f\u205f\u3000a b"
                         "\u3000\u2007 \u00a0\n"),
            "a b");
  EXPECT_EQ(python_strip("\u200ba\ufeff"), "\u200ba\ufeff");
  EXPECT_EQ(python_strip(" \u2003\n"), "");
  // The bytes of other characters end as white space does.
  EXPECT_EQ(python_strip("\u0160\u5000"), "\u0160\u5000");
  EXPECT_EQ(strip_newlines("\n\n a\n \n"), " a\n ");
  EXPECT_EQ(strip_newlines("\n\n"), "");
  EXPECT_EQ(strip_leading_newlines("\n\na\n"), "a\n");
  EXPECT_EQ(strip_trailing_newlines("\n\na\n"), "\n\na");
}

TEST(PythonValueOf, IsTrueAsInPython) {
  for (const char* text : {"null", "false", "0", "0.0", "-0.0", "\"\"", "[]", "{}"}) {
    EXPECT_FALSE(parsed(text)->truthy()) << text;
  }
  for (const char* text : {"true", "1", "0.1", "\" \"", "[0]", "{\"a\":0}"})
    EXPECT_TRUE(parsed(text)->truthy()) << text;
}

// Every value is counted before it is made, of whatever kind and wherever it is.
TEST(PythonJson, TakesItsValuesFromABudget) {
  ValueBudget budget{.left = 9};
  const std::string_view text = R"({"a": [1, 2.5, "x", true, null, 12345678901234567890], "b": {}})";
  ASSERT_TRUE(parse_python_json(text, budget).has_value());
  EXPECT_EQ(budget.left, 0);
  for (std::int64_t left = 0; left < 9; ++left) {
    budget.left = left;
    EXPECT_EQ(parse_python_json(text, budget).error(),
              base::out_of_range("more than 200000 JSON values in the tools and calls of one request"));
    EXPECT_EQ(budget.left, 0);
  }
  std::string zeros = "[0";
  while (zeros.size() < 16'000'000) zeros += ",0";
  EXPECT_THAT(dumped(zeros + "]"), HasSubstr("out_of_range: more than 200000 JSON values"));
}

// The declaration of one function f, or "JSON" where the encoder gives up.
std::string declared(std::string_view parameters) {
  const auto tools =
      parsed(R"([{"type": "function", "function": {"name": "f", "parameters": )" + std::string(parameters) + "}}]");
  EXPECT_TRUE(tools.has_value()) << parameters;
  const auto text = typescript_tools(with_sorted_keys(*tools));
  return text.value_or("JSON");
}

// The goldens of tests/goldens/chat judge what it writes; these are the schemas at which it must not stumble.
TEST(TypescriptTools, GivesUpOnSchemasThatTheEncoderDoesNotKnow) {
  for (const char* parameters : {R"("text")",
                                 R"([1])",
                                 R"({"properties": []})",
                                 R"({"properties": {"a": null}})",
                                 R"({"properties": {"a": 1}})",
                                 R"({"properties": {"a": "string"}})",
                                 R"({"properties": {"a": {"type": "array", "items": [1]}}})",
                                 R"({"properties": {"a": {"$ref": 1}}})",
                                 R"({"properties": {"a": {"anyOf": "x"}}})",
                                 R"({"properties": {"a": {"enum": 1}}})",
                                 R"({"properties": {"a": {"type": ["string", "integer"], "enum": [1]}}})",
                                 R"({"properties": {"a": {"type": "string", "description": 5}}})",
                                 R"({"properties": {"a": {}}, "required": 1})",
                                 R"({"$defs": [1]})",
                                 R"({"$defs": {"a": true}, "properties": {"b": {"$ref": "#/$defs/a"}}})",
                                 R"({"additionalProperties": 1})",
                                 R"({"properties": {"a": {}}, "required": [["a"]]})",
                                 R"({"properties": {"a": {}}, "required": ["a", {}]})",
                                 R"({"properties": {"a": {}}, "required": null})",
                                 R"({"properties": {"a": {}}, "required": true})"}) {
    EXPECT_EQ(declared(parameters), "JSON") << parameters;
  }
  EXPECT_EQ(typescript_tools({.kind = PythonValue::Kind::kList}), std::nullopt);
}

TEST(TypescriptTools, TakesNothingForNoParameters) {
  for (const char* parameters : {"null", "{}", "\"\"", "[]", "0", R"({"properties": {}})"}) {
    EXPECT_EQ(declared(parameters), "# Tools\n\n## functions\nnamespace functions {\ntype f = (_: {}) => any;\n}\n")
        << parameters;
  }
}

}  // namespace
}  // namespace tessera::text
