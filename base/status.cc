#include "base/status.h"

#include <array>
#include <cstdio>

namespace bascule {
namespace {

constexpr std::array<std::string_view, 15> kNames = {"OK",
                                                     "CANCELLED",
                                                     "INVALID_ARGUMENT",
                                                     "NOT_FOUND",
                                                     "ALREADY_EXISTS",
                                                     "PERMISSION_DENIED",
                                                     "UNAUTHENTICATED",
                                                     "FAILED_PRECONDITION",
                                                     "RESOURCE_EXHAUSTED",
                                                     "UNAVAILABLE",
                                                     "DEADLINE_EXCEEDED",
                                                     "ABORTED",
                                                     "DATA_LOSS",
                                                     "UNIMPLEMENTED",
                                                     "INTERNAL"};

}  // namespace

std::string_view StatusCodeName(StatusCode code) { return kNames.at(static_cast<std::size_t>(code)); }

Status::Status(StatusCode code, std::string_view reason, std::string message)
    : code_(code), reason_(reason), message_(std::move(message)) {
  CHECK(code != StatusCode::kOk);
}

#define BASCULE_DEFINE_STATUS(Name)                                   \
  Status Status::Name(std::string_view reason, std::string message) { \
    return Status(StatusCode::k##Name, reason, std::move(message));   \
  }
BASCULE_DEFINE_STATUS(Cancelled)
BASCULE_DEFINE_STATUS(InvalidArgument)
BASCULE_DEFINE_STATUS(NotFound)
BASCULE_DEFINE_STATUS(AlreadyExists)
BASCULE_DEFINE_STATUS(PermissionDenied)
BASCULE_DEFINE_STATUS(Unauthenticated)
BASCULE_DEFINE_STATUS(FailedPrecondition)
BASCULE_DEFINE_STATUS(ResourceExhausted)
BASCULE_DEFINE_STATUS(Unavailable)
BASCULE_DEFINE_STATUS(DeadlineExceeded)
BASCULE_DEFINE_STATUS(Aborted)
BASCULE_DEFINE_STATUS(DataLoss)
BASCULE_DEFINE_STATUS(Unimplemented)
BASCULE_DEFINE_STATUS(Internal)
#undef BASCULE_DEFINE_STATUS

std::string Status::ToString() const {
  if (ok()) return "OK";
  std::string text = fmt::format("{} {}", StatusCodeName(code_), reason_);
  return message_.empty() ? text : text + ": " + message_;
}

Status Status::WithContext(std::string_view context) const {
  if (ok()) return *this;
  return Status(code_, reason_, message_.empty() ? std::string(context) : fmt::format("{}: {}", context, message_));
}

void CheckFailed(const char* file, int line, const char* expression) {
  std::fprintf(stderr, "%s:%d: CHECK failed: %s\n", file, line, expression);
  std::abort();
}

}  // namespace bascule
