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
  // How many of some orders of streams show that the events [first, last) are not waited for.
  int CountFound(FlipMode flip, int first, int last) {
    int found = 0;
    Device& patient = FakeDevice();
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      FakeCuda::SetSeed(seed);
      HastyDevice device(patient, first, last);
      Start(flip, TransportKind::kLoopback, device);
      bool is_wrong = false;
      for (std::uint32_t version = 1; version <= 2 && !is_wrong; ++version) {
        const Status status = Publish(version).status;
        EXPECT_TRUE(device.DrainAll().ok());
        is_wrong = !status.ok() || Live() != Expected();
      }
      found += is_wrong ? 1 : 0;
      Stop();
    }
    return found;
  }
};

TEST_F(MissingWaitTest, AVersionThatIsReadyBeforeItsBytesArePlacedAndDigestedIsFound) {
  EXPECT_GT(CountFound(FlipMode::kShadow, 0, kEventsOfLanes), 0);
}

TEST_F(MissingWaitTest, AFlipInPlaceThatIsProvenBeforeItsCopiesAreDoneIsFound) {
  EXPECT_GT(CountFound(FlipMode::kInPlace, kEventsOfLanes, kEventsOfLanes + 1), 0);
}

}  // namespace
}  // namespace bascule
