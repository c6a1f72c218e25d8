// The mistake of a wait that is missing, at every place where the receive path waits for the device: the fake runtime's
// order of streams shows it, as a proof that is refused or as wrong bytes. Without the mistake nothing of this is seen:
// device_sync_test.cc.
#include "tests/unit/device_slots/device_engine.h"
#include "tests/unit/device_slots/hasty_device.h"

namespace bascule {
namespace {

// Of the order in which the engine makes its events: three for each of two lanes (one for ends of calls that failed,
// one for each batch), then that of the copies of a flip in place.
constexpr int kEventsOfLanes = 6;

class MissingWaitTest : public DeviceEngineTest {
 protected:
  // Whether one of some orders of streams shows that the events [first, last) are not waited for.
  bool IsFound(FlipMode flip, int first, int last) {
    bool found = false;
    Device& patient = FakeDevice();
    for (std::uint64_t seed = 1; seed <= 32 && !found; ++seed) {
      FakeCuda::SetSeed(seed);
      HastyDevice device(patient, first, last);
      Start(flip, TransportKind::kLoopback, device);
      for (std::uint32_t version = 1; version <= 2 && !found; ++version) {
        const Status status = Publish(version).status;
        EXPECT_TRUE(device.DrainAll().ok());
        found = !status.ok() || Live() != Expected();
      }
      Stop();
    }
    return found;
  }
};

TEST_F(MissingWaitTest, AVersionThatIsReadyBeforeItsBytesArePlacedAndDigestedIsFound) {
  EXPECT_TRUE(IsFound(FlipMode::kShadow, 0, kEventsOfLanes));
}

TEST_F(MissingWaitTest, AFlipInPlaceThatIsProvenBeforeItsCopiesAreDoneIsFound) {
  EXPECT_TRUE(IsFound(FlipMode::kInPlace, kEventsOfLanes, kEventsOfLanes + 1));
}

}  // namespace
}  // namespace bascule
