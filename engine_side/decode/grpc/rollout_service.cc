#include "engine_side/decode/grpc/rollout_service.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "bascule/v1/rollout.grpc.pb.h"
#include "base/clock.h"
#include "base/grpc/grpc_status.h"
#include "base/mutex.h"

namespace bascule {
namespace {

// How long a stream waits for tokens before it looks whether its client is still there.
constexpr Duration kCancelPoll = std::chrono::milliseconds(50);

constexpr std::int64_t kMaxTimeLimitMs = std::int64_t{366} * 24 * 3600 * 1000;

// Tokens of one request that its client has not taken yet: beyond, the request ends ("slow_reader").
constexpr std::size_t kMaxUnreadTokens = 64 << 10;

// What one request has made since it was last looked at.
struct Piece {
  std::vector<GeneratedToken> tokens;
  std::optional<FinishReason> finish;
  Status why;
};

// Between the scheduler, which only appends, and the stream's thread, which takes all there is.
class PieceQueue {
 public:
  using Pieces = std::map<std::size_t, Piece>;  // by request

  template <typename Change>
  void Append(std::size_t request, Change change) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    change(pieces_[request]);
    changed_.NotifyOne();
  }
  std::size_t Unread(std::size_t request) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    const auto found = pieces_.find(request);
    return found == pieces_.end() ? 0 : found->second.tokens.size();
  }
  // Nothing new by `deadline`: none.
  Pieces Take(Deadline deadline) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    while (pieces_.empty()) {
      if (!Clock::Real().WaitUntil(changed_, mu_, deadline.point())) break;
    }
    return std::exchange(pieces_, {});
  }

 private:
  Mutex mu_;
  CondVar changed_;
  Pieces pieces_ GUARDED_BY(mu_);
};

class QueueSink final : public GenerateSink {
 public:
  QueueSink(std::shared_ptr<PieceQueue> queue, std::size_t request) : queue_(std::move(queue)), request_(request) {}

  void OnToken(const GeneratedToken& token) override {
    queue_->Append(request_, [&](Piece& piece) { piece.tokens.push_back(token); });
  }
  void OnFinish(FinishReason reason, const Status& why) override {
    queue_->Append(request_, [&](Piece& piece) {
      piece.finish = reason;
      piece.why = why;
    });
  }
  bool Full() const override { return queue_->Unread(request_) > kMaxUnreadTokens; }

 private:
  const std::shared_ptr<PieceQueue> queue_;  // Shared: a cancelled request may outlive its call by a step.
  const std::size_t request_;
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
}

Result<GenerateRequest> RequestOf(const v1::GenerateRequest& in) {
  GenerateRequest request;
  request.prompt.assign(in.prompt().begin(), in.prompt().end());
  request.max_new_tokens = in.max_new_tokens();
  request.temperature = in.temperature();
  request.seed = in.seed();
  request.stop.assign(in.stop().begin(), in.stop().end());
  request.top_k = in.top_k();
  if (in.has_top_p()) request.top_p = in.top_p();
  request.min_new_tokens = in.min_new_tokens();
  request.sample = in.sample();
  if (!in.kv_policy().empty()) {
    ASSIGN_OR_RETURN(request.kv_policy, ParseKvPolicy(in.kv_policy()));
  }
  if (in.has_max_staleness()) request.max_staleness = in.max_staleness();
  request.min_start_version = in.min_start_version();
  if (in.time_limit_ms() < 0 || in.time_limit_ms() > kMaxTimeLimitMs) {
    return Status::InvalidArgument("bad_request", fmt::format("time_limit_ms={}", in.time_limit_ms()));
  }
  request.time_limit = std::chrono::milliseconds(in.time_limit_ms());
  return request;
}

// The requests of one call. Those that have not finished when it ends are cancelled.
class RequestsOfCall {
 public:
  explicit RequestsOfCall(DecodeEngine& engine) : engine_(engine) {}
  ~RequestsOfCall() {
    for (const Request& request : requests_) {
      if (!request.finished) engine_.Cancel(request.id);
    }
  }
  RequestsOfCall(const RequestsOfCall&) = delete;
  RequestsOfCall& operator=(const RequestsOfCall&) = delete;

