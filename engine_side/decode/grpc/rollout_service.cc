#include "engine_side/decode/grpc/rollout_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "bascule/v1/rollout.grpc.pb.h"
#include "base/clock.h"
#include "base/grpc/grpc_status.h"
#include "base/mutex.h"
#include "engine_side/decode/grpc/rollout_request_internal.h"
#include "engine_side/decode/grpc/write_watch_internal.h"

namespace bascule {
namespace {

// How long a stream waits for tokens before it looks whether its client is still there.
constexpr Duration kCancelPoll = std::chrono::milliseconds(50);

// What the client of a call has not taken yet, in numbers (a token, a log-probability beside it): beyond, requests that
// make more of it end ("slow_reader").
constexpr std::size_t kMaxUnread = 256 << 10;

// What one rollout has made since it was last looked at.
struct Piece {
  std::optional<PromptReport> prompt;
  std::vector<GeneratedToken> tokens;
  std::optional<FinishReason> finish;
  Status why;
};

// Between the scheduler, which only appends, and the stream's thread, which takes all there is.
class PieceQueue {
 public:
  using Pieces = std::map<std::size_t, Piece>;  // by rollout

  // `change` adds `size` numbers to the piece of `rollout`.
  template <typename Change>
  void Append(std::size_t rollout, std::size_t size, Change change) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    change(pieces_[rollout]);
    unread_ += size;
    changed_.NotifyOne();
  }
  bool Full() EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return unread_ > kMaxUnread;
  }
  // Nothing new by `deadline`: none.
  Pieces Take(Deadline deadline) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    while (pieces_.empty()) {
      if (!Clock::Real().WaitUntil(changed_, mu_, deadline.point())) break;
    }
    unread_ = 0;
    return std::exchange(pieces_, {});
  }

 private:
  Mutex mu_;
  CondVar changed_;
  Pieces pieces_ GUARDED_BY(mu_);
  std::size_t unread_ GUARDED_BY(mu_) = 0;
};

class QueueSink final : public GenerateSink {
 public:
  QueueSink(std::shared_ptr<PieceQueue> queue, std::size_t rollout) : queue_(std::move(queue)), rollout_(rollout) {}

  void OnPrompt(const PromptReport& prompt) override {
    queue_->Append(rollout_, 1 + prompt.logprobs.size(), [&](Piece& piece) { piece.prompt = prompt; });
  }
  void OnToken(const GeneratedToken& token) override {
    queue_->Append(rollout_, 1 + token.top.size(), [&](Piece& piece) { piece.tokens.push_back(token); });
  }
  void OnFinish(FinishReason reason, const Status& why) override {
    queue_->Append(rollout_, 1, [&](Piece& piece) {
      piece.finish = reason;
      piece.why = why;
    });
  }
  bool Full() const override { return queue_->Full(); }

 private:
  const std::shared_ptr<PieceQueue> queue_;  // Shared: a cancelled request may outlive its call by a step.
  const std::size_t rollout_;
};

v1::Finish FinishOf(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
      return v1::FINISH_LENGTH;
    case FinishReason::kStop:
      return v1::FINISH_STOP;
    case FinishReason::kAbortedByFlip:
      return v1::FINISH_ABORTED_BY_FLIP;
    case FinishReason::kTooStale:
      return v1::FINISH_TOO_STALE;
    case FinishReason::kCancelled:
      return v1::FINISH_CANCELLED;
    case FinishReason::kFailed:
      break;  // ends the stream with a status
  }
  return v1::FINISH_UNSPECIFIED;
}

