#include "engine_side/decode/grpc/rollout_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <utility>

#include "bascule/v1/rollout.grpc.pb.h"
#include "base/grpc/grpc_channel.h"
#include "base/grpc/grpc_status.h"

namespace bascule {
namespace {

constexpr std::uint32_t kMaxBatch = 4096;  // rollouts, as in rollout.proto

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
  message.set_top_logprobs(request.top_logprobs);
  message.set_prompt_logprobs(request.prompt_logprobs);
  message.set_client(request.client);
  return message;
}

FinishReason FinishOf(v1::Finish finish) {
  switch (finish) {
    case v1::FINISH_STOP:
      return FinishReason::kStop;
    case v1::FINISH_ABORTED_BY_FLIP:
      return FinishReason::kAbortedByFlip;
    case v1::FINISH_TOO_STALE:
      return FinishReason::kTooStale;
    case v1::FINISH_CANCELLED:
      return FinishReason::kCancelled;
    default:
      return FinishReason::kLength;
  }
}

// Where the two lists differ in length the shorter one counts.
std::vector<TokenLogprob> TopOf(const v1::TopLogprobs& message) {
  std::vector<TokenLogprob> top;
  for (int i = 0; i < std::min(message.tokens_size(), message.logprobs_size()); ++i) {
    top.push_back({message.tokens(i), message.logprobs(i)});
  }
  return top;
}

PromptReport PromptOf(const v1::PromptReport& message) {
  return {.shared_tokens = message.shared_tokens(),
          .logprobs = {message.logprobs().begin(), message.logprobs().end()},
          .version = message.version(),
          .kv_epoch = message.kv_epoch()};
}

Rollout PieceOf(const v1::GenerateResponse& message) {
  Rollout piece;
  piece.tokens.assign(message.tokens().begin(), message.tokens().end());
  piece.logprobs.assign(message.logprobs().begin(), message.logprobs().end());
  for (const v1::TopLogprobs& top : message.top()) piece.top.push_back(TopOf(top));
  for (const v1::Span& span : message.spans()) {
    piece.spans.push_back({span.begin(), span.end(), span.version(), span.kv_epoch()});
  }
  if (message.has_prompt()) piece.prompt = PromptOf(message.prompt());
  for (const v1::FlipGap& gap : message.flip_gaps()) {
    piece.flip_gaps.push_back({gap.token(), std::chrono::microseconds(gap.gap_us())});
  }
  piece.finish = FinishOf(message.finish());
  piece.reason = message.reason();
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

template <typename T>
void AppendAll(const std::vector<T>& from, std::vector<T>& to) {
  to.insert(to.end(), from.begin(), from.end());
}

// Appends `piece`, whose spans have to cover its tokens exactly.
Status Append(const Rollout& piece, Rollout& whole) {
  auto next = static_cast<std::int32_t>(whole.tokens.size());
  AppendAll(piece.tokens, whole.tokens);
  AppendAll(piece.logprobs, whole.logprobs);
  AppendAll(piece.top, whole.top);
  AppendAll(piece.flip_gaps, whole.flip_gaps);
  if (piece.prompt) whole.prompt = piece.prompt;
  for (const RolloutSpan& span : piece.spans) {
    if (span.begin != next || span.end <= span.begin) break;
    AppendSpan(span, whole.spans);
    next = span.end;
  }
  whole.finish = piece.finish;
  whole.reason = piece.reason;
  const std::size_t count = whole.tokens.size();
  const bool tops_add_up = whole.top.empty() || whole.top.size() == count;
  if (static_cast<std::size_t>(next) == count && whole.logprobs.size() == count && tops_add_up) return OkStatus();
  return Status::DataLoss("bad_message", fmt::format("tokens={} logprobs={} top={} spans end at {}", count,
                                                     whole.logprobs.size(), whole.top.size(), next));
}

// Rollouts that grow piece by piece.
class GrowingRollouts {
 public:
  using OnPiece = std::function<void(std::size_t, const Rollout&)>;

  // Of requests with `samples` each, one request's after another's.
  GrowingRollouts(std::size_t requests, std::uint32_t samples, const OnPiece& on_piece)
      : on_piece_(on_piece),
        samples_(samples),
        rollouts_(requests * samples),
        finished_(rollouts_.size(), false),
        unfinished_(rollouts_.size()) {}

  // DataLoss "bad_message"
  Status Add(std::size_t request, std::uint32_t sample, const v1::GenerateResponse& message) {
    const std::size_t rollout = request * samples_ + sample;
    if (sample >= samples_ || rollout >= rollouts_.size() || finished_[rollout]) {
      return Status::DataLoss("bad_message",
                              fmt::format("a piece of request {} sample {}, which is not open", request, sample));
    }
    const Rollout piece = PieceOf(message);
    RETURN_IF_ERROR(Append(piece, rollouts_[rollout]));
    if (message.finish() != v1::FINISH_UNSPECIFIED) {
      finished_[rollout] = true;
      --unfinished_;
    }
    if (on_piece_ && !piece.tokens.empty()) on_piece_(rollout, piece);
    return OkStatus();
  }
  // DataLoss "bad_message"
  Result<std::vector<Rollout>> Take() && {
    if (unfinished_ == 0) return std::move(rollouts_);
    return Status::DataLoss("bad_message", fmt::format("the stream ended before {} of its rollouts did", unfinished_));
  }

 private:
  const OnPiece& on_piece_;
  const std::uint32_t samples_;
  std::vector<Rollout> rollouts_;
  std::vector<bool> finished_;
  std::size_t unfinished_;
};

Status AddMessage(const v1::GenerateResponse& message, GrowingRollouts& rollouts) {
  return rollouts.Add(0, 0, message);
}

Status AddMessage(const v1::GenerateBatchResponse& message, GrowingRollouts& rollouts) {
  for (const v1::BatchPiece& piece : message.pieces()) {
    if (piece.request() < 0) return Status::DataLoss("bad_message", fmt::format("request={}", piece.request()));
    RETURN_IF_ERROR(rollouts.Add(static_cast<std::size_t>(piece.request()), piece.sample(), piece.piece()));
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
  Result<std::vector<Rollout>> Batch(const v1::GenerateBatchRequest& message, GrowingRollouts rollouts,
                                     Deadline deadline, std::stop_token stop) const {
    grpc::ClientContext context;
    context.set_deadline(GrpcDeadline(deadline, Clock::Real()));
    const std::stop_callback cancel(std::move(stop), [&context] { context.TryCancel(); });
    const auto stream = stub->GenerateBatch(&context, message);
    return ReadAll(context, *stream, std::move(rollouts));
  }

  std::unique_ptr<v1::Rollout::Stub> stub;
};

Result<std::unique_ptr<RolloutClient>> RolloutClient::Connect(const std::string& address, Deadline deadline,
                                                              const ClientSecurity& security) {
  ASSIGN_OR_RETURN(const auto channel, ConnectGrpcChannel(address, deadline, Clock::Real(), security));
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
  ASSIGN_OR_RETURN(std::vector<Rollout> rollouts, ReadAll(context, *stream, GrowingRollouts(1, 1, on_only_piece)));
  return std::move(rollouts.front());
}

Result<std::vector<Rollout>> RolloutClient::GenerateBatch(
    std::span<const GenerateRequest> requests, Deadline deadline, std::stop_token stop,
    const std::function<void(std::size_t, const Rollout&)>& on_piece) {
  v1::GenerateBatchRequest message;
  for (const GenerateRequest& request : requests) *message.add_requests() = MessageOf(request);
  return connection_->Batch(message, GrowingRollouts(requests.size(), 1, on_piece), deadline, std::move(stop));
}

Result<std::vector<Rollout>> RolloutClient::GenerateSamples(
    const GenerateRequest& request, std::uint32_t samples, Deadline deadline, std::stop_token stop,
    const std::function<void(std::size_t, const Rollout&)>& on_piece) {
  if (samples == 0 || samples > kMaxBatch) {
    return Status::InvalidArgument("bad_request", fmt::format("samples={} want 1 to {}", samples, kMaxBatch));
  }
  v1::GenerateBatchRequest message;
  v1::GenerateRequest& only = *message.add_requests();
  only = MessageOf(request);
  only.set_samples(samples);
  return connection_->Batch(message, GrowingRollouts(1, samples, on_piece), deadline, std::move(stop));
}

}  // namespace bascule
