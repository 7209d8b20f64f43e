// Reads the fields of a JSON object that came from outside: each with its type and range, the first mistake remembered
// with the path of the field, and every field that nobody asked for refused at the end.
#pragma once

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "tessera/base/status.h"

namespace tessera::server {

// Parses a body: at most base::limits::kJsonDepthMax deep, valid UTF-8, one value.
base::Result<boost::json::value> parse_json(std::string_view body);

class JsonFields {
 public:
  // `path` names the object in messages: "" for the body itself, "messages[2]" inside it. The object must outlive this.
  JsonFields(const boost::json::object& object, std::string path) : object_(object), path_(std::move(path)) {}

  // A field that is absent or null gives nothing. One of the wrong type or out of range gives nothing too and is the
  // error that finish() returns.
  std::optional<std::string> string(std::string_view name, std::size_t bytes_max);
  std::optional<double> number(std::string_view name, double min, double max);
  std::optional<std::int64_t> integer(std::string_view name, std::int64_t min, std::int64_t max);
  std::optional<bool> boolean(std::string_view name);
  const boost::json::array* array(std::string_view name, std::size_t size_max);
  const boost::json::object* object(std::string_view name);
  const boost::json::value* value(std::string_view name);

  // The field must be there and not null.
  void require(std::string_view name);
  // Every field that nobody asked for is accepted: somebody else reads the object as it is.
  void accept_rest() { rest_accepted_ = true; }
  // Fields that clients send and that change nothing here: accepted, whatever their value.
  void accept_ignored(std::initializer_list<std::string_view> names);
  // A field of the API that this server does not have: refused, unless it has its neutral value.
  void refuse_unless(std::string_view name, const boost::json::value& neutral);

  // Reports a mistake that the caller found in a field.
  void fail(std::string_view name, std::string message);
  // Finishes the fields of an inner object and takes over its mistake, if it has one.
  void adopt(JsonFields& inner);
  bool ok() const { return error_.ok(); }
  // How messages name a field: "messages[2].role".
  std::string path(std::string_view name) const;

  // The first mistake, or the first field that nobody asked for, or ok. The field at fault is in failed_field().
  base::Status finish();
  const std::string& failed_field() const { return failed_field_; }

 private:
  const boost::json::value* present(std::string_view name);

  const boost::json::object& object_;
  std::string path_;
  std::set<std::string, std::less<>> known_;
  bool rest_accepted_ = false;
  base::Status error_;
  std::string failed_field_;
};

}  // namespace tessera::server
