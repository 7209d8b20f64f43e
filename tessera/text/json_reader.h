// Reading JSON files of a model folder strictly: every error names the place, and fields that nobody reads are refused.
#pragma once

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "tessera/base/status.h"

namespace tessera::text {

// The text of a file of at most limits::kJsonFileBytesMax bytes; kNotFound if there is none of that name.
base::Result<std::string> read_text_file(const std::filesystem::path& path);

// At most limits::kJsonDepthMax levels deep; kDataLoss with the byte offset if the text is not JSON.
base::Result<boost::json::value> parse_json(std::string_view text);

// An object and what it is called in messages ("model", "pre_tokenizer.pretokenizers[1]"). A view: the value outlives
// it. Messages read "<where>.<name>: ...".
class JsonObject {
 public:
  // Fails if `value` is not an object.
  static base::Result<JsonObject> from(const boost::json::value& value, std::string where);

  const std::string& where() const { return where_; }
  const boost::json::object& fields() const { return *object_; }
  std::string where(std::string_view name) const;

  // Refuses fields whose name is not in the list.
  base::Status check_names(std::initializer_list<std::string_view> names) const;

  // nullptr if the field is absent or null.
  const boost::json::value* find(std::string_view name) const;

  // The field, which must be there and of the type.
  base::Result<std::string_view> string(std::string_view name) const;
  base::Result<const boost::json::array*> array(std::string_view name) const;
  base::Result<JsonObject> object(std::string_view name) const;
  // `fallback` if it is absent or null.
  base::Result<bool> boolean(std::string_view name, bool fallback) const;

 private:
  JsonObject(const boost::json::object& object, std::string where) : object_(&object), where_(std::move(where)) {}
  base::Result<const boost::json::value*> required(std::string_view name) const;
  const boost::json::object* object_;
  std::string where_;
};

// "a string", "null", ... for messages.
std::string_view json_kind(const boost::json::value& value);

}  // namespace tessera::text
