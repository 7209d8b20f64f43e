#include "tessera/server/json_writer.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>
#include <limits>

namespace tessera::server {
namespace {

// Boost.JSON, which owns the format here, reads back what was written.
TEST(JsonWriter, IsReadBackByAnIndependentParser) {
  JsonWriter json;
  std::string every_ascii;
  for (char c = 1; c < 0x7f; ++c) every_ascii += c;
  json.begin_object().key("text").string(every_ascii + "é中😀").key("n").integer(-42).key("list").begin_array();
  json.number(1.0).number(-0.1).number(1e300).number(5e-324).null().boolean(true).begin_object().end_object();
  json.end_array().key("after").begin_array().end_array().end_object();
  const boost::json::value value = boost::json::parse(json.take());
  EXPECT_EQ(value.at("text").as_string(), every_ascii + "é中😀");
  EXPECT_EQ(value.at("n").as_int64(), -42);
  EXPECT_EQ(value.at("list").at(1).to_number<double>(), -0.1);
  EXPECT_EQ(value.at("list").at(2).to_number<double>(), 1e300);
  EXPECT_EQ(value.at("list").at(3).to_number<double>(), 5e-324);
  EXPECT_TRUE(value.at("after").as_array().empty());
}

std::string written(std::string_view text) {
  JsonWriter json;
  const std::string quoted = json.string(text).take();
  const boost::json::value value = boost::json::parse(quoted);  // Refuses ill-formed UTF-8.
  return std::string(value.as_string().data(), value.as_string().size());
}

// `times` U+FFFD between two texts.
std::string replaced(std::string_view before, int times, std::string_view after) {
  std::string text(before);
  for (int i = 0; i < times; ++i) text += "\uFFFD";
  text += after;
  return text;
}

// The examples of The Unicode Standard 15.0, section 3.9, and one of every other kind of malformed text.
TEST(JsonWriter, IllFormedTextIsReplacedByMaximalSubparts) {
  EXPECT_EQ(written("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), replaced("", 8, "A"));  // Table 3-8: overlong.
  EXPECT_EQ(written("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), replaced("", 8, "A"));  // Table 3-9: surrogates.
  EXPECT_EQ(written("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"),                         // Table 3-10: others.
            replaced(replaced("", 5, "A"), 2, "B"));
  EXPECT_EQ(written("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), replaced("", 4, "A"));  // Table 3-11: truncated.
  EXPECT_EQ(written("\xff\xfe"), replaced("", 2, ""));                               // Bytes of no character.
  EXPECT_EQ(written("a\x80z"), replaced("a", 1, "z"));                               // A lone continuation.
  EXPECT_EQ(written("\xF5\x80\x80\x80"), replaced("", 4, ""));                       // Above U+10FFFF.
  EXPECT_EQ(written("\xC1\xBF"), replaced("", 2, ""));                               // Overlong ASCII.
  for (const std::string cut : {"\xC3", "\xE4\xB8", "\xF0\x9F", "\xF0\x9F\x98"}) {
    EXPECT_EQ(written("x" + cut), replaced("x", 1, ""));        // Incomplete at the end.
    EXPECT_EQ(written(cut + "\"\n"), replaced("", 1, "\"\n"));  // And before what is escaped.
  }
  EXPECT_EQ(written("é中😀\uFFFD"), "é中😀\uFFFD");
}

TEST(JsonWriter, NamesAreMadeValidToo) {
  JsonWriter json;
  json.begin_object().key("k\xff").integer(1).end_object();
  EXPECT_EQ(boost::json::parse(json.take()).at("k\uFFFD").as_int64(), 1);
}

TEST(JsonWriter, NumbersLookOrdinary) {
  JsonWriter json;
  json.begin_array().number(1.0).number(0.5).number(std::nan("")).number(std::numeric_limits<double>::infinity());
  EXPECT_EQ(json.end_array().take(), "[1,0.5,null,null]");
}

}  // namespace
}  // namespace tessera::server