void AddToken(const GeneratedToken& token, std::int32_t position, v1::GenerateResponse& out) {
  out.add_tokens(token.id);
  out.add_logprobs(token.logprob);
  v1::Span* last = out.spans_size() > 0 ? out.mutable_spans(out.spans_size() - 1) : nullptr;
  if (last == nullptr || last->version() != token.version || last->kv_epoch() != token.kv_epoch) {
    last = out.add_spans();
    last->set_begin(position);
    last->set_version(token.version);
    last->set_kv_epoch(token.kv_epoch);
  }
  last->set_end(position + 1);
  if (token.flip_gap > Duration::zero()) {
    v1::FlipGap& gap = *out.add_flip_gaps();
    gap.set_token(position);
    gap.set_gap_us(std::chrono::duration_cast<std::chrono::microseconds>(token.flip_gap).count());
  }
  if (token.top.empty()) return;
  v1::TopLogprobs& top = *out.add_top();
  for (const TokenLogprob& probable : token.top) {
    top.add_tokens(probable.id);
    top.add_logprobs(probable.logprob);
  }
}

void SetPrompt(const PromptReport& report, v1::PromptReport& out) {
  out.set_shared_tokens(report.shared_tokens);
  out.mutable_logprobs()->Add(report.logprobs.begin(), report.logprobs.end());
  out.set_version(report.version);
  out.set_kv_epoch(report.kv_epoch);
}

// The rollouts of one call. Those that have not finished when it ends are cancelled.
class RolloutsOfCall {
 public:
  // `peer` is the client of requests that name none.
  RolloutsOfCall(DecodeEngine& engine, std::string peer) : engine_(engine), peer_(std::move(peer)) {}
  ~RolloutsOfCall() {
    for (const Rollout& rollout : rollouts_) {
      if (!rollout.finished) engine_.Cancel(rollout.id);
    }
  }
  RolloutsOfCall(const RolloutsOfCall&) = delete;
  RolloutsOfCall& operator=(const RolloutsOfCall&) = delete;

  // All samples of request number `index`. As DecodeEngine::Submit.
  Status Submit(std::int32_t index, const v1::GenerateRequest& message) {
    ASSIGN_OR_RETURN(GenerateRequest request, RequestOf(message, peer_));
    for (std::uint32_t sample = 0; sample < SamplesOf(message); ++sample, ++request.sample) {
      ASSIGN_OR_RETURN(const std::uint64_t id,
                       engine_.Submit(request, std::make_shared<QueueSink>(queue_, rollouts_.size())));
      rollouts_.push_back({.id = id, .request = index, .sample = sample});
      ++unfinished_;
    }
    return OkStatus();
  }
  static std::uint32_t SamplesOf(const v1::GenerateRequest& message) { return std::max(message.samples(), 1U); }
  bool AllFinished() const { return unfinished_ == 0; }
  // What they have made since the last call, waiting for it until `deadline`; the error of one that failed.
  Result<v1::GenerateBatchResponse> Take(Deadline deadline) {
    v1::GenerateBatchResponse response;
    for (const auto& [index, piece] : queue_->Take(deadline)) {
      Rollout& rollout = rollouts_[index];
      if (piece.finish == FinishReason::kFailed)
        return piece.why.WithContext(fmt::format("request {}", rollout.request));
      v1::BatchPiece& out = *response.add_pieces();
      out.set_request(rollout.request);
      out.set_sample(rollout.sample);
      Add(piece, rollout, *out.mutable_piece());
    }
    return response;
  }

 private:
  struct Rollout {
    std::uint64_t id = 0;
    std::int32_t request = 0;
    std::uint32_t sample = 0;
    std::int32_t token_count = 0;
    bool finished = false;
  };

  void Add(const Piece& piece, Rollout& rollout, v1::GenerateResponse& out) {
    if (piece.prompt) SetPrompt(*piece.prompt, *out.mutable_prompt());
    for (const GeneratedToken& token : piece.tokens) AddToken(token, rollout.token_count++, out);
    if (!piece.finish) return;
    out.set_finish(FinishOf(*piece.finish));
    if (piece.finish == FinishReason::kCancelled) out.set_reason(piece.why.reason());
    rollout.finished = true;
    --unfinished_;
  }

