// Many routes and casts at once, and sums of a decoder beside them, each of communicators of their own on devices that
// have no room for more of NCCL's kernels than the budget lets through.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/worker.h"
#include "tests/support/fake_cuda/control.h"
#include "tests/support/fake_nccl/control.h"
#include "tests/unit/transport_nccl/nccl_world.h"

namespace bascule {
namespace {

constexpr int kSenders = 4;    // on the devices from 0 on
constexpr int kReceivers = 4;  // on the devices behind those
constexpr int kRounds = 4;     // the first of them by itself, so that all communicators are there
constexpr int kSums = 10;
constexpr std::int64_t kCount = 100;
constexpr int kCasts = 2;  // of each sender, to all receivers
constexpr int kFramesOfRound = kCasts + 1;

Device& SenderDevice(int sender) { return FakeDevice(sender); }
Device& ReceiverDevice(int receiver) { return FakeDevice(kSenders + receiver); }
Deadline Patience() { return Deadline::After(Clock::Real(), std::chrono::seconds(20)); }

// A trainer rank: a route to every engine rank, and casts to all of them.
class TrainerRank {
 public:
  TrainerRank(int number, Communicators& communicators, LoopbackNetwork& network)
      : number_(number), carrying_(network), dialer_(SenderDevice(number), communicators, carrying_) {}

  Status Dial(NcclListener& listener, std::vector<std::unique_ptr<BucketReceiver>>& receivers) {
    RouteHello hello = kHello;
    hello.connection = static_cast<std::uint64_t>(number_) + 1;
    listener.Expect(hello.connection);
    for (int r = 0; r < kReceivers; ++r) {
      hello.route = {number_, r};
      ASSIGN_OR_RETURN(routes_.emplace_back(), dialer_.Dial(listener.endpoint(), hello, Patience()));
      ASSIGN_OR_RETURN(receivers.emplace_back(), listener.Accept(hello.connection, hello.route, Patience()));
    }
    listener.Forget(hello.connection);
    std::vector<BucketSender*> all;
    for (const auto& route : routes_) all.push_back(route.get());
    for (int i = 0; i < kCasts; ++i) {
      ASSIGN_OR_RETURN(casts_.emplace_back(), dialer_.Cast(all));
    }
    sent_.assign(kReceivers, 0);
    return OkStatus();
  }

  // `full` is told when this rank has sent what its credits let it send, before anybody takes it.
  Status SendAll(std::atomic<int>& full) {
    RETURN_IF_ERROR(SendRound());
    RETURN_IF_ERROR(TakeAcks());
    full_ = &full;
    for (int round = 1; round < kRounds; ++round) RETURN_IF_ERROR(SendRound());
    return TakeAcks();
  }

 private:
  // Every rank has an order of its own.
  Status SendRound() {
    for (int i = 0; i < kReceivers; ++i) RETURN_IF_ERROR(SendAlone((number_ + i) % kReceivers));
    for (int i = 0; i < kCasts; ++i) {
      RETURN_IF_ERROR(SendToAll(*casts_[static_cast<std::size_t>((number_ + i) % kCasts)]));
    }
    return OkStatus();
  }
  Status TakeAcks() {
    for (int r = 0; r < kReceivers; ++r) {
      while (sent_[static_cast<std::size_t>(r)] > 0) RETURN_IF_ERROR(TakeAck(r));
    }
    return OkStatus();
  }
  Status SendAlone(int receiver) {
    BucketSender& route = *routes_[static_cast<std::size_t>(receiver)];
    while (!route.HasCredit()) RETURN_IF_ERROR(TakeAck(receiver));
    route.Acquire()[0] = ByteOf(number_);
    RETURN_IF_ERROR(stream_->Fill(route.AcquireDevicePayload(), ByteOf(number_)));
    ++sent_[static_cast<std::size_t>(receiver)];
    return route.SendFilledOn(1, kHello.frame_bytes, *stream_);
  }
  Status SendToAll(BucketCast& cast) {
    for (int r = 0; r < kReceivers; ++r) {
      while (!routes_[static_cast<std::size_t>(r)]->HasCredit()) RETURN_IF_ERROR(TakeAck(r));
    }
    RETURN_IF_ERROR(stream_->Fill(cast.AcquireDevicePayload(), ByteOf(number_)));
    ASSIGN_OR_RETURN(const std::uint32_t frame, cast.PutBy(*stream_));
    cast.TakeUp(frame);
    for (int r = 0; r < kReceivers; ++r) {
      cast.Head(static_cast<std::size_t>(r))[0] = ByteOf(number_);
      ++sent_[static_cast<std::size_t>(r)];
    }
    return cast.SendFilledOn(1, kHello.frame_bytes, *stream_);
  }
  Status TakeAck(int receiver) {
    if (full_ != nullptr) ++*std::exchange(full_, nullptr);
    RETURN_IF_ERROR(routes_[static_cast<std::size_t>(receiver)]->NextAck(Patience()).status());
    --sent_[static_cast<std::size_t>(receiver)];
    return OkStatus();
  }

