// Writes JSON, one value after another, into a string. Boost.JSON prints 1.0 as 1E0, which some clients do not read;
// this prints numbers the ordinary way.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tessera::server {

class JsonWriter {
 public:
  JsonWriter& begin_object();
  JsonWriter& end_object();
  JsonWriter& begin_array();
  JsonWriter& end_array();
  // The next value's name; only inside an object.
  JsonWriter& key(std::string_view name);
  // Any bytes: every maximal subpart of an ill-formed sequence is written as one U+FFFD, so that what is echoed from
  // outside cannot make an answer that is no JSON. This is the one place that sees to it.
  JsonWriter& string(std::string_view text);
  JsonWriter& integer(std::int64_t value);
  // Shortest form that reads back equal; null when not finite.
  JsonWriter& number(double value);
  JsonWriter& boolean(bool value);
  JsonWriter& null();
  JsonWriter& integers(std::span<const std::int32_t> values);
  // The finished text; the writer is empty again.
  std::string take();

 private:
  void separate();
  // `text` is valid UTF-8.
  void escape(std::string_view text);
  std::string out_;
  bool needs_comma_ = false;
};

}  // namespace tessera::server
