// C-103: what a publish costs in messages and frames, counted: it follows buckets and engines, never tensors.
#include <atomic>

#include "bridge/session/control.h"
#include "tests/unit/trainer_side/publisher_fixture.h"

namespace bascule {
namespace {

class CountingChannel final : public ControlChannel {
 public:
  CountingChannel(std::unique_ptr<ControlChannel> inner, std::atomic<int>& messages)
      : inner_(std::move(inner)), messages_(messages) {}
  Status Send(const SessionMessage& message) override {
    ++messages_;
    return inner_->Send(message);
  }
  Result<SessionMessage> Receive(Deadline deadline) override {
    Result<SessionMessage> message = inner_->Receive(deadline);
    if (message.ok()) ++messages_;
    return message;
  }
  void StopReceiving() override { inner_->StopReceiving(); }
  void Cancel() override { inner_->Cancel(); }
  std::string peer() const override { return inner_->peer(); }

 private:
  const std::unique_ptr<ControlChannel> inner_;
  std::atomic<int>& messages_;
};

class CountingDialer final : public ControlDialer {
 public:
  explicit CountingDialer(ControlDialer& inner) : inner_(inner) {}
  Result<std::unique_ptr<ControlChannel>> Dial(const std::string& address, Deadline deadline) override {
    ASSIGN_OR_RETURN(auto channel, inner_.Dial(address, deadline));
    return std::unique_ptr<ControlChannel>(std::make_unique<CountingChannel>(std::move(channel), messages));
  }
  std::atomic<int> messages = 0;

 private:
  ControlDialer& inner_;
};

class PublishCountsTest : public PublisherFixture {};

TEST_F(PublishCountsTest, MessagesFollowEnginesAndFramesFollowBucketsAndNothingFollowsTensors) {
  constexpr int kTensors = 5000;
  constexpr int kEngines = 8;
  std::vector<TensorSpec> tensors;
  for (int t = 0; t < kTensors; ++t) tensors.push_back({fmt::format("layers.{}.weight", t), DType::kBf16, {32}});
  const std::vector<std::uint16_t> weights(static_cast<std::size_t>(kTensors) * 32, 0x3f80);
  TensorSource source(/*trainer_ranks=*/1);
  for (int t = 0; t < kTensors; ++t) {
    const TensorSpec& tensor = tensors[static_cast<std::size_t>(t)];
    ASSERT_TRUE(source
                    .Add(0, {.tensor = tensor,
                             .box = Box::Whole(tensor.shape),
                             .data = weights.data() + static_cast<std::ptrdiff_t>(t) * 32,
                             .stride = {}})
                    .ok());
  }
  for (int i = 0; i < kEngines; ++i) AddEngine(PlainLayout(tensors));
  CountingDialer counting(control_);
  options_.control = &counting;
  options_.transports = {&dialer_};
  options_.bucket_bytes = 64 << 10;
  const auto publisher = *WeightPublisher::Create(options_, std::move(source));

  for (int publish = 1; publish <= 2; ++publish) {
    const auto report = (*publisher->Publish({}))->WaitCommitted(Soon());
    ASSERT_TRUE(report.ok() && report->AllCommitted());
  }

  const std::int64_t buckets = (kTensors * 64 + options_.bucket_bytes - 1) / options_.bucket_bytes;
  for (const auto& engine : engines_) EXPECT_LE(engine->account().frames, 2 * buckets);
  // Hello and its answer once; Offer, Accept, Seal, Ready, Flip and Committed for each version.
  EXPECT_LE(counting.messages, kEngines * (2 + 2 * 6));
}

}  // namespace
}  // namespace bascule
