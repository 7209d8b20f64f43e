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

TEST(JsonWriter, NumbersLookOrdinary) {
  JsonWriter json;
  json.begin_array().number(1.0).number(0.5).number(std::nan("")).number(std::numeric_limits<double>::infinity());
  EXPECT_EQ(json.end_array().take(), "[1,0.5,null,null]");
}

}  // namespace
}  // namespace tessera::server