  const int number_;
  LoopbackDialer carrying_;
  NcclDialer dialer_;
  const std::unique_ptr<DeviceStream> stream_ = SenderDevice(number_).MakeStream(StreamPriority::kNormal).value();
  std::vector<std::unique_ptr<BucketSender>> routes_;
  std::vector<std::unique_ptr<BucketCast>> casts_;
  std::vector<int> sent_;             // frames that are not acknowledged, per route
  std::atomic<int>* full_ = nullptr;  // until it has been told
};

// Takes one frame of `sender`'s and gives it back. False: there is none yet.
Result<bool> TakeOne(BucketReceiver& route, int receiver, int sender) {
  const Result<ReceivedFrame> frame = route.Receive(Deadline::After(Clock::Real(), std::chrono::microseconds(100)));
  if (frame.status().code() == StatusCode::kDeadlineExceeded) return false;
  RETURN_IF_ERROR(frame.status());
  ASSIGN_OR_RETURN(const std::vector<std::byte> payload, ReadDevice(ReceiverDevice(receiver), frame->device_payload));
  const std::vector<std::byte> wanted(kHello.frame_bytes, ByteOf(sender));
  if (frame->bytes[0] != ByteOf(sender) || payload != wanted) return Status::DataLoss("other_bytes", "");
  RETURN_IF_ERROR(route.Acknowledge(*frame, BucketAck{}));
  return true;
}

// An engine rank, which asks its routes in turn, those first that send to it last. `routes` are by sender.
Status TakeRounds(int rounds, const std::vector<BucketReceiver*>& routes, int receiver) {
  std::vector<int> left(kSenders, rounds * kFramesOfRound);
  for (const Deadline deadline = Patience(); !deadline.Passed(Clock::Real());) {
    for (int i = 0; i < kSenders; ++i) {
      const int sender = (receiver + 1 + i) % kSenders;
      if (left[static_cast<std::size_t>(sender)] == 0) continue;
      ASSIGN_OR_RETURN(const bool took, TakeOne(*routes[static_cast<std::size_t>(sender)], receiver, sender));
      if (took) --left[static_cast<std::size_t>(sender)];
    }
    if (std::ranges::all_of(left, [](int frames) { return frames == 0; })) return OkStatus();
  }
  return Status::DeadlineExceeded("deadline", fmt::format("receiver {}", receiver));
}

// All but the first round once every trainer rank is full: what is launched then fills the devices.
Status TakeAll(const std::atomic<int>& full, const std::vector<BucketReceiver*>& routes, int receiver) {
  RETURN_IF_ERROR(TakeRounds(1, routes, receiver));
  for (const Deadline deadline = Patience(); full < kSenders;) {
    if (deadline.Passed(Clock::Real())) return Status::DeadlineExceeded("deadline", "a trainer rank is not full");
    Clock::Real().SleepUntil(Clock::Real().Now() + std::chrono::microseconds(100), {});
  }
  return TakeRounds(kRounds - 1, routes, receiver);
}

// The engine ranks' decoder: sums over their devices, one after the other.
class DecodeThread {
 public:
  explicit DecodeThread(Communicators& communicators) {
    for (int r = 0; r < kReceivers; ++r) {
      Device& device = ReceiverDevice(r);
      devices_.push_back(&device);
      memory_.push_back(device.memory().Allocate(kCount * sizeof(float)).value());
      streams_.push_back(device.MakeStream(StreamPriority::kHigh).value());
      parts_.push_back({reinterpret_cast<float*>(memory_.back()->bytes().data()), streams_.back().get()});
    }
    sums_ = communicators.MakeCollective(devices_, Patience(), Clock::Real()).value();
  }
  Status SumAgainAndAgain() {
    for (int i = 0; i < kSums; ++i) RETURN_IF_ERROR(SumOnce());
    return OkStatus();
  }

