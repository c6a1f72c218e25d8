// Errors as values. A Status has three readers: its *code* tells the caller what to do next, its *reason* is a
// token that names the rule that broke (tests and logs match on it; docs/protocol.md lists the session's), and its
// *message* gives a person the numbers. We throw no exceptions; return an error or log it, never both.
//
// Thread-safety: thread-compatible (a value).
#pragma once

#include <fmt/core.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace bascule {

// What the caller can do: see the comment behind each.
enum class StatusCode {
  kOk,
  kCancelled,           // the caller itself stopped it
  kInvalidArgument,     // never works with this input
  kNotFound,            // name something that exists
  kAlreadyExists,       // it is there already
  kPermissionDenied,    // ask for the right
  kUnauthenticated,     // say who you are
  kFailedPrecondition,  // works in another state of the system
  kResourceExhausted,   // free something, or ask for less
  kUnavailable,         // try again
  kDeadlineExceeded,    // try again with more time
  kAborted,             // start the whole operation again
  kDataLoss,            // bytes are damaged, missing or misplaced
  kUnimplemented,       // this build or peer cannot do it
  kInternal,            // a bug of ours
};

std::string_view StatusCodeName(StatusCode code);  // "DATA_LOSS"

class [[nodiscard]] Status {
 public:
  Status() = default;  // OK
  // `code` is not kOk; `reason` is a token like "short_header".
  Status(StatusCode code, std::string_view reason, std::string message);

  static Status Cancelled(std::string_view reason, std::string message = "");
  static Status InvalidArgument(std::string_view reason, std::string message = "");
  static Status NotFound(std::string_view reason, std::string message = "");
  static Status AlreadyExists(std::string_view reason, std::string message = "");
  static Status PermissionDenied(std::string_view reason, std::string message = "");
  static Status Unauthenticated(std::string_view reason, std::string message = "");
  static Status FailedPrecondition(std::string_view reason, std::string message = "");
  static Status ResourceExhausted(std::string_view reason, std::string message = "");
  static Status Unavailable(std::string_view reason, std::string message = "");
  static Status DeadlineExceeded(std::string_view reason, std::string message = "");
  static Status Aborted(std::string_view reason, std::string message = "");
  static Status DataLoss(std::string_view reason, std::string message = "");
  static Status Unimplemented(std::string_view reason, std::string message = "");
  static Status Internal(std::string_view reason, std::string message = "");

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& reason() const { return reason_; }
  const std::string& message() const { return message_; }
  // "DATA_LOSS short_header: got=3 want=64", or "OK".
  std::string ToString() const;
  // The same error with `context` and ": " before its message. OK stays OK.
  Status WithContext(std::string_view context) const;

  friend bool operator==(const Status&, const Status&) = default;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string reason_;
  std::string message_;
};

inline Status OkStatus() { return Status(); }

[[noreturn]] void CheckFailed(const char* file, int line, const char* expression);

// For our own bugs only; never for input.
#define CHECK(condition) \
  (static_cast<bool>(condition) ? static_cast<void>(0) : ::bascule::CheckFailed(__FILE__, __LINE__, #condition))

// A T, or the reason why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  using value_type = T;
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}        // NOLINT: implicit by design
  Result(Status status) : state_(std::in_place_index<1>, std::move(status)) {  // NOLINT: implicit by design
    CHECK(!std::get<1>(state_).ok());
  }

  bool ok() const { return state_.index() == 0; }
  Status status() const { return ok() ? Status() : std::get<1>(state_); }
  T& value() & {
    CHECK(ok());
    return std::get<0>(state_);
  }
  const T& value() const& {
    CHECK(ok());
    return std::get<0>(state_);
  }
  T&& value() && {
    CHECK(ok());
    return std::get<0>(std::move(state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace bascule

#define BASCULE_CONCAT_INNER(a, b) a##b
#define BASCULE_CONCAT(a, b) BASCULE_CONCAT_INNER(a, b)

#define RETURN_IF_ERROR(expression)                                                                   \
  do {                                                                                                \
    if (::bascule::Status bascule_status = (expression); !bascule_status.ok()) return bascule_status; \
  } while (false)

// ASSIGN_OR_RETURN(const Header header, ParseHeader(bytes));
#define ASSIGN_OR_RETURN(declaration, expression) \
  ASSIGN_OR_RETURN_IMPL(BASCULE_CONCAT(bascule_result_, __LINE__), declaration, expression)
#define ASSIGN_OR_RETURN_IMPL(result, declaration, expression) \
  auto result = (expression);                                  \
  if (!result.ok()) return result.status();                    \
  declaration = std::move(result).value()
