#include "tools/grpc/version_status_client.h"

#include <grpcpp/grpcpp.h>

#include "bascule/v1/version_status.grpc.pb.h"
#include "base/grpc/grpc_channel.h"
#include "base/grpc/grpc_status.h"
#include "tools/grpc/status_json_internal.h"
#include "tools/interrupt.h"

namespace bascule {
namespace {

// One call: its context is cancelled by `stop`, and its status is turned into ours.
class Call {
 public:
  Call(std::stop_token stop, std::optional<Deadline> deadline)
      : stop_(stop), cancel_(stop, [this] { context_.TryCancel(); }) {
    if (deadline) context_.set_deadline(GrpcDeadline(*deadline, Clock::Real()));
  }

  grpc::ClientContext* context() { return &context_; }
  Status Finish(const grpc::Status& status) const {
    return !status.ok() && stop_.stop_requested() ? InterruptedError() : FromGrpc(status);
  }

 private:
  const std::stop_token stop_;
  grpc::ClientContext context_;
  std::stop_callback<std::function<void()>> cancel_;
};

// InvalidArgument/DataLoss: what a peer says of a tensor is checked like everything else that it says.
Result<TensorSpec> SpecOf(const v1::LiveTensor& tensor) {
  ASSIGN_OR_RETURN(const DType dtype, ParseDType(tensor.dtype()));
  if (tensor.shape_size() > kMaxDims || tensor.digest_size() != kDigestLanes) {
    return Status::DataLoss("bad_message", fmt::format("tensor {}: {} dimensions, {} digest lanes", tensor.name(),
                                                       tensor.shape_size(), tensor.digest_size()));
  }
  return TensorSpec{tensor.name(), dtype,
                    Dims(std::span(tensor.shape().data(), static_cast<std::size_t>(tensor.shape_size())))};
}

Status AddPart(const v1::DigestLiveResponse& part, LiveDigests& live) {
  for (const v1::LiveTensor& tensor : part.tensors()) {
    ASSIGN_OR_RETURN(TensorSpec spec, SpecOf(tensor));
    live.tensors.push_back(std::move(spec));
    TensorDigest& digest = live.digests.emplace_back();
    std::copy(tensor.digest().begin(), tensor.digest().end(), digest.lane.begin());
  }
  for (const v1::ReplicaDifference& difference : part.replica_differences()) {
    live.replica_differences.push_back({difference.tensor(), difference.what()});
  }
  return OkStatus();
}

}  // namespace

struct VersionStatusClient::Connection {
  std::unique_ptr<v1::VersionStatus::Stub> stub;
};

Result<std::unique_ptr<VersionStatusClient>> VersionStatusClient::Connect(const std::string& address, Deadline deadline,
                                                                          const ClientSecurity& security) {
  ASSIGN_OR_RETURN(const auto channel, ConnectGrpcChannel(address, deadline, Clock::Real(), security));
  auto connection = std::make_unique<Connection>(Connection{v1::VersionStatus::NewStub(channel)});
  return std::unique_ptr<VersionStatusClient>(new VersionStatusClient(std::move(connection)));
}

VersionStatusClient::VersionStatusClient(std::unique_ptr<Connection> connection) : connection_(std::move(connection)) {}

VersionStatusClient::~VersionStatusClient() = default;

Result<Json> VersionStatusClient::GetStatus(Deadline deadline, std::stop_token stop, bool details) {
  Call call(stop, deadline);
  v1::GetStatusRequest request;
  request.set_details(details);
  v1::GetStatusResponse answer;
  RETURN_IF_ERROR(call.Finish(connection_->stub->GetStatus(call.context(), request, &answer)));
  return JsonOf(answer);
}

Status VersionStatusClient::Watch(std::stop_token stop, const std::function<bool(const Json&)>& on_status) {
  Call call(stop, std::nullopt);
  const auto stream = connection_->stub->WatchStatus(call.context(), {});
  v1::WatchStatusResponse answer;
  while (stream->Read(&answer)) {
    if (on_status(JsonOf(answer.status()))) continue;
    call.context()->TryCancel();
    stream->Finish();
    return OkStatus();
  }
  return call.Finish(stream->Finish());
}

Result<std::vector<Json>> VersionStatusClient::ListVersions(Deadline deadline, std::stop_token stop) {
  Call call(stop, deadline);
  v1::ListVersionsResponse answer;
  RETURN_IF_ERROR(call.Finish(connection_->stub->ListVersions(call.context(), {}, &answer)));
  std::vector<Json> rows;
  for (const v1::HistoryRow& row : answer.rows()) rows.push_back(JsonOf(row));
  return rows;
}

Result<LiveDigests> VersionStatusClient::DigestLive(Deadline deadline, std::stop_token stop) {
  Call call(stop, deadline);
  const auto stream = connection_->stub->DigestLive(call.context(), {});
  LiveDigests live;
  v1::DigestLiveResponse part;
  while (stream->Read(&part)) {
    if (const Status added = AddPart(part, live); !added.ok()) {
      call.context()->TryCancel();
      stream->Finish();
      return added;
    }
  }
  RETURN_IF_ERROR(call.Finish(stream->Finish()));
  return live;
}

Result<Json> VersionStatusClient::Rollback(std::optional<std::uint64_t> to, Deadline deadline, std::stop_token stop) {
  Call call(stop, deadline);
  v1::RollbackRequest request;
  if (to) request.set_to(*to);
  v1::RollbackResponse answer;
  RETURN_IF_ERROR(call.Finish(connection_->stub->Rollback(call.context(), request, &answer)));
  return JsonOf(answer);
}

}  // namespace bascule
