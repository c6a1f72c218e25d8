#include "tools/grpc/version_load_client.h"

#include <grpcpp/grpcpp.h>

#include "bascule/v1/version_load.grpc.pb.h"
#include "base/grpc/grpc_channel.h"
#include "base/grpc/grpc_status.h"
#include "bridge/session/grpc/fleet_codec_internal.h"
#include "tools/interrupt.h"

namespace bascule {
namespace {

Status ReadInto(const v1::LoadVersionResponse& answer, SendReport& report) {
  ASSIGN_OR_RETURN(report.version, FromProto(answer.version()));
  report.bytes = answer.bytes();
  report.stage_ms = answer.stage_ms();
  report.verify_ms = answer.verify_ms();
  report.flip.version = report.version;
  report.flip.flip_stall_us = answer.flip_stall_us();
  report.flip.kv = {.recomputed = answer.recomputed(),
                    .drained = answer.drained(),
                    .kept = answer.kept(),
                    .aborted = answer.aborted(),
                    .recompute_tokens = answer.recompute_tokens()};
  return OkStatus();
}

Status Call(const std::string& address, const DiskVersion& version, Deadline deadline, const std::stop_token& stop,
            const ClientSecurity& security, SendReport& report) {
  ASSIGN_OR_RETURN(const auto channel, ConnectGrpcChannel(address, deadline, Clock::Real(), security));
  report.phase = SendPhase::kOffer;
  grpc::ClientContext context;
  context.set_deadline(GrpcDeadline(deadline, Clock::Real()));
  const std::stop_callback cancel(stop, [&context] { context.TryCancel(); });
  v1::LoadVersionRequest request;
  request.set_path(version.path);
  request.set_number(version.number);
  request.set_run(version.run);
  request.set_new_run(version.new_run);
  for (const std::string& pattern : version.ignore) request.add_ignore(pattern);
  for (const std::string& pattern : version.scope) request.add_scope(pattern);
  if (version.base) ToProto(*version.base, *request.mutable_base());
  v1::LoadVersionResponse answer;
  const grpc::Status status = v1::VersionLoad::NewStub(channel)->LoadVersion(&context, request, &answer);
  if (!status.ok()) return stop.stop_requested() ? InterruptedError() : FromGrpc(status);
  return ReadInto(answer, report);
}

}  // namespace

SendReport LoadVersionFromDisk(const std::string& address, const DiskVersion& version, Deadline deadline,
                               std::stop_token stop, const ClientSecurity& security) {
  SendReport report;
  report.version.number = version.number;
  report.status = Call(address, version, deadline, stop, security, report);
  return report;
}

}  // namespace bascule
