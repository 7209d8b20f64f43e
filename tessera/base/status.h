// Expected failures. A function that can fail returns Status (nothing else to return) or Result<T>; no exception
// crosses a room. A message names the thing that is wrong and what was expected, because a person will read it.
#pragma once

#include <expected>
#include <string>
#include <string_view>
#include <utility>

namespace tessera::base {

enum class StatusCode {
  kOk,
  kInvalidArgument,    // The caller's input is wrong; trying again will not help.
  kNotFound,           // The named thing does not exist.
  kOutOfRange,         // A number is outside its limits (context too long, page id too large).
  kResourceExhausted,  // A queue, a pool or memory is full now; trying again later may help.
  kUnavailable,        // The peer or the engine is not there now (starting, draining, gone).
  kDeadlineExceeded,   // It took longer than was allowed.
  kCancelled,          // Its client aborted it.
  kCorruption,         // Integrity check failed: page tag, owner, position, digest. Never retried silently.
  kDataLoss,           // A file or a message is damaged or truncated.
  kUnimplemented,      // A value that is known to exist and that this build does not support.
  kInternal,           // A fault of our own that could be contained.
};

// Stable, lower-case, machine-readable name of a code, for example "invalid_argument".
std::string_view status_code_name(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}
  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  // "<code name>: <message>", or "ok".
  std::string to_string() const;
  // The same failure with "<context>: " before its message.
  Status with_context(std::string_view context) const;
  friend bool operator==(const Status&, const Status&) = default;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

template <typename T>
using Result = std::expected<T, Status>;

inline Status ok_status() { return {}; }
Status invalid_argument(std::string message);
Status not_found(std::string message);
Status out_of_range(std::string message);
Status resource_exhausted(std::string message);
Status unavailable(std::string message);
Status corruption(std::string message);
Status data_loss(std::string message);
Status unimplemented(std::string message);
Status internal_error(std::string message);

// Return from a function that yields Result<T>: `return failure(invalid_argument("..."));`
inline std::unexpected<Status> failure(Status status) { return std::unexpected<Status>(std::move(status)); }

}  // namespace tessera::base

// Returns the status from the calling function (which yields Status or Result<T>) unless it is ok.
#define TESSERA_RETURN_IF_ERROR(expression)                              \
  do {                                                                   \
    if (::tessera::base::Status status_ = (expression); !status_.ok()) { \
      return ::tessera::base::detail::StatusReturn{std::move(status_)};  \
    }                                                                    \
  } while (false)

// `TESSERA_ASSIGN_OR_RETURN(auto x, f());` declares x from a Result, or returns its error.
#define TESSERA_ASSIGN_OR_RETURN(declaration, expression) \
  TESSERA_ASSIGN_OR_RETURN_IMPL_(TESSERA_CONCAT_(result_, __LINE__), declaration, expression)
#define TESSERA_CONCAT_INNER_(a, b) a##b
#define TESSERA_CONCAT_(a, b) TESSERA_CONCAT_INNER_(a, b)
#define TESSERA_ASSIGN_OR_RETURN_IMPL_(result, declaration, expression)                             \
  auto result = (expression);                                                                       \
  if (!result.has_value()) return ::tessera::base::detail::StatusReturn{std::move(result.error())}; \
  declaration = std::move(*result)

namespace tessera::base::detail {

// Converts, implicitly as a return statement needs it, to whatever the enclosing function returns.
struct StatusReturn {
  Status status;
  operator Status() && { return std::move(status); }  // NOLINT(google-explicit-constructor)
  template <typename T>
  operator std::expected<T, Status>() && {  // NOLINT(google-explicit-constructor)
    return std::unexpected<Status>(std::move(status));
  }
};

}  // namespace tessera::base::detail
