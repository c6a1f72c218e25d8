#include "engine_side/decode/grpc/rollout_service.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
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

// Between the scheduler, which only appends, and the stream's thread, which takes all there is.
class TokenQueue final : public GenerateSink {
 public:
  struct Piece {
    std::vector<GeneratedToken> tokens;
    std::optional<FinishReason> finish;
    Status why;
  };

  void OnToken(const GeneratedToken& token) override EXCLUDES(mu_) {
    MutexLock lock(mu_);
    piece_.tokens.push_back(token);
    changed_.NotifyOne();
  }
  void OnFinish(FinishReason reason, const Status& why) override EXCLUDES(mu_) {
    MutexLock lock(mu_);
    piece_.finish = reason;
    piece_.why = why;
    changed_.NotifyOne();
  }
  // Nothing new by `deadline`: an empty piece.
  Piece Take(Deadline deadline) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    while (piece_.tokens.empty() && !piece_.finish) {
      if (!Clock::Real().WaitUntil(changed_, mu_, deadline.point())) break;
    }
    return std::exchange(piece_, {});
  }

 private:
  Mutex mu_;
  CondVar changed_;
  Piece piece_ GUARDED_BY(mu_);
};

v1::Finish FinishOf(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
      return v1::FINISH_LENGTH;
    case FinishReason::kStop:
      return v1::FINISH_STOP;
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

GenerateRequest RequestOf(const v1::GenerateRequest& in) {
  GenerateRequest request;
  request.prompt.assign(in.prompt().begin(), in.prompt().end());
  request.max_new_tokens = in.max_new_tokens();
  request.temperature = in.temperature();
  request.seed = in.seed();
  request.stop.assign(in.stop().begin(), in.stop().end());
  return request;
}

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
    if (!place.granted()) {
      return ToGrpc(Status::ResourceExhausted("too_many_streams", fmt::format("max_streams={}", options_.max_streams)));
    }
    const auto queue = std::make_shared<TokenQueue>();
    const auto id = engine_.Submit(RequestOf(*request), queue);
    if (!id.ok()) return ToGrpc(id.status());
    return WriteAll(*context, *id, *queue, *writer);
  }

 private:
  // Until the request has finished: also after its client went away, which cancels it first.
  grpc::Status WriteAll(const grpc::ServerContext& context, std::uint64_t id, TokenQueue& queue,
                        grpc::ServerWriter<v1::GenerateResponse>& writer) {
    std::int32_t position = 0;
    while (true) {
      const TokenQueue::Piece piece = queue.Take(Deadline::After(Clock::Real(), kCancelPoll));
      v1::GenerateResponse response;
      for (const GeneratedToken& token : piece.tokens) AddToken(token, position++, response);
      if (piece.finish == FinishReason::kFailed) return ToGrpc(piece.why);
      if (piece.finish) response.set_finish(FinishOf(*piece.finish));
      const bool something = response.tokens_size() > 0 || piece.finish;
      if (context.IsCancelled() || (something && !writer.Write(response))) engine_.Cancel(id);
      if (piece.finish) return grpc::Status::OK;
    }
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
