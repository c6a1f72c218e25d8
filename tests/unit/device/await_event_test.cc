#include <gtest/gtest.h>

#include "device/stream.h"
#include "tests/support/waited_clock.h"

namespace bascule {
namespace {

class EventAfterQueries final : public DeviceEvent {
 public:
  explicit EventAfterQueries(int queries) : left_(queries) {}
  Result<bool> Passed() override {
    if (left_ < 0) return Status::Internal("device_lost", "illegal address");
    return left_ == 0 || --left_ == 0;
  }

 private:
  int left_;
};

TEST(AwaitEventTest, ComesBackOnceTheWorkIsDone) {
  WaitedClock clock;
  EventAfterQueries event(100);

  EXPECT_TRUE(AwaitEvent(event, Deadline::After(clock, std::chrono::seconds(1)), clock).ok());
}

TEST(AwaitEventTest, WorkThatNeverEndsIsGivenUpAtTheDeadlineAndNotBefore) {
  WaitedClock clock;
  EventAfterQueries event(1 << 30);
  const Deadline deadline = Deadline::After(clock, std::chrono::milliseconds(30));

  const Status status = AwaitEvent(event, deadline, clock);

  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.reason(), "device_deadline");
  EXPECT_EQ(clock.Now(), deadline.point());
}

TEST(AwaitEventTest, AnErrorOfTheDeviceEndsTheWait) {
  WaitedClock clock;
  EventAfterQueries event(-1);

  EXPECT_EQ(AwaitEvent(event, Deadline::After(clock, std::chrono::seconds(1)), clock).reason(), "device_lost");
}

}  // namespace
}  // namespace bascule
