#include "tessera/text/conversation.h"

#include <fmt/format.h>

#include <boost/json/value.hpp>

namespace tessera::text {

std::string_view role_name(Role role) {
  switch (role) {
    case Role::kSystem:
      return "system";
    case Role::kDeveloper:
      return "developer";
    case Role::kUser:
      return "user";
    case Role::kAssistant:
      return "assistant";
    case Role::kTool:
      return "tool";
  }
  return "unknown";
}

base::Result<Role> parse_role(std::string_view name) {
  for (const Role role : {Role::kSystem, Role::kDeveloper, Role::kUser, Role::kAssistant, Role::kTool}) {
    if (name == role_name(role)) return role;
  }
  return base::failure(base::invalid_argument(
      fmt::format("role: '{}' is not known, expected system, developer, user, assistant or tool", name)));
}

namespace {

// The "function" object of a declaration.
const boost::json::object* function_of(const Tool& tool) {
  const boost::json::value* function = tool.declaration.if_contains("function");
  return function == nullptr ? nullptr : function->if_object();
}

}  // namespace

std::string_view Tool::name() const {
  const boost::json::object* function = function_of(*this);
  const boost::json::value* name = function == nullptr ? nullptr : function->if_contains("name");
  return name == nullptr || !name->is_string() ? std::string_view() : std::string_view(name->get_string());
}

const boost::json::object* Tool::parameters() const {
  const boost::json::object* function = function_of(*this);
  const boost::json::value* parameters = function == nullptr ? nullptr : function->if_contains("parameters");
  return parameters == nullptr ? nullptr : parameters->if_object();
}

}  // namespace tessera::text
