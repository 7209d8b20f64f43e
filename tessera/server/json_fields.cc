#include "tessera/server/json_fields.h"

#include <fmt/format.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>

#include "tessera/base/limits.h"
#include "tessera/text/utf8.h"

namespace tessera::server {

namespace json = boost::json;

base::Result<json::value> parse_json(std::string_view body) {
  json::parse_options options;
  options.max_depth = static_cast<std::size_t>(base::limits::kJsonDepthMax);
  boost::system::error_code error;
  json::value value = json::parse(json::string_view(body.data(), body.size()), error, {}, options);
  if (error) return base::failure(base::invalid_argument("the body is not valid JSON: " + error.message()));
  return value;
}

std::string JsonFields::path(std::string_view name) const {
  if (path_.empty()) return std::string(name);
  return path_ + "." + std::string(name);
}

void JsonFields::fail(std::string_view name, std::string message) {
  if (!error_.ok()) return;
  failed_field_ = path(name);
  error_ = base::invalid_argument(fmt::format("'{}': {}", failed_field_, message));
}

const json::value* JsonFields::present(std::string_view name) {
  known_.emplace(name);
  const json::value* found = object_.if_contains(json::string_view(name.data(), name.size()));
  return found == nullptr || found->is_null() ? nullptr : found;
}

const json::value* JsonFields::value(std::string_view name) { return present(name); }

std::optional<std::string> JsonFields::string(std::string_view name, std::size_t bytes_max) {
  const json::value* found = present(name);
  if (found == nullptr) return std::nullopt;
  if (!found->is_string()) {
    fail(name, "expected a string");
    return std::nullopt;
  }
  const json::string& text = found->get_string();
  if (text.size() > bytes_max) {
    fail(name, fmt::format("{} bytes long; at most {} are allowed", text.size(), bytes_max));
    return std::nullopt;
  }
  return std::string(text.data(), text.size());
}

std::optional<double> JsonFields::number(std::string_view name, double min, double max) {
  const json::value* found = present(name);
  if (found == nullptr) return std::nullopt;
  if (!found->is_number()) {
    fail(name, "expected a number");
    return std::nullopt;
  }
  const double value = found->to_number<double>();
  if (!(value >= min && value <= max)) {
    fail(name, fmt::format("{} is outside {} to {}", value, min, max));
    return std::nullopt;
  }
  return value;
}

std::optional<std::int64_t> JsonFields::integer(std::string_view name, std::int64_t min, std::int64_t max) {
  const json::value* found = present(name);
  if (found == nullptr) return std::nullopt;
  boost::system::error_code error;
  const std::int64_t value = found->is_number() ? found->to_number<std::int64_t>(error) : 0;
  if (!found->is_number() || error) {
    fail(name, "expected an integer");
    return std::nullopt;
  }
  if (value < min || value > max) {
    fail(name, fmt::format("{} is outside {} to {}", value, min, max));
    return std::nullopt;
  }
  return value;
}

std::optional<bool> JsonFields::boolean(std::string_view name) {
  const json::value* found = present(name);
  if (found == nullptr) return std::nullopt;
  if (!found->is_bool()) {
    fail(name, "expected true or false");
    return std::nullopt;
  }
  return found->get_bool();
}

const json::array* JsonFields::array(std::string_view name, std::size_t size_max) {
  const json::value* found = present(name);
  if (found == nullptr) return nullptr;
  if (!found->is_array()) {
    fail(name, "expected an array");
    return nullptr;
  }
  if (found->get_array().size() > size_max) {
    fail(name, fmt::format("{} elements; at most {} are allowed", found->get_array().size(), size_max));
    return nullptr;
  }
  return &found->get_array();
}

const json::object* JsonFields::object(std::string_view name) {
  const json::value* found = present(name);
  if (found == nullptr) return nullptr;
  if (!found->is_object()) {
    fail(name, "expected an object");
    return nullptr;
  }
  return &found->get_object();
}

void JsonFields::require(std::string_view name) {
  if (present(name) == nullptr) fail(name, "required");
}

void JsonFields::accept_ignored(std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) known_.emplace(name);
}

void JsonFields::refuse_unless(std::string_view name, const json::value& neutral) {
  const json::value* found = present(name);
  if (found == nullptr || *found == neutral) return;
  // 1 and 1.0 are the same number to a client.
  if (found->is_number() && neutral.is_number() && found->to_number<double>() == neutral.to_number<double>()) return;
  const std::string wanted =
      neutral.is_number() ? fmt::format("{}", neutral.to_number<double>()) : json::serialize(neutral);
  fail(name, fmt::format("not supported by this server; leave it out or send {}", wanted));
}

void JsonFields::adopt(JsonFields& inner) {
  const base::Status status = inner.finish();
  if (status.ok() || !error_.ok()) return;
  error_ = status;
  failed_field_ = inner.failed_field_;
}

base::Status JsonFields::finish() {
  for (const auto& field : object_) {
    if (rest_accepted_) break;
    const std::string_view name(field.key().data(), field.key().size());
    if (!known_.contains(name)) fail(name.substr(0, text::utf8_prefix_within(name, 100)), "unknown field");
  }
  return error_;
}

}  // namespace tessera::server
