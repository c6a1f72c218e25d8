// The Rollout service and its client over a real connection. The engine behind them is scripted: each test says which
// tokens come, when, and how a request ends.
#include "engine_side/decode/grpc/rollout_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <vector>

#include "base/grpc/grpc_server.h"
#include "base/mutex.h"
#include "engine_side/decode/grpc/rollout_client.h"

namespace bascule {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;

Deadline Patience() { return Deadline::After(Clock::Real(), seconds(60)); }

// Keeps what was submitted; tests make the tokens.
class ScriptedDecodeEngine final : public DecodeEngine {
 public:
  struct Request {
    GenerateRequest request;
    std::shared_ptr<GenerateSink> sink;
    bool cancelled = false;
  };

  void Start(std::function<WeightLease()>) override {}
  void Stop() override {}
  DecodeStatus status() const override { return {}; }
  Result<SafePoint> RunAtSafePoint(std::uint64_t, const std::function<void()>&, Deadline) override {
    return SafePoint{};
  }
  KvReport InvalidateKv(const WeightVersion&) override { return {}; }

  Result<std::uint64_t> Submit(GenerateRequest request, std::shared_ptr<GenerateSink> sink) override EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (request.prompt.empty()) return Status::InvalidArgument("bad_request", "the prompt is empty");
    requests_.push_back({std::move(request), std::move(sink)});
    changed_.NotifyAll();
    return requests_.size() - 1;
  }
  void Cancel(std::uint64_t request) override EXCLUDES(mu_) {
    MutexLock lock(mu_);
    requests_[request].cancelled = true;
    changed_.NotifyAll();
  }

  // Request `index`, once it is there.
  GenerateSink& Sink(std::size_t index) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    Await([&]() REQUIRES(mu_) { return requests_.size() > index; });
    return *requests_[index].sink;
  }
  void AwaitCancelled(std::size_t index) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    Await([&]() REQUIRES(mu_) { return requests_.size() > index && requests_[index].cancelled; });
  }
  bool cancelled(std::size_t index) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return requests_[index].cancelled;
  }

 private:
  template <typename Done>
  void Await(Done done) REQUIRES(mu_) {
    const Deadline deadline = Patience();
    while (!done()) ASSERT_TRUE(Clock::Real().WaitUntil(changed_, mu_, deadline.point()));
  }

  Mutex mu_;
  CondVar changed_;
  std::vector<Request> requests_ GUARDED_BY(mu_);
};

class RolloutServiceTest : public testing::Test {
 protected:
  void SetUp() override { Serve({}); }
  void TearDown() override { server_->Stop(seconds(5)); }

  void Serve(RolloutServiceOptions options) {
    server_.reset();
    service_ = std::make_unique<RolloutService>(engine_, options);
    auto server = GrpcServer::Start("127.0.0.1:0", {&service_->service()});
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    server_ = std::move(*server);
    auto client = RolloutClient::Connect(server_->address(), Patience());
    ASSERT_TRUE(client.ok()) << client.status().ToString();
    client_ = std::move(*client);
  }

  ScriptedDecodeEngine engine_;
  std::unique_ptr<RolloutService> service_;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<RolloutClient> client_;
};

TEST_F(RolloutServiceTest, ABatchGivesEachRequestItsOwnTokensInTheOrderOfTheRequests) {
  const std::vector<GenerateRequest> requests = {{.prompt = {1}}, {.prompt = {2}}};
  const std::jthread decode([&] {
    GenerateSink& first = engine_.Sink(0);
    GenerateSink& second = engine_.Sink(1);
    second.OnToken({.id = 20, .logprob = -2.0F, .version = 7, .kv_epoch = 7});
    first.OnToken({.id = 10, .logprob = -1.0F, .version = 7, .kv_epoch = 7});
    second.OnFinish(FinishReason::kStop, OkStatus());
    first.OnToken({.id = 11, .logprob = -1.5F, .version = 8, .kv_epoch = 8});
    first.OnFinish(FinishReason::kLength, OkStatus());
  });

  std::multiset<std::size_t> seen;
  const auto rollouts =
      client_->GenerateBatch(requests, Patience(), {}, [&](std::size_t request, const Rollout& piece) {
        for (std::size_t i = 0; i < piece.tokens.size(); ++i) seen.insert(request);
      });

  ASSERT_TRUE(rollouts.ok()) << rollouts.status().ToString();
  ASSERT_EQ(rollouts->size(), 2U);
  EXPECT_THAT((*rollouts)[0].tokens, ElementsAre(10, 11));
  EXPECT_THAT((*rollouts)[0].logprobs, ElementsAre(-1.0F, -1.5F));
  EXPECT_THAT((*rollouts)[0].spans, ElementsAre(RolloutSpan{0, 1, 7, 7}, RolloutSpan{1, 2, 8, 8}));
  EXPECT_EQ((*rollouts)[0].finish, FinishReason::kLength);
  EXPECT_THAT((*rollouts)[1].tokens, ElementsAre(20));
  EXPECT_EQ((*rollouts)[1].finish, FinishReason::kStop);
  EXPECT_THAT(seen, ElementsAre(0U, 0U, 1U));
  EXPECT_FALSE(engine_.cancelled(0));
  EXPECT_FALSE(engine_.cancelled(1));
}

