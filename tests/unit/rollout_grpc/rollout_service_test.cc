// The Rollout service and its client over a real connection. The engine behind them is scripted: each test says which
// tokens come, when, and how a request ends.
#include "engine_side/decode/grpc/rollout_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
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
  GenerateRequest request(std::size_t index) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return requests_[index].request;
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
  EXPECT_THAT(too_large.status().message(), HasSubstr("rollouts=3"));
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

TEST_F(RolloutServiceTest, EverythingThatARequestCanAskForReachesTheEngine) {
  const GenerateRequest asked{.prompt = {1, 2},
                              .max_new_tokens = 3,
                              .temperature = 0.5F,
                              .seed = 7,
                              .stop = {9},
                              .top_k = 4,
                              .top_p = 0.25F,
                              .min_new_tokens = 2,
                              .top_logprobs = 5,
                              .prompt_logprobs = true,
                              .sample = 6,
                              .kv_policy = KvPolicy::kKeep,
                              .max_staleness = 0,
                              .min_start_version = 8,
                              .time_limit = seconds(10),
                              .client = "loop"};
  const std::jthread decode([&] { engine_.Sink(0).OnFinish(FinishReason::kLength, OkStatus()); });

  ASSERT_TRUE(client_->Generate(asked, Patience()).ok());

  EXPECT_EQ(engine_.request(0), asked);
}

// C-007: nothing that would end or cut short a request at a flip is asked for by asking for tokens.
TEST_F(RolloutServiceTest, ARequestThatNamesNoPolicyIsLeftToTheEngines) {
  const std::jthread decode([&] { engine_.Sink(0).OnFinish(FinishReason::kLength, OkStatus()); });

  ASSERT_TRUE(client_->Generate({.prompt = {1}}, Patience()).ok());

  EXPECT_EQ(engine_.request(0).kv_policy, std::nullopt);
  EXPECT_EQ(engine_.request(0).max_staleness, std::nullopt);
}

TEST_F(RolloutServiceTest, AClientThatDoesNotNameItselfIsItsConnection) {
  const std::jthread decode([&] {
    for (const std::size_t i : {0, 1, 2}) engine_.Sink(i).OnFinish(FinishReason::kLength, OkStatus());
  });
  auto other = *RolloutClient::Connect(server_->address(), Patience());

  ASSERT_TRUE(client_->Generate({.prompt = {1}}, Patience()).ok());
  ASSERT_TRUE(client_->Generate({.prompt = {1}}, Patience()).ok());
  ASSERT_TRUE(other->Generate({.prompt = {1}}, Patience()).ok());

  EXPECT_FALSE(engine_.request(0).client.empty());
  EXPECT_EQ(engine_.request(1).client, engine_.request(0).client);
  EXPECT_NE(engine_.request(2).client, engine_.request(0).client);
}

TEST_F(RolloutServiceTest, WhatWasAskedForBesideTheTokensComesWithThem) {
  const std::jthread decode([&] {
    GenerateSink& sink = engine_.Sink(0);
    sink.OnPrompt({.shared_tokens = 3, .logprobs = {-1.0F, -2.0F}, .version = 5, .kv_epoch = 4});
    sink.OnToken({.id = 1, .logprob = -0.5F, .version = 5, .kv_epoch = 4, .top = {{1, -0.5F}, {8, -0.75F}}});
    sink.OnToken({.id = 2,
                  .logprob = -0.25F,
                  .version = 6,
                  .kv_epoch = 4,
                  .top = {{2, -0.25F}},
                  .flip_gap = std::chrono::microseconds(1234)});
    sink.OnFinish(FinishReason::kLength, OkStatus());
  });

  const auto rollout = client_->Generate({.prompt = {1, 2, 3}}, Patience());

  ASSERT_TRUE(rollout.ok()) << rollout.status().ToString();
  ASSERT_TRUE(rollout->prompt.has_value());
  EXPECT_EQ(rollout->prompt->shared_tokens, 3);
  EXPECT_THAT(rollout->prompt->logprobs, ElementsAre(-1.0F, -2.0F));
  EXPECT_EQ(rollout->prompt->version, 5U);
  EXPECT_EQ(rollout->prompt->kv_epoch, 4U);
  EXPECT_THAT(rollout->top, ElementsAre(ElementsAre(TokenLogprob{1, -0.5F}, TokenLogprob{8, -0.75F}),
                                        ElementsAre(TokenLogprob{2, -0.25F})));
  EXPECT_THAT(rollout->flip_gaps, ElementsAre(FlipGap{1, std::chrono::microseconds(1234)}));
}

TEST_F(RolloutServiceTest, SamplesOfOnePromptAreRequestsThatDifferByTheirNumber) {
  const std::jthread decode([&] {
    for (const std::int32_t sample : {0, 1, 2}) {
      GenerateSink& sink = engine_.Sink(static_cast<std::size_t>(sample));
      sink.OnToken({.id = 10 + sample, .logprob = -1.0F, .version = 1, .kv_epoch = 1});
      sink.OnFinish(FinishReason::kLength, OkStatus());
    }
  });

  const auto rollouts = client_->GenerateSamples({.prompt = {1, 2}, .seed = 3, .sample = 40}, 3, Patience());

  ASSERT_TRUE(rollouts.ok()) << rollouts.status().ToString();
  ASSERT_EQ(rollouts->size(), 3U);
  for (const std::uint32_t sample : {0U, 1U, 2U}) {
    EXPECT_THAT((*rollouts)[sample].tokens, ElementsAre(10 + static_cast<std::int32_t>(sample)));
    EXPECT_EQ(engine_.request(sample).sample, 40 + sample);
    EXPECT_EQ(engine_.request(sample).seed, 3U);
    EXPECT_THAT(engine_.request(sample).prompt, ElementsAre(1, 2));
  }
}