 private:
  Status SumOnce() {
    const std::vector<float> ones(kCount, 1);
    for (int r = 0; r < kReceivers; ++r) {
      const auto bytes = memory_[static_cast<std::size_t>(r)]->bytes();
      RETURN_IF_ERROR(WriteDevice(ReceiverDevice(r), bytes, std::as_bytes(std::span(ones))));
    }
    RETURN_IF_ERROR(sums_->AllReduceSum(parts_, kCount));
    const std::vector<float> summed(kCount, kReceivers);
    for (int r = 0; r < kReceivers; ++r) {
      const auto rank = static_cast<std::size_t>(r);
      RETURN_IF_ERROR(Drain(ReceiverDevice(r), *streams_[rank]));
      ASSIGN_OR_RETURN(const std::vector<std::byte> got, ReadDevice(ReceiverDevice(r), memory_[rank]->bytes()));
      if (std::memcmp(got.data(), summed.data(), got.size()) != 0) return Status::DataLoss("other_sum", "");
    }
    return OkStatus();
  }

  std::vector<Device*> devices_;
  std::vector<std::unique_ptr<DeviceBuffer>> memory_;
  std::vector<std::unique_ptr<DeviceStream>> streams_;
  std::vector<CollectivePart> parts_;
  std::unique_ptr<DeviceCollective> sums_;
};

class NcclCoResidenceTest : public testing::Test {
 protected:
  NcclCoResidenceTest() {
    std::vector<Device*> devices;
    for (int r = 0; r < kReceivers; ++r) devices.push_back(&ReceiverDevice(r));
    listener_ = std::make_unique<NcclListener>(devices, communicators_, *carrier_);
    for (int s = 0; s < kSenders; ++s) {
      trainer_.push_back(std::make_unique<TrainerRank>(s, communicators_, network_));
      routes_.emplace_back();
    }
  }
  // Everybody at once, each on a thread; what each of them says.
  std::vector<Status> Run() {
    DecodeThread decode(communicators_);
    std::vector<Status> said(kSenders + kReceivers + 1);
    std::atomic<int> full = 0;
    std::vector<Worker> threads;
    for (int s = 0; s < kSenders; ++s) {
      threads.emplace_back("trainer", [&, s](const std::stop_token&) {
        said[static_cast<std::size_t>(s)] = trainer_[static_cast<std::size_t>(s)]->SendAll(full);
      });
    }
    for (int r = 0; r < kReceivers; ++r) {
      threads.emplace_back("engine", [&, r](const std::stop_token&) {
        std::vector<BucketReceiver*> routes;
        for (const auto& of_sender : routes_) routes.push_back(of_sender[static_cast<std::size_t>(r)].get());
        said[static_cast<std::size_t>(kSenders + r)] = TakeAll(full, routes, r);
      });
    }
    threads.emplace_back("decode", [&](const std::stop_token&) { said.back() = decode.SumAgainAndAgain(); });
    threads.clear();
    return said;
  }

  Communicators& communicators_ = (FakeDevice(), **LoadCommunicators());
  LoopbackNetwork network_;
  std::unique_ptr<LoopbackListener> carrier_ = LoopbackListener::Create(network_, "engine").value();
  std::unique_ptr<NcclListener> listener_;
  std::vector<std::unique_ptr<TrainerRank>> trainer_;
  std::vector<std::vector<std::unique_ptr<BucketReceiver>>> routes_;  // by sender, then by receiver
};

TEST_F(NcclCoResidenceTest, RoutesAndCastsInAllOrdersAndADecodersSumsBesideThemAllGetThrough) {
  for (int s = 0; s < kSenders; ++s) {
    const auto sender = static_cast<std::size_t>(s);
    ASSERT_TRUE(trainer_[sender]->Dial(*listener_, routes_[sender]).ok());
  }

  const std::vector<Status> said = Run();

  for (const Status& status : said) EXPECT_TRUE(status.ok()) << status.ToString();
  const int of_trainer = kSenders * (kReceivers + kCasts);
  const int of_engine = kReceivers * kSenders * (1 + kCasts);
  EXPECT_EQ(FakeNccl::Census().communicators, of_trainer + of_engine);
  trainer_.clear();
  routes_.clear();
  EXPECT_EQ(FakeNccl::Census().communicators, 0);
  EXPECT_EQ(FakeNccl::Census().ctas, 0);
}

}  // namespace
}  // namespace bascule
