#include "tests/unit/engine_side/receiver_fixture.h"

#include <cstring>

namespace bascule {
namespace {

// Element `index` of a dense local tensor, as a float.
float ElementAt(std::span<const std::byte> bytes, DType dtype, std::int64_t index) {
  std::uint32_t bits = 0;
  if (dtype == DType::kBf16) {
    std::memcpy(reinterpret_cast<std::byte*>(&bits) + 2, bytes.data() + index * 2, 2);
  } else {
    std::memcpy(&bits, bytes.data() + index * 4, 4);
  }
  float value = 0;
  std::memcpy(&value, &bits, 4);
  return value;
}

}  // namespace

Result<SafePoint> ScriptedHooks::RunAtSafePoint(std::uint64_t at_step, const std::function<void()>& critical,
                                                Deadline deadline) {
  MutexLock lock(mu_);
  waiting_ = true;
  changed_.NotifyAll();
  while (held_) {
    if (!clock_.WaitUntil(changed_, mu_, deadline.point()) && held_) {
      waiting_ = false;
      return Status::DeadlineExceeded("deadline", "no safe point came");
    }
  }
  waiting_ = false;
  step_ = std::max(step_ + 1, at_step);
  const SafePoint point{step_, std::chrono::microseconds(7)};
  mu_.Unlock();
  at_safe_point();
  critical();
  mu_.Lock();
  ++safe_points_;
  return point;
}

KvReport ScriptedHooks::InvalidateKv(const WeightVersion& version) {
  MutexLock lock(mu_);
  invalidated_.push_back(version);
  live_inside_.push_back(live());
  return KvReport{.recomputed = invalidated_.size(), .recompute_tokens = 10};
}

Status ScriptedHooks::Finalize(const StagedWeights& staged, Deadline /*deadline*/) {
  return finalize ? finalize(staged) : OkStatus();
}

void ScriptedHooks::Hold() {
  MutexLock lock(mu_);
  held_ = true;
}

void ScriptedHooks::Resume() {
  MutexLock lock(mu_);
  held_ = false;
  changed_.NotifyAll();
}

bool ScriptedHooks::waiting() const {
  MutexLock lock(mu_);
  return waiting_;
}

int ScriptedHooks::safe_points() const {
  MutexLock lock(mu_);
  return safe_points_;
}

std::vector<WeightVersion> ScriptedHooks::invalidated() const {
  MutexLock lock(mu_);
  return invalidated_;
}

std::vector<std::optional<WeightVersion>> ScriptedHooks::live_inside() const {
  MutexLock lock(mu_);
  return live_inside_;
}

void ReceiverTest::Start(WeightReceiverOptions options) {
  Stop();
  transport_ = *LoopbackListener::Create(network_, "engine", clock_);
  options.model = "TestModel layers=1";
  options.layout = EngineLayoutForTest();
  options.listeners = {transport_.get()};
  if (options.clock == &Clock::Real()) options.clock = &clock_;
  receiver_ = *WeightReceiver::Create(std::move(options), hooks_);
  hooks_.live = [this]() -> std::optional<WeightVersion> {
    const WeightLease lease = receiver_->AcquireLive();
    return lease.empty() ? std::nullopt : std::optional(lease.version());
  };
  server_ = *control_.Listen("engine", [this](ControlChannel& channel) { (void)receiver_->Serve(channel); });
}

void ReceiverTest::Stop() {
  server_.reset();
  receiver_.reset();
  transport_.reset();
}

std::unique_ptr<ScriptedPublisher> ReceiverTest::Connect(InstanceId id) {
  return std::make_unique<ScriptedPublisher>(*control_.Dial("engine", Soon()), dialer_, clock_, id);
}

std::unique_ptr<ScriptedPublisher> ReceiverTest::Greeted(InstanceId id) {
  auto publisher = Connect(id);
  publisher->Greet();
  return publisher;
}

std::unique_ptr<ScriptedPublisher> ReceiverTest::WithVersionOne() {
  auto publisher = Greeted();
  publisher->Publish(publisher->MakeOffer(1));
  return publisher;
}

void ReceiverTest::WaitFor(const std::function<bool(const ReceiverStatus&)>& condition) {
  std::uint64_t mark = 0;
  while (true) {
    const Result<std::uint64_t> changed = receiver_->WaitForChange(mark, Soon());
    ASSERT_TRUE(changed.ok()) << changed.status().ToString();
    if (condition(receiver_->status())) return;
    mark = *changed;
  }
}

void ReceiverTest::ExpectLiveBytes(std::uint64_t number, const std::array<std::uint64_t, 4>& of) {
  const WeightLease lease = receiver_->AcquireLive();
  ASSERT_FALSE(lease.empty());
  EXPECT_EQ(lease.version().number, number);
  int wrong = 0;
  for (int rank = 0; rank < 2; ++rank) {
    for (std::int64_t i = 0; i < 32 * 64; ++i) {
      wrong += ElementAt(lease.Tensor(rank, 0), DType::kF32, i) != ElementForTest(of[0], 0, rank * 32 * 64 + i);
    }
    for (std::int64_t i = 0; i < 5; ++i) {
      wrong += ElementAt(lease.Tensor(rank, 1), DType::kF32, i) != ElementForTest(of[1], 1, i);
    }
    for (std::int64_t i = 0; i < 36 * 16; ++i) {
      const std::int64_t logical = rank * 36 * 16 + i;
      const float want = logical < 66 * 16 ? ElementForTest(of[3], 3, logical) : 0.0F;
      wrong += ElementAt(lease.Tensor(rank, 2), DType::kF32, i) != want;
    }
  }
  for (std::int64_t i = 0; i < 8; ++i) {
    wrong += ElementAt(lease.Tensor(0, 3), DType::kBf16, i) != ElementForTest(of[2], 2, i);
  }
  EXPECT_EQ(wrong, 0) << "elements differ from version " << number;
}

}  // namespace bascule