  DecodeEngine& engine_;
  const std::string peer_;
  const std::shared_ptr<PieceQueue> queue_ = std::make_shared<PieceQueue>();
  std::vector<Rollout> rollouts_;
  std::size_t unfinished_ = 0;
};

// A place among the streams that run at once; given back at the end of its scope.
class StreamPlace {
 public:
  StreamPlace(std::atomic<int>& running, int max_streams)
      : running_(running), granted_(running_.fetch_add(1) < max_streams) {}
  ~StreamPlace() { running_.fetch_sub(1); }
  StreamPlace(const StreamPlace&) = delete;
  StreamPlace& operator=(const StreamPlace&) = delete;
  bool granted() const { return granted_; }

 private:
  std::atomic<int>& running_;
  const bool granted_;
};

}  // namespace

class RolloutService::Service final : public v1::Rollout::Service {
 public:
  Service(DecodeEngine& engine, RolloutServiceOptions options)
      : engine_(engine), options_(options), writes_(options.write_patience) {}

  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    const StreamPlace place(running_, options_.max_streams);
    if (!place.granted()) return ToGrpc(TooManyStreams());
    if (RolloutsOfCall::SamplesOf(*request) > 1) {
      return ToGrpc(Status::InvalidArgument("bad_request", "several samples travel by GenerateBatch"));
    }
    RolloutsOfCall rollouts(engine_, context->peer());
    if (const Status submitted = rollouts.Submit(0, *request); !submitted.ok()) return ToGrpc(submitted);
    return WriteAll(*context, rollouts, [writer](const v1::GenerateBatchResponse& response) {
      return writer->Write(response.pieces(0).piece());
    });
  }

  grpc::Status GenerateBatch(grpc::ServerContext* context, const v1::GenerateBatchRequest* batch,
                             grpc::ServerWriter<v1::GenerateBatchResponse>* writer) override {
    const StreamPlace place(running_, options_.max_streams);
    if (!place.granted()) return ToGrpc(TooManyStreams());
    std::int64_t count = 0;
    for (const v1::GenerateRequest& request : batch->requests()) count += RolloutsOfCall::SamplesOf(request);
    if (count < 1 || count > options_.max_batch) {
      return ToGrpc(
          Status::InvalidArgument("bad_request", fmt::format("rollouts={} want 1 to {}", count, options_.max_batch)));
    }
    RolloutsOfCall rollouts(engine_, context->peer());
    for (int i = 0; i < batch->requests_size(); ++i) {
      const Status submitted = rollouts.Submit(i, batch->requests(i));
      if (!submitted.ok()) return ToGrpc(submitted.WithContext(fmt::format("request {}", i)));
    }
    return WriteAll(*context, rollouts,
                    [writer](const v1::GenerateBatchResponse& response) { return writer->Write(response); });
  }

 private:
  Status TooManyStreams() const {
    return Status::ResourceExhausted("too_many_streams", fmt::format("max_streams={}", options_.max_streams));
  }

  // Until all have finished, or their client has gone away or takes nothing.
  template <typename Write>
  grpc::Status WriteAll(grpc::ServerContext& context, RolloutsOfCall& rollouts, Write write) {
    while (!rollouts.AllFinished()) {
      const auto response = rollouts.Take(Deadline::After(Clock::Real(), kCancelPoll));
      if (!response.ok()) return ToGrpc(response.status());
      if (context.IsCancelled()) return grpc::Status::CANCELLED;
      if (response->pieces_size() == 0) continue;
      if (!writes_.Bound(context, [&] { return write(*response); })) return grpc::Status::CANCELLED;
    }
    return grpc::Status::OK;
  }

  DecodeEngine& engine_;
  const RolloutServiceOptions options_;
  std::atomic<int> running_{0};
  WriteWatch writes_;
};

RolloutService::RolloutService(DecodeEngine& engine, RolloutServiceOptions options)
    : service_(std::make_unique<Service>(engine, options)) {}

RolloutService::~RolloutService() = default;

grpc::Service& RolloutService::service() { return *service_; }

}  // namespace bascule
