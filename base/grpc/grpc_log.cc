#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>

#include <mutex>
#include <string_view>

#include "base/grpc/grpc_log_internal.h"
#include "base/log.h"

namespace bascule {

void RouteGrpcLog() {
  static std::once_flag once;
  std::call_once(once, [] {
    gpr_set_log_function([](gpr_log_func_args* line) {
      // gRPC aborts after this one: the reason must not be lost.
      const bool fatal = std::string_view(line->message).starts_with("assertion failed");
      LogAt(fatal ? LogLevel::kError : LogLevel::kDebug, "grpc", "severity={} at={}:{} text={}",
            gpr_log_severity_string(line->severity), line->file, line->line, line->message);
    });
    google::protobuf::SetLogHandler(
        [](google::protobuf::LogLevel level, const char* file, int line, const std::string& text) {
          LogDebug("protobuf", "severity={} at={}:{} text={}", static_cast<int>(level), file, line, text);
        });
  });
}

}  // namespace bascule
