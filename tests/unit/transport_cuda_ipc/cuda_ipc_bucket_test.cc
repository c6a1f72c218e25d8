// What a bucket does on GPUs, with the module's own kernels over the fake runtime: packed, converted and digested from
// the trainer's tensor into a frame, and unpacked and digested from there into the engine's slot. No host touches the
// payload.
#include <gtest/gtest.h>

#include <cstring>

#include "bridge/transport/cuda_ipc/dialer.h"
#include "bridge/transport/cuda_ipc/listener.h"
#include "kernels/device_kernels.h"
#include "kernels/pack.h"
#include "tests/support/fake_cuda/control.h"
#include "tests/support/fake_cuda/fake_device.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/transport_cuda_ipc/device_frames.h"

namespace bascule {
namespace {

// Columns 40 to 139 of rows 16 to 47 of an fp32 matrix of 64 by 200; in the slot, rows are 128 elements apart.
constexpr std::int64_t kColumns = 200;
constexpr std::int64_t kSlotColumns = 128;
constexpr BoxShape kBox{2, {32, 100}};
constexpr BoxPlace kInTrainer{16 * kColumns + 40, {kColumns, 1}};
constexpr BoxPlace kInSlot{3, {kSlotColumns, 1}};
constexpr BoxPlace kLogical = kInTrainer;
constexpr DigestKey kKey{{1, 2, 3, 4}};

BoxMove Packing() {
  return {.shape = kBox,
          .item_bytes = 4,
          .conversion = Conversion::kF32ToBf16,
          .source = kInTrainer,
          .target = CompactPlace(kBox),
          .logical = kLogical,
          .key = kKey};
}

BoxMove Unpacking() {
  return {.shape = kBox,
          .item_bytes = 2,
          .source = CompactPlace(kBox),
          .target = kInSlot,
          .logical = kLogical,
          .key = kKey};
}

std::vector<std::byte> Weights(int version) {
  std::vector<float> weights(64 * kColumns);
  for (std::size_t i = 0; i < weights.size(); ++i)
    weights[i] = static_cast<float>(i % 977) * 0.37F - static_cast<float>(11 * version);
  std::vector<std::byte> bytes(weights.size() * sizeof(float));
  std::memcpy(bytes.data(), weights.data(), bytes.size());
  return bytes;
}

// One box's move on a device, again and again: its table and its digest lie there.
class MoveOnDevice {
 public:
  MoveOnDevice(Device& device, const BoxMove& move) : device_(device) {
    EXPECT_TRUE(table_.Add(move).ok());
    entries_ = device.memory().Allocate(table_.entries().size_bytes()).value();
    EXPECT_TRUE(WriteDevice(device, entries_->bytes(), std::as_bytes(table_.entries())).ok());
    digest_ = device.memory().Allocate(sizeof(TensorDigest)).value();
  }

  Status Enqueue(const std::byte* from, std::byte* to, DeviceStream& stream) {
    RETURN_IF_ERROR(stream.Fill(digest_->bytes(), std::byte{0}));
    ASSIGN_OR_RETURN(const DeviceKernels* const kernels, LoadDeviceKernels());
    return kernels->move_and_digest_boxes(
        MoveBatch{.entries = reinterpret_cast<const MoveEntry*>(entries_->bytes().data()),
                  .entry_count = 1,
                  .tiles = table_.tiles(),
                  .source_base = reinterpret_cast<std::uint64_t>(from),
                  .target_base = reinterpret_cast<std::uint64_t>(to),
                  .digests = reinterpret_cast<TensorDigest*>(digest_->bytes().data())},
        stream.handle());
  }
  TensorDigest Digest() {
    TensorDigest digest;
    const std::vector<std::byte> bytes = ReadDevice(device_, digest_->bytes()).value();
    std::memcpy(static_cast<void*>(&digest), bytes.data(), sizeof digest);
    return digest;
  }

 private:
  Device& device_;
  BoxMoveTable table_;
  std::unique_ptr<DeviceBuffer> entries_;
  std::unique_ptr<DeviceBuffer> digest_;
};

TEST(CudaIpcBucketTest, ABoxArrivesConvertedAndInItsPlaceWithTheSendersDigestVersionAfterVersion) {
  const TempDirectory directory;
  Device& device = FakeDevice();
  const auto listener = CudaIpcListener::Create(directory.File("engine.sock"), device).value();
  CudaIpcDialer dialer(device);
  listener->Expect(kHello.connection);
  const auto sender = dialer.Dial(listener->endpoint(), kHello, Soon()).value();
  const auto receiver = listener->Accept(kHello.connection, kHello.route, Soon()).value();
  const auto tensor = device.memory().Allocate(64 * kColumns * sizeof(float)).value();
  const auto slot = device.memory().Allocate(33 * kSlotColumns * 2).value();
  const auto packing = device.MakeStream(StreamPriority::kNormal).value();
  const auto staging = device.MakeStream(StreamPriority::kLow).value();
  MoveOnDevice pack(device, Packing());
  MoveOnDevice unpack(device, Unpacking());
  for (int version = 1; version <= 6; ++version) {
    SCOPED_TRACE(version);
    FakeCuda::SetSeed(static_cast<std::uint64_t>(version));
    const std::vector<std::byte> weights = Weights(version);
    ASSERT_TRUE(WriteDevice(device, tensor->bytes(), weights).ok());

    if (!sender->HasCredit()) {
      ASSERT_TRUE(sender->NextAck(Soon()).ok());
    }
    ASSERT_TRUE(pack.Enqueue(tensor->bytes().data(), sender->AcquireDevicePayload().data(), *packing).ok());
    ASSERT_TRUE(sender->SendFilledOn(0, static_cast<std::size_t>(sender->frame_bytes()), *packing).ok());
    const ReceivedFrame frame = receiver->Receive(Soon()).value();
    ASSERT_TRUE(unpack.Enqueue(frame.device_payload.data(), slot->bytes().data(), *staging).ok());
    ASSERT_TRUE(receiver->AcknowledgeReadOn(frame, BucketAck{}, *staging).ok());
    ASSERT_TRUE(Drain(device, *staging).ok());

    std::vector<std::byte> payload(static_cast<std::size_t>(kBox.Elements()) * 2);
    const TensorDigest expected =
        PackAndDigestOnHost(kKey, kBox, Conversion::kF32ToBf16, 4, weights.data(), kInTrainer, kLogical, payload);
    std::vector<std::byte> expected_slot(slot->bytes().size());
    UnpackOnHost(kBox, 2, payload, expected_slot.data(), kInSlot);
    EXPECT_EQ(pack.Digest(), expected);
    EXPECT_EQ(unpack.Digest(), expected);
    EXPECT_EQ(ReadDevice(device, slot->bytes()).value(), expected_slot);
  }
  EXPECT_EQ(FakeCuda::Census().launches, 12);
}

TEST(CudaIpcBucketTest, AKernelThatCannotBeLaunchedIsNamed) {
  Device& device = FakeDevice();
  const auto stream = device.MakeStream(StreamPriority::kNormal).value();
  MoveOnDevice pack(device, Packing());
  FakeCuda::Fail("cudaLaunchKernelExC", 1, 9);  // cudaErrorInvalidConfiguration

  const Status status = pack.Enqueue(nullptr, nullptr, *stream);

  EXPECT_EQ(status.reason(), "device_error");
  EXPECT_NE(status.message().find("DigestBoxes"), std::string::npos) << status.message();
  EXPECT_TRUE(Drain(device, *stream).ok());
}

}  // namespace
}  // namespace bascule