  // As DecodeEngine::Submit.
  Status Submit(const v1::GenerateRequest& message) {
    ASSIGN_OR_RETURN(GenerateRequest request, RequestOf(message));
    ASSIGN_OR_RETURN(const std::uint64_t id,
                     engine_.Submit(std::move(request), std::make_shared<QueueSink>(queue_, requests_.size())));
    requests_.push_back({.id = id});
    ++unfinished_;
    return OkStatus();
  }
  bool AllFinished() const { return unfinished_ == 0; }
  // What they have made since the last call, waiting for it until `deadline`; the error of one that failed.
  Result<v1::GenerateBatchResponse> Take(Deadline deadline) {
    v1::GenerateBatchResponse response;
    for (const auto& [index, piece] : queue_->Take(deadline)) {
      if (piece.finish == FinishReason::kFailed) return piece.why.WithContext(fmt::format("request {}", index));
      v1::BatchPiece& out = *response.add_pieces();
      out.set_request(static_cast<std::int32_t>(index));
      Request& request = requests_[index];
      for (const GeneratedToken& token : piece.tokens) AddToken(token, request.token_count++, *out.mutable_piece());
      if (!piece.finish) continue;
      out.mutable_piece()->set_finish(FinishOf(*piece.finish));
      if (piece.finish == FinishReason::kCancelled) out.mutable_piece()->set_reason(piece.why.reason());
      request.finished = true;
      --unfinished_;
    }
    return response;
  }

 private:
  struct Request {
    std::uint64_t id = 0;
    std::int32_t token_count = 0;
    bool finished = false;
  };

  DecodeEngine& engine_;
  const std::shared_ptr<PieceQueue> queue_ = std::make_shared<PieceQueue>();
  std::vector<Request> requests_;
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
  Service(DecodeEngine& engine, RolloutServiceOptions options) : engine_(engine), options_(options) {}

  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    const StreamPlace place(running_, options_.max_streams);
    if (!place.granted()) return ToGrpc(TooManyStreams());
    RequestsOfCall requests(engine_);
    if (const Status submitted = requests.Submit(*request); !submitted.ok()) return ToGrpc(submitted);
    return WriteAll(*context, requests, [writer](const v1::GenerateBatchResponse& response) {
      return writer->Write(response.pieces(0).piece());
    });
  }

  grpc::Status GenerateBatch(grpc::ServerContext* context, const v1::GenerateBatchRequest* batch,
                             grpc::ServerWriter<v1::GenerateBatchResponse>* writer) override {
    const StreamPlace place(running_, options_.max_streams);
    if (!place.granted()) return ToGrpc(TooManyStreams());
    if (batch->requests_size() < 1 || batch->requests_size() > options_.max_batch) {
      return ToGrpc(Status::InvalidArgument(
          "bad_request", fmt::format("requests={} want 1 to {}", batch->requests_size(), options_.max_batch)));
    }
    RequestsOfCall requests(engine_);
    for (int i = 0; i < batch->requests_size(); ++i) {
      const Status submitted = requests.Submit(batch->requests(i));
      if (!submitted.ok()) return ToGrpc(submitted.WithContext(fmt::format("request {}", i)));
    }
    return WriteAll(*context, requests,
                    [writer](const v1::GenerateBatchResponse& response) { return writer->Write(response); });
  }

 private:
  Status TooManyStreams() const {
    return Status::ResourceExhausted("too_many_streams", fmt::format("max_streams={}", options_.max_streams));
  }

  // Until all have finished or their client has gone away.
  template <typename Write>
  static grpc::Status WriteAll(const grpc::ServerContext& context, RequestsOfCall& requests, Write write) {
    while (!requests.AllFinished()) {
      const auto response = requests.Take(Deadline::After(Clock::Real(), kCancelPoll));
      if (!response.ok()) return ToGrpc(response.status());
      if (context.IsCancelled() || (response->pieces_size() > 0 && !write(*response))) return grpc::Status::CANCELLED;
    }
    return grpc::Status::OK;
  }

  DecodeEngine& engine_;
  const RolloutServiceOptions options_;
  std::atomic<int> running_{0};
};

RolloutService::RolloutService(DecodeEngine& engine, RolloutServiceOptions options)
    : service_(std::make_unique<Service>(engine, options)) {}

RolloutService::~RolloutService() = default;

grpc::Service& RolloutService::service() { return *service_; }

}  // namespace bascule