TEST_F(RolloutServiceTest, ARefusedRequestEndsItsBatchAndCancelsTheOthers) {
  const std::vector<GenerateRequest> requests = {{.prompt = {1}}, {.prompt = {}}};

  const auto rollouts = client_->GenerateBatch(requests, Patience());

  EXPECT_EQ(rollouts.status().reason(), "bad_request");
  EXPECT_THAT(rollouts.status().message(), HasSubstr("request 1"));
  EXPECT_TRUE(engine_.cancelled(0));
}

TEST_F(RolloutServiceTest, ARequestThatFailsEndsItsBatchAndCancelsTheOthers) {
  const std::vector<GenerateRequest> requests = {{.prompt = {1}}, {.prompt = {2}}};
  const std::jthread decode(
      [&] { engine_.Sink(1).OnFinish(FinishReason::kFailed, Status::DataLoss("logits_not_finite", "layer 3")); });

  const auto rollouts = client_->GenerateBatch(requests, Patience());

  EXPECT_EQ(rollouts.status().reason(), "logits_not_finite");
  EXPECT_THAT(rollouts.status().message(), HasSubstr("layer 3"));
  engine_.AwaitCancelled(0);
}

TEST_F(RolloutServiceTest, ABatchThatItsClientStopsIsCancelledInTheEngine) {
  const std::vector<GenerateRequest> requests = {{.prompt = {1}}, {.prompt = {2}}};
  std::stop_source stop;
  const std::jthread decode([&] {
    static_cast<void>(engine_.Sink(1));
    stop.request_stop();
  });

  const auto rollouts = client_->GenerateBatch(requests, Patience(), stop.get_token());

  EXPECT_EQ(rollouts.status().code(), StatusCode::kCancelled);
  engine_.AwaitCancelled(0);
  engine_.AwaitCancelled(1);
}

TEST_F(RolloutServiceTest, AnEmptyBatchAndOneThatIsTooLargeAreRefused) {
  Serve({.max_batch = 2});
  const std::vector<GenerateRequest> requests(3, GenerateRequest{.prompt = {1}});

  const auto empty = client_->GenerateBatch({}, Patience());
  const auto too_large = client_->GenerateBatch(requests, Patience());

  EXPECT_EQ(empty.status().reason(), "bad_request");
  EXPECT_EQ(too_large.status().reason(), "bad_request");
  EXPECT_THAT(too_large.status().message(), HasSubstr("requests=3"));
}

TEST_F(RolloutServiceTest, OneRequestStreamsItsPiecesAsTheyAreMade) {
  std::vector<std::int32_t> pieces;
  const std::jthread decode([&] {
    GenerateSink& sink = engine_.Sink(0);
    sink.OnToken({.id = 5, .logprob = -0.5F, .version = 1, .kv_epoch = 1});
    sink.OnFinish(FinishReason::kLength, OkStatus());
  });

  const auto rollout = client_->Generate({.prompt = {1}}, Patience(), {}, [&](const Rollout& piece) {
    pieces.insert(pieces.end(), piece.tokens.begin(), piece.tokens.end());
  });

  ASSERT_TRUE(rollout.ok()) << rollout.status().ToString();
  EXPECT_THAT(rollout->tokens, ElementsAre(5));
  EXPECT_THAT(pieces, ElementsAre(5));
}

TEST_F(RolloutServiceTest, AStreamBeyondTheLimitIsRefused) {
  Serve({.max_streams = 0});

  const auto rollout = client_->Generate({.prompt = {1}}, Patience());

  EXPECT_EQ(rollout.status().reason(), "too_many_streams");
}

}  // namespace
}  // namespace bascule
