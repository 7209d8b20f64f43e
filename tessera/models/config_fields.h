// Typed, range-checked reading of one JSON object of a configuration file. Every failure names file, field and
// expectation. A field that is null counts as missing, as transformers writes it.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/status.h"

namespace tessera::models {

// Inclusive.
template <typename T>
struct Range {
  T min;
  T max;
};

class ConfigFields {
 public:
  // Parses the text of a file; its root must be an object.
  static base::Result<ConfigFields> parse(std::string_view json, std::string_view file_name);

  bool has(std::string_view field) const { return find(field) != nullptr; }

  base::Result<std::int64_t> integer(std::string_view field, Range<std::int64_t> range) const;
  base::Result<std::int64_t> integer_or(std::string_view field, Range<std::int64_t> range, std::int64_t missing) const;
  // Whole numbers are numbers too.
  base::Result<double> number(std::string_view field, Range<double> range) const;
  base::Result<double> number_or(std::string_view field, Range<double> range, double missing) const;
  base::Result<std::string> text(std::string_view field) const;
  base::Result<bool> boolean_or(std::string_view field, bool missing) const;
  // An object inside this one.
  base::Result<ConfigFields> object(std::string_view field) const;
  // Whether the two hold the same fields with the same values, in whatever order.
  bool equals(const ConfigFields& other) const;
  // Its text, as JSON.
  std::string json() const;
  // Strings; at most `count_max`.
  base::Result<std::vector<std::string>> texts(std::string_view field, std::int64_t count_max) const;

  // invalid_argument: "<file>: <field>: <message>", for what a caller finds wrong with a value.
  base::Status refuse(std::string_view field, std::string_view message) const;
  // unimplemented, for values that exist in the world and that this build lacks.
  base::Status refuse_unsupported(std::string_view field, std::string_view message) const;

 private:
  ConfigFields(std::shared_ptr<const boost::json::value> root, const boost::json::object* object, std::string where);
  const boost::json::value* find(std::string_view field) const;
  base::Result<const boost::json::value*> require(std::string_view field, std::string_view expected) const;
  base::Result<std::int64_t> to_integer(std::string_view field, const boost::json::value& value,
                                        Range<std::int64_t> range) const;
  std::shared_ptr<const boost::json::value> root_;  // Keeps object_ alive.
  const boost::json::object* object_;
  std::string where_;
};

}  // namespace tessera::models
