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
  // Text must be valid UTF-8.
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
  std::string out_;
  bool needs_comma_ = false;
};

}  // namespace tessera::server
