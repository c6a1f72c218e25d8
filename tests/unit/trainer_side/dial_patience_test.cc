// How long dials may wait. Nothing interrupts one, so a publish that is cancelled or gives way waits for it.
#include <algorithm>

#include "tests/unit/trainer_side/group_fixture.h"

namespace bascule {
namespace {

// What is left of the deadlines of dials.
class Patience {
 public:
  void Note(Deadline deadline) {
    MutexLock lock(mu_);
    longest_ = std::max(longest_, deadline.Left(Clock::Real()));
    ++dials_;
  }
  Duration longest() const {
    MutexLock lock(mu_);
    return longest_;
  }
  int dials() const {
    MutexLock lock(mu_);
    return dials_;
  }

 private:
  mutable Mutex mu_;
  Duration longest_ GUARDED_BY(mu_){};
  int dials_ GUARDED_BY(mu_) = 0;
};

class NotingControlDialer final : public ControlDialer {
 public:
  NotingControlDialer(ControlDialer& inner, Patience& patience) : inner_(inner), patience_(patience) {}
  Result<std::unique_ptr<ControlChannel>> Dial(const std::string& address, Deadline deadline) override {
    patience_.Note(deadline);
    return inner_.Dial(address, deadline);
  }

 private:
  ControlDialer& inner_;
  Patience& patience_;
};

class NotingDialer final : public TransportDialer {
 public:
  NotingDialer(TransportDialer& inner, Patience& patience) : inner_(inner), patience_(patience) {}
  TransportKind kind() const override { return inner_.kind(); }
  bool CanReach(const TransportEndpoint& endpoint) const override { return inner_.CanReach(endpoint); }
  Result<std::unique_ptr<BucketSender>> Dial(const TransportEndpoint& endpoint, const RouteHello& hello,
                                             Deadline deadline) override {
    patience_.Note(deadline);
    return inner_.Dial(endpoint, hello, deadline);
  }

 private:
  TransportDialer& inner_;
  Patience& patience_;
};

using DialPatienceTest = GroupFixture;

TEST_F(DialPatienceTest, NoRankOfAGroupDialsReplicaLeaderOrRouteForLongerThanTheConnectTimeout) {
  Patience controls, routes;
  NotingControlDialer control(control_, controls);
  NotingDialer dialer(dialer_, routes);
  control_dialer_ = &control;
  route_dialer_ = &dialer;
  UseGroup(2);
  AddEngine();
  options_.connect_timeout = std::chrono::seconds(30);
  options_.deadline = std::chrono::seconds(90);
  MakeGroup();

  for (const PublishReport& report : PublishAll()) EXPECT_TRUE(report.AllCommitted());

  EXPECT_GE(controls.dials(), 2);  // rank 0 its replica, rank 1 its leader
  EXPECT_EQ(routes.dials(), 2);    // one of each rank
  EXPECT_LE(controls.longest(), options_.connect_timeout);
  EXPECT_LE(routes.longest(), options_.connect_timeout);
  ranks_.clear();  // they use the dialers
}

}  // namespace
}  // namespace bascule
