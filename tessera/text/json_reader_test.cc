#include "tessera/text/json_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tessera/base/limits.h"
#include "tessera/text/test_folder.h"

namespace tessera::text {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ParseJson, TakesOneValueAndNothingElse) {
  EXPECT_TRUE(parse_json("{\"a\": [1, 2.5, null]} \n").has_value());
  for (const std::string_view text : {"", "{", "{\"a\": }", "[1] 2", "nul", "'a'", "\"\xFF\"", "{\"a\":1,}"}) {
    const auto value = parse_json(text);
    ASSERT_FALSE(value.has_value()) << text;
    EXPECT_THAT(value.error().to_string(), StartsWith("data_loss: not valid JSON at byte "));
  }
}

TEST(ParseJson, LimitsTheDepth) {
  const auto nested = [](std::int64_t depth) {
    return std::string(static_cast<std::size_t>(depth), '[') + std::string(static_cast<std::size_t>(depth), ']');
  };
  EXPECT_TRUE(parse_json(nested(base::limits::kJsonDepthMax)).has_value());
  EXPECT_FALSE(parse_json(nested(base::limits::kJsonDepthMax + 1)).has_value());
  EXPECT_FALSE(parse_json(std::string(1000000, '[')).has_value());
}

TEST(ReadTextFile, NamesWhatIsWrong) {
  const TestFolder dir;
  const auto missing = read_text_file(dir / "none.json");
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error(), base::not_found((dir / "none.json").string() + ": there is no such file"));
  EXPECT_FALSE(read_text_file(dir.path()).has_value()) << "a folder is no file";
  // A sparse file that claims to be larger than any JSON: refused before it is read.
  dir.write("huge.json", "");
  std::filesystem::resize_file(dir / "huge.json", static_cast<std::uintmax_t>(base::limits::kJsonFileBytesMax) + 1);
  const auto huge = read_text_file(dir / "huge.json");
  ASSERT_FALSE(huge.has_value());
  EXPECT_THAT(huge.error().to_string(), HasSubstr("huge.json: 268435457 bytes, expected at most 268435456"));
  dir.write("a.json", std::string("a\0b\r\n", 5));
  EXPECT_EQ(read_text_file(dir / "a.json"), std::string("a\0b\r\n", 5));
}

TEST(JsonObject, NamesThePlaceOfWhatIsWrong) {
  const auto root = parse_json(R"({"s": "x", "n": 1, "b": true, "o": {"inner": []}, "null": null})");
  const auto object = JsonObject::from(*root, "");
  ASSERT_TRUE(object.has_value());
  EXPECT_EQ(object->string("s"), "x");
  EXPECT_EQ(object->boolean("b", false), true);
  EXPECT_EQ(object->boolean("null", true), true);
  EXPECT_EQ(object->boolean("absent", true), true);
  EXPECT_EQ(object->find("null"), nullptr);
  EXPECT_EQ(object->string("n").error(), base::invalid_argument("n: is a number, expected a string"));
  EXPECT_EQ(object->string("absent").error(), base::invalid_argument("absent: is missing"));
  EXPECT_EQ(object->array("s").error(), base::invalid_argument("s: is a string, expected an array"));
  EXPECT_EQ(object->boolean("o", true).error(), base::invalid_argument("o: is an object, expected a boolean"));
  const auto inner = object->object("o");
  ASSERT_TRUE(inner.has_value());
  EXPECT_EQ(inner->object("inner").error(), base::invalid_argument("o.inner: is an array, expected an object"));
  EXPECT_EQ(inner->check_names({"inner"}), base::ok_status());
  EXPECT_EQ(inner->check_names({"outer"}), base::unimplemented("o.inner: is not a field that is understood"));
}

}  // namespace
}  // namespace tessera::text
