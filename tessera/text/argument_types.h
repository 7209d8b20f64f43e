// Which JSON types a tool's schema allows for an argument: GLM writes strings without quotes, so that only the schema
// tells the string 001 from a number.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tessera::text {

enum class JsonType : std::uint8_t {
  kNull = 1,
  kBoolean = 2,
  kInteger = 4,  // Written without fraction and exponent.
  kNumber = 8,   // Any other number.
  kString = 16,
  kArray = 32,
  kObject = 64,
};

// A set of JSON types.
class JsonTypes {
 public:
  constexpr JsonTypes() = default;
  constexpr explicit JsonTypes(JsonType type) : bits_(static_cast<std::uint8_t>(type)) {}
  static constexpr JsonTypes any() { return JsonTypes(127); }

  constexpr bool has(JsonType type) const { return (bits_ & static_cast<std::uint8_t>(type)) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  friend constexpr JsonTypes operator|(JsonTypes a, JsonTypes b) { return JsonTypes(a.bits_ | b.bits_); }
  friend constexpr JsonTypes operator&(JsonTypes a, JsonTypes b) { return JsonTypes(a.bits_ & b.bits_); }
  friend constexpr bool operator==(JsonTypes, JsonTypes) = default;

 private:
  constexpr explicit JsonTypes(int bits) : bits_(static_cast<std::uint8_t>(bits)) {}
  std::uint8_t bits_ = 0;
};

// What `parameters`, the schema of a tool's arguments (nullptr: none), allows for the argument `name`, as far as
// "type", "enum", "const", "nullable", "anyOf", "oneOf", "allOf" and references within the schema tell. A name is
// looked up in the schema's "properties", in those of what it refers to and of its "allOf", then in
// "additionalProperties". References are "#" or JSON pointers (RFC 6901) through objects, of at most 1024 bytes. What
// nothing is said about may be anything; of what contradicts itself, what it says first counts. The work is bounded: of
// a schema that is too large, the rest is ignored, or anything is allowed.
JsonTypes argument_types(const boost::json::object* parameters, std::string_view name);

// The type of a JSON text without white space around it; empty if it is none.
std::optional<JsonType> json_type_of(std::string_view text);

}  // namespace tessera::text