TEST_F(RolloutServiceTest, MoreSamplesThanABatchMayHaveAreRefused) {
  Serve({.max_batch = 2});

  EXPECT_EQ(client_->GenerateSamples({.prompt = {1}}, 3, Patience()).status().reason(), "bad_request");
  EXPECT_EQ(client_->GenerateSamples({.prompt = {1}}, 0, Patience()).status().reason(), "bad_request");
  EXPECT_EQ(client_->GenerateSamples({.prompt = {1}}, 1U << 31, Patience()).status().reason(), "bad_request");
}

TEST_F(RolloutServiceTest, ACancelledRolloutSaysWhyAndKeepsWhatItHas) {
  const std::jthread decode([&] {
    GenerateSink& sink = engine_.Sink(0);
    sink.OnToken({.id = 5, .logprob = -0.5F, .version = 1, .kv_epoch = 1});
    sink.OnFinish(FinishReason::kCancelled, Status::DeadlineExceeded("deadline", "its time is over"));
  });

  const auto rollout = client_->Generate({.prompt = {1}}, Patience());

  ASSERT_TRUE(rollout.ok()) << rollout.status().ToString();
  EXPECT_EQ(rollout->finish, FinishReason::kCancelled);
  EXPECT_EQ(rollout->reason, "deadline");
  EXPECT_THAT(rollout->tokens, ElementsAre(5));
}

// The engine asks after every token, as the scheduler does.
TEST_F(RolloutServiceTest, AClientThatDoesNotReadFillsItsOwnQueueOnlyAndOthersGoOn) {
  std::atomic<bool> full{false};
  const auto slow = std::jthread([&] {
    const auto rollout = client_->Generate({.prompt = {1}}, Patience(), {}, [&](const Rollout&) { full.wait(false); });
    ASSERT_TRUE(rollout.ok()) << rollout.status().ToString();
    EXPECT_EQ(rollout->finish, FinishReason::kCancelled);
    EXPECT_EQ(rollout->reason, "slow_reader");
  });
  GenerateSink& unread = engine_.Sink(0);
  std::int64_t taken = 0;
  for (; !unread.Full(); ++taken) unread.OnToken({.id = 1, .logprob = -1.0F, .version = 1, .kv_epoch = 1});
  auto other = *RolloutClient::Connect(server_->address(), Patience());
  const std::jthread decode([&] {
    engine_.Sink(1).OnToken({.id = 5, .logprob = -0.5F, .version = 1, .kv_epoch = 1});
    engine_.Sink(1).OnFinish(FinishReason::kLength, OkStatus());
  });

  const auto rollout = other->Generate({.prompt = {2}}, Patience());
  unread.OnFinish(FinishReason::kCancelled, Status::ResourceExhausted("slow_reader"));
  full.store(true);
  full.notify_all();

  ASSERT_TRUE(rollout.ok()) << rollout.status().ToString();
  EXPECT_THAT(rollout->tokens, ElementsAre(5));
  EXPECT_LT(taken, std::int64_t{4} << 20);  // what lies in the queue and in the connection
}

// Nobody reads and nobody goes: the stream's place comes back all the same.
TEST_F(RolloutServiceTest, AClientThatTakesNothingLosesItsStream) {
  Serve({.max_streams = 1, .write_patience = std::chrono::milliseconds(500)});
  std::atomic<bool> reads{false};
  const auto idle = std::jthread([&] {
    const auto rollout = client_->Generate({.prompt = {1}}, Patience(), {}, [&](const Rollout&) { reads.wait(false); });
    EXPECT_EQ(rollout.status().code(), StatusCode::kCancelled) << rollout.status().ToString();
  });
  GenerateSink& unread = engine_.Sink(0);
  while (!unread.Full()) unread.OnToken({.id = 1, .logprob = -1.0F, .version = 1, .kv_epoch = 1});

  engine_.AwaitCancelled(0);

  auto other = *RolloutClient::Connect(server_->address(), Patience());
  const std::jthread decode([&] { engine_.Sink(1).OnFinish(FinishReason::kLength, OkStatus()); });
  Result<Rollout> rollout = Status::Internal("not_asked", "");
  do {
    rollout = other->Generate({.prompt = {2}}, Patience());  // the place is free a moment after the request's end
  } while (rollout.status().reason() == "too_many_streams");
  EXPECT_TRUE(rollout.ok()) << rollout.status().ToString();
  reads.store(true);
  reads.notify_all();
}

TEST_F(RolloutServiceTest, AStreamBeyondTheLimitIsRefused) {
  Serve({.max_streams = 0});

  const auto rollout = client_->Generate({.prompt = {1}}, Patience());

  EXPECT_EQ(rollout.status().reason(), "too_many_streams");
}

}  // namespace
}  // namespace bascule
