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
  message.set_top_k(request.top_k);
  message.set_top_p(request.top_p);
  message.set_min_new_tokens(request.min_new_tokens);
  message.set_sample(request.sample);
  if (request.kv_policy) message.set_kv_policy(std::string(KvPolicyName(*request.kv_policy)));
  if (request.max_staleness) message.set_max_staleness(*request.max_staleness);
  message.set_min_start_version(request.min_start_version);
  message.set_time_limit_ms(std::chrono::duration_cast<std::chrono::milliseconds>(request.time_limit).count());
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
    case v1::FINISH_ABORTED_BY_FLIP:
      piece.finish = FinishReason::kAbortedByFlip;
      break;
    case v1::FINISH_TOO_STALE:
      piece.finish = FinishReason::kTooStale;
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

// Rollouts that grow piece by piece.
class GrowingRollouts {
 public:
  using OnPiece = std::function<void(std::size_t, const Rollout&)>;

  GrowingRollouts(std::size_t count, const OnPiece& on_piece)
      : on_piece_(on_piece), rollouts_(count), finished_(count, false), unfinished_(count) {}

  // DataLoss "bad_message"
  Status Add(std::size_t request, const v1::GenerateResponse& message) {
    if (request >= rollouts_.size() || finished_[request]) {
      return Status::DataLoss("bad_message", fmt::format("a piece of request {} of {}", request, rollouts_.size()));
    }
    const Rollout piece = PieceOf(message);
    RETURN_IF_ERROR(Append(piece, rollouts_[request]));
    if (message.finish() != v1::FINISH_UNSPECIFIED) {
      finished_[request] = true;
      --unfinished_;
    }
    if (on_piece_ && !piece.tokens.empty()) on_piece_(request, piece);
    return OkStatus();
  }
  // DataLoss "bad_message"
  Result<std::vector<Rollout>> Take() && {
    if (unfinished_ == 0) return std::move(rollouts_);
    return Status::DataLoss("bad_message", fmt::format("the stream ended before {} of its rollouts did", unfinished_));
  }

 private:
  const OnPiece& on_piece_;
  std::vector<Rollout> rollouts_;
  std::vector<bool> finished_;
  std::size_t unfinished_;
};

Status AddMessage(const v1::GenerateResponse& message, GrowingRollouts& rollouts) { return rollouts.Add(0, message); }

Status AddMessage(const v1::GenerateBatchResponse& message, GrowingRollouts& rollouts) {
  for (const v1::BatchPiece& piece : message.pieces()) {
    if (piece.request() < 0) return Status::DataLoss("bad_message", fmt::format("request={}", piece.request()));
    RETURN_IF_ERROR(rollouts.Add(static_cast<std::size_t>(piece.request()), piece.piece()));
  }
  return OkStatus();
}

// Reads the stream to its end.
template <typename Message>
Result<std::vector<Rollout>> ReadAll(grpc::ClientContext& context, grpc::ClientReader<Message>& stream,
                                     GrowingRollouts rollouts) {
  Status added;
  Message message;
  while (added.ok() && stream.Read(&message)) added = AddMessage(message, rollouts);
  if (!added.ok()) context.TryCancel();
  const Status ended = FromGrpc(stream.Finish());
  RETURN_IF_ERROR(added);
  RETURN_IF_ERROR(ended);
  return std::move(rollouts).Take();
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
  GrowingRollouts::OnPiece on_only_piece;
  if (on_piece) on_only_piece = [&on_piece](std::size_t, const Rollout& piece) { on_piece(piece); };
  ASSIGN_OR_RETURN(std::vector<Rollout> rollouts, ReadAll(context, *stream, GrowingRollouts(1, on_only_piece)));
  return std::move(rollouts.front());
}

Result<std::vector<Rollout>> RolloutClient::GenerateBatch(
    std::span<const GenerateRequest> requests, Deadline deadline, std::stop_token stop,
    const std::function<void(std::size_t, const Rollout&)>& on_piece) {
  v1::GenerateBatchRequest message;
  for (const GenerateRequest& request : requests) *message.add_requests() = MessageOf(request);
  grpc::ClientContext context;
  context.set_deadline(GrpcDeadline(deadline, Clock::Real()));
  const std::stop_callback cancel(stop, [&context] { context.TryCancel(); });
  const auto stream = connection_->stub->GenerateBatch(&context, message);
  return ReadAll(context, *stream, GrowingRollouts(requests.size(), on_piece));
}

}  // namespace bascule
