#include "base/grpc/grpc_status.h"

#include <grpcpp/support/status.h>

#include <array>
#include <string>
#include <utility>

#include "base/error_text.h"

namespace bascule {
namespace {

constexpr std::array kCodes = {
    std::pair{StatusCode::kCancelled, grpc::CANCELLED},
    std::pair{StatusCode::kInvalidArgument, grpc::INVALID_ARGUMENT},
    std::pair{StatusCode::kNotFound, grpc::NOT_FOUND},
    std::pair{StatusCode::kAlreadyExists, grpc::ALREADY_EXISTS},
    std::pair{StatusCode::kPermissionDenied, grpc::PERMISSION_DENIED},
    std::pair{StatusCode::kUnauthenticated, grpc::UNAUTHENTICATED},
    std::pair{StatusCode::kFailedPrecondition, grpc::FAILED_PRECONDITION},
    std::pair{StatusCode::kResourceExhausted, grpc::RESOURCE_EXHAUSTED},
    std::pair{StatusCode::kUnavailable, grpc::UNAVAILABLE},
    std::pair{StatusCode::kDeadlineExceeded, grpc::DEADLINE_EXCEEDED},
    std::pair{StatusCode::kAborted, grpc::ABORTED},
    std::pair{StatusCode::kDataLoss, grpc::DATA_LOSS},
    std::pair{StatusCode::kUnimplemented, grpc::UNIMPLEMENTED},
    std::pair{StatusCode::kInternal, grpc::INTERNAL},
};

StatusCode CodeOf(grpc::StatusCode code) {
  for (const auto& [ours, theirs] : kCodes) {
    if (theirs == code) return ours;
  }
  return StatusCode::kInternal;
}

std::string_view ReasonOf(StatusCode code) {
  switch (code) {
    case StatusCode::kUnavailable:
      return "peer_lost";
    case StatusCode::kDeadlineExceeded:
      return "deadline";
    case StatusCode::kCancelled:
      return "cancelled";
    case StatusCode::kUnimplemented:
      return "wrong_service";
    case StatusCode::kUnauthenticated:
      return "unauthenticated";
    case StatusCode::kPermissionDenied:
      return "permission_denied";
    default:
      return "rpc_failed";
  }
}

}  // namespace

grpc::Status ToGrpc(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  for (const auto& [ours, theirs] : kCodes) {
    if (ours == status.code()) {
      return grpc::Status(theirs, std::string(BeginningOf(status.message(), kGrpcErrorTextBytes)), status.reason());
    }
  }
  return grpc::Status(grpc::UNKNOWN, std::string(BeginningOf(status.message(), kGrpcErrorTextBytes)), status.reason());
}

Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return OkStatus();
  const StatusCode code = CodeOf(status.error_code());
  const std::string& reason = status.error_details();
  // gRPC's own answer to a call that nobody there has heard of comes without a word.
  if (code == StatusCode::kUnimplemented && reason.empty() && status.error_message().empty()) {
    return Status(code, ReasonOf(code), "a server answers there, but it is of another kind");
  }
  return Status(code, reason.empty() ? ReasonOf(code) : std::string_view(reason), status.error_message());
}

}  // namespace bascule
