// The thread of one route: how it behaves beside threads that decode.
#include "engine_side/route_reader.h"

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bridge/transport/loopback/dialer.h"
#include "bridge/transport/loopback/listener.h"

namespace bascule {
namespace {

using testing::ElementsAre;

constexpr std::uint64_t kConnection = 7;
constexpr Route kRoute{.sender_rank = 0, .engine_rank = 0};

Deadline Soon() { return Deadline::After(Clock::Real(), std::chrono::seconds(30)); }

// Notes the priority of the thread that brings each frame.
class PrioritySink final : public BucketSink {
 public:
  BucketAck OnBucket(int, const ReceivedFrame&) override {
    seen.push_back(getpriority(PRIO_PROCESS, static_cast<id_t>(gettid())));
    return {};
  }
  bool IsLive() const override { return live; }
  void OnRouteLost(int, const Status&) override {}

  std::atomic<bool> live = false;
  std::vector<int> seen;  // written before the acknowledgement that the test waits for
};

TEST(RouteReaderTest, StagingGivesWayOnceSomethingIsLiveAndNotBefore) {
  const int normal = getpriority(PRIO_PROCESS, static_cast<id_t>(gettid()));
  LoopbackNetwork network;
  auto listener = LoopbackListener::Create(network, "engine");
  ASSERT_TRUE(listener.ok());
  (*listener)->Expect(kConnection);
  PrioritySink sink;
  LoopbackDialer dialer(network);
  auto sender = dialer.Dial((*listener)->endpoint(),
                            {.connection = kConnection, .route = kRoute, .frame_bytes = 4096, .credits = 1}, Soon());
  ASSERT_TRUE(sender.ok());
  auto reader = RouteReader::Start(**listener, kConnection, 0, kRoute, sink, Clock::Real(), {.nice = normal + 3});
  ASSERT_TRUE(reader.ok());

  for (const bool live : {false, true, true}) {
    sink.live = live;
    (*sender)->Acquire();
    ASSERT_TRUE((*sender)->Send(64).ok());
    ASSERT_TRUE((*sender)->NextAck(Soon()).ok());
  }

  EXPECT_THAT(sink.seen, ElementsAre(normal, normal + 3, normal + 3));
  sender->reset();
}

}  // namespace
}  // namespace bascule
