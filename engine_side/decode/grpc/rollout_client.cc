#include "engine_side/decode/grpc/rollout_client.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "bascule/v1/rollout.grpc.pb.h"
#include "base/grpc/grpc_channel.h"
#include "base/grpc/grpc_status.h"

namespace bascule {
namespace {

v1::GenerateRequest MessageOf(const GenerateRequest& request) {
  v1::GenerateRequest message;
  message.mutable_prompt()->Add(request.prompt.begin(), request.prompt.end());
  message.set_max_new_tokens(request.max_new_tokens);
  message.set_temperature(request.temperature);
  message.set_seed(request.seed);
  message.mutable_stop()->Add(request.stop.begin(), request.stop.end());
  return message;
}

Rollout PieceOf(const v1::GenerateResponse& message) {
  Rollout piece;
  piece.tokens.assign(message.tokens().begin(), message.tokens().end());
  piece.logprobs.assign(message.logprobs().begin(), message.logprobs().end());
  for (const v1::Span& span : message.spans()) {
    piece.spans.push_back({span.begin(), span.end(), span.version(), span.kv_epoch()});
  }
  switch (message.finish()) {
    case v1::FINISH_STOP:
      piece.finish = FinishReason::kStop;
      break;
    case v1::FINISH_CANCELLED:
      piece.finish = FinishReason::kCancelled;
      break;
    default:
      piece.finish = FinishReason::kLength;
  }
  return piece;
}

void AppendSpan(const RolloutSpan& span, std::vector<RolloutSpan>& spans) {
  const bool goes_on = !spans.empty() && spans.back().version == span.version && spans.back().kv_epoch == span.kv_epoch;
  if (goes_on) {
    spans.back().end = span.end;
  } else {
    spans.push_back(span);
  }
}

// Appends `piece`, whose spans have to cover its tokens exactly.
Status Append(const Rollout& piece, Rollout& whole) {
  auto next = static_cast<std::int32_t>(whole.tokens.size());
  whole.tokens.insert(whole.tokens.end(), piece.tokens.begin(), piece.tokens.end());
  whole.logprobs.insert(whole.logprobs.end(), piece.logprobs.begin(), piece.logprobs.end());
  for (const RolloutSpan& span : piece.spans) {
    if (span.begin != next || span.end <= span.begin) break;
    AppendSpan(span, whole.spans);
    next = span.end;
  }
  whole.finish = piece.finish;
  if (static_cast<std::size_t>(next) == whole.tokens.size() && whole.tokens.size() == whole.logprobs.size()) {
    return OkStatus();
  }
  return Status::DataLoss("bad_message", fmt::format("tokens={} logprobs={} spans end at {}", whole.tokens.size(),
                                                     whole.logprobs.size(), next));
}

}  // namespace

struct RolloutClient::Connection {
  std::unique_ptr<v1::Rollout::Stub> stub;
};

Result<std::unique_ptr<RolloutClient>> RolloutClient::Connect(const std::string& address, Deadline deadline) {
  ASSIGN_OR_RETURN(const auto channel, ConnectGrpcChannel(address, deadline, Clock::Real()));
  auto connection = std::make_unique<Connection>(Connection{v1::Rollout::NewStub(channel)});
  return std::unique_ptr<RolloutClient>(new RolloutClient(std::move(connection)));
}

RolloutClient::RolloutClient(std::unique_ptr<Connection> connection) : connection_(std::move(connection)) {}

RolloutClient::~RolloutClient() = default;

Result<Rollout> RolloutClient::Generate(const GenerateRequest& request, Deadline deadline, std::stop_token stop,
                                        const std::function<void(const Rollout&)>& on_piece) {
  grpc::ClientContext context;
  context.set_deadline(GrpcDeadline(deadline, Clock::Real()));
  const std::stop_callback cancel(stop, [&context] { context.TryCancel(); });
  const auto stream = connection_->stub->Generate(&context, MessageOf(request));
  Rollout whole;
  Status added;
  bool finished = false;
  v1::GenerateResponse message;
  while (added.ok() && stream->Read(&message)) {
    const Rollout piece = PieceOf(message);
    added = Append(piece, whole);
    finished = message.finish() != v1::FINISH_UNSPECIFIED;
    if (added.ok() && on_piece && !piece.tokens.empty()) on_piece(piece);
  }
  if (!added.ok()) context.TryCancel();
  const Status ended = FromGrpc(stream->Finish());
  RETURN_IF_ERROR(added);
  RETURN_IF_ERROR(ended);
  if (!finished) return Status::DataLoss("bad_message", "the stream ended before the rollout did");
  return whole;
}

}  // namespace bascule
