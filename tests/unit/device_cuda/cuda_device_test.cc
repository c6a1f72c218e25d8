#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "tests/support/fake_cuda/control.h"
#include "tests/support/fake_cuda/fake_device.h"

namespace bascule {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

constexpr std::size_t kBytes = 100'000;

std::vector<std::byte> Numbered(std::size_t size, int first) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(first + static_cast<int>(i % 251));
  return bytes;
}

TEST(CudaDeviceTest, BytesGoToTheDeviceAndComeBack) {
  Device& device = FakeDevice();
  const auto memory = device.memory().Allocate(kBytes).value();
  const std::vector<std::byte> sent = Numbered(kBytes, 3);

  ASSERT_TRUE(WriteDevice(device, memory->bytes(), sent).ok());
  const Result<std::vector<std::byte>> read = ReadDevice(device, memory->bytes());

  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(*read, sent);
}

TEST(CudaDeviceTest, NewMemoryIsZeroWhateverLayThere) {
  Device& device = FakeDevice();
  for (DeviceMemory* const memory : {&device.memory(), &device.pinned_memory()}) {
    const auto buffer = memory->Allocate(kBytes).value();

    const Result<std::vector<std::byte>> read = ReadDevice(device, buffer->bytes());

    ASSERT_TRUE(read.ok()) << read.status().ToString();
    EXPECT_THAT(*read, Each(std::byte{0})) << memory->name();
  }
}

TEST(CudaDeviceTest, EverythingIsReleasedWithItsOwner) {
  Device& device = FakeDevice();
  (void)device.memory().Allocate(1).value();  // what a device makes once and keeps
  const FakeCudaCensus before = FakeCuda::Census();
  {
    const auto memory = device.memory().Allocate(kBytes).value();
    const auto pinned = device.pinned_memory().Allocate(kBytes).value();
    const auto stream = device.MakeStream(StreamPriority::kLow).value();
    const auto event = device.MakeEvent().value();
    const SharedEvent shared = device.MakeSharedEvent().value();
    EXPECT_EQ(FakeCuda::Census().allocations, before.allocations + 1);
    EXPECT_EQ(FakeCuda::Census().events, before.events + 2);
  }

  const FakeCudaCensus after = FakeCuda::Census();
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.pinned_allocations, before.pinned_allocations);
  EXPECT_EQ(after.streams, before.streams);
  EXPECT_EQ(after.events, before.events);
}

TEST(CudaDeviceDeathTest, TheHostCannotFollowAnAddressOfTheDevice) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto memory = FakeDevice().memory().Allocate(kBytes).value();

  EXPECT_DEATH(*const_cast<volatile std::byte*>(memory->bytes().data()) = std::byte{1}, "");
}

// One stream fills memory with `value`, and another copies it to the host, after the event between them or without.
std::vector<std::byte> FillHereReadThere(Device& device, std::byte value, bool with_event) {
  const auto memory = device.memory().Allocate(kBytes).value();
  const auto pinned = device.pinned_memory().Allocate(kBytes).value();
  const auto filling = device.MakeStream(StreamPriority::kNormal).value();
  const auto reading = device.MakeStream(StreamPriority::kNormal).value();
  const auto filled = device.MakeEvent().value();
  EXPECT_TRUE(filling->Fill(memory->bytes(), value).ok());
  EXPECT_TRUE(filling->Record(*filled).ok());
  if (with_event) {
    EXPECT_TRUE(reading->WaitFor(*filled).ok());
  }
  EXPECT_TRUE(reading->Copy(pinned->bytes(), memory->bytes()).ok());
  EXPECT_TRUE(Drain(device, *reading).ok());
  EXPECT_TRUE(Drain(device, *filling).ok());
  return {pinned->bytes().begin(), pinned->bytes().end()};
}

TEST(CudaStreamTest, WorkBehindAnEventSeesWhatWasDoneBeforeItInEveryOrder) {
  Device& device = FakeDevice();
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    FakeCuda::SetSeed(seed);

    EXPECT_THAT(FillHereReadThere(device, std::byte{7}, /*with_event=*/true), Each(std::byte{7}));
  }
}

TEST(CudaStreamTest, AMissingWaitShowsAsAWrongResultUnderSomeOrder) {
  Device& device = FakeDevice();
  int wrong = 0;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    FakeCuda::SetSeed(seed);
    const std::vector<std::byte> read = FillHereReadThere(device, std::byte{7}, /*with_event=*/false);
    wrong += read != std::vector<std::byte>(kBytes, std::byte{7}) ? 1 : 0;
  }

  EXPECT_GT(wrong, 0);
}

TEST(CudaStreamTest, AWaitMeansTheMarkAsItWasWhenItWasEnqueued) {
  Device& device = FakeDevice();
  const auto stream = device.MakeStream(StreamPriority::kNormal).value();
  const auto other = device.MakeStream(StreamPriority::kHigh).value();
  const auto event = device.MakeEvent().value();
  ASSERT_TRUE(stream->Record(*event).ok());
  ASSERT_TRUE(other->WaitFor(*event).ok());
  FakeCuda::Fail("cudaEventRecord", 1, FakeCuda::kLost);
  ASSERT_TRUE(stream->Record(*event).ok());  // a later mark, which is never reached

  EXPECT_TRUE(Drain(device, *other).ok());
  EXPECT_FALSE(*event->Passed());
}

TEST(CudaStreamTest, AnEventThatNeverPassesIsGivenUpAtTheDeadline) {
  Device& device = FakeDevice();
  const auto stream = device.MakeStream(StreamPriority::kNormal).value();
  const auto event = device.MakeEvent().value();
  FakeCuda::Fail("cudaEventRecord", 1, FakeCuda::kLost);
  ASSERT_TRUE(stream->Record(*event).ok());

  const Status status = AwaitEvent(*event, Deadline::At(Clock::Real().Now()), Clock::Real());

  EXPECT_EQ(status.reason(), "device_deadline");
}

// C-101.
TEST(CudaStreamTest, PageableHostMemoryIsRefusedSinceTheCopyWouldWait) {
  Device& device = FakeDevice();
  const auto memory = device.memory().Allocate(kBytes).value();
  const auto stream = device.MakeStream(StreamPriority::kNormal).value();
  std::vector<std::byte> pageable(kBytes);

  EXPECT_EQ(stream->Copy(memory->bytes(), pageable).reason(), "not_pinned");
  EXPECT_EQ(stream->Copy(pageable, memory->bytes()).reason(), "not_pinned");
  EXPECT_EQ(stream->Fill(pageable, std::byte{1}).reason(), "not_pinned");
}

TEST(CudaStreamTest, AnEventThatTheCallerMadeItselfOrdersStreamsAndStaysTheCallers) {
  Device& device = FakeDevice();
  void* const runtime = dlopen("libcudart.so.13", RTLD_NOW | RTLD_NOLOAD);
  cudaEvent_t made = nullptr;
  ASSERT_EQ(reinterpret_cast<cudaError_t (*)(cudaEvent_t*, unsigned)>(dlsym(runtime, "cudaEventCreateWithFlags"))(
                &made, cudaEventDisableTiming),
            cudaSuccess);
  const auto memory = device.memory().Allocate(kBytes).value();
  const auto copy = device.memory().Allocate(kBytes).value();
  const auto writing = device.MakeStream(StreamPriority::kNormal).value();
  const auto reading = device.MakeStream(StreamPriority::kNormal).value();
  const int events = FakeCuda::Census().events;
  for (int round = 1; round <= 20; ++round) {
    const std::unique_ptr<DeviceEvent> written = device.Borrow(made);
    ASSERT_TRUE(writing->Fill(memory->bytes(), static_cast<std::byte>(round)).ok());
    ASSERT_TRUE(writing->Record(*written).ok());
    ASSERT_TRUE(reading->WaitFor(*written).ok());
    ASSERT_TRUE(reading->Copy(copy->bytes(), memory->bytes()).ok());
    ASSERT_TRUE(Drain(device, *reading).ok());

    EXPECT_THAT(ReadDevice(device, copy->bytes()).value(), Each(static_cast<std::byte>(round)));
  }
  EXPECT_EQ(FakeCuda::Census().events, events);
}

TEST(CudaDeviceTest, MemoryThatKernelsCannotFollowIsToldByWhereItLies) {
  Device& device = FakeDevice();
  const auto own = device.memory().Allocate(kBytes).value();
  const auto pinned = device.pinned_memory().Allocate(kBytes).value();
  const auto elsewhere = FakeDevice(1).memory().Allocate(kBytes).value();
  const std::vector<std::byte> pageable(kBytes);
  const std::byte* const inside = own->bytes().data() + 5;

  EXPECT_TRUE(device.CheckReachable(own->bytes()).ok());
  EXPECT_TRUE(device.CheckReachable(pinned->bytes()).ok());
  EXPECT_TRUE(device.CheckReachable({}).ok());
  EXPECT_EQ(device.CheckReachable(pageable).reason(), "not_on_device");
  EXPECT_EQ(device.CheckReachable(std::span(inside, std::size_t{5} << 20)).reason(), "not_on_device");
  EXPECT_THAT(device.CheckReachable(elsewhere->bytes()).message(), HasSubstr("lies in device 1"));
}

TEST(CudaErrorTest, OutOfMemoryNamesTheBytesTheDeviceAndCudasOwnWords) {
  const Status status = FakeDevice().memory().Allocate(std::size_t{1} << 40).status();

  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(status.reason(), "device_memory");
  EXPECT_THAT(status.message(), AllOf(HasSubstr("bytes=1099511627776"), HasSubstr("device 0 GPU-fa4efa4e"),
                                      HasSubstr("cudaMalloc"), HasSubstr("out of memory")));
}

TEST(CudaErrorTest, EachErrorHasTheReasonThatTellsTheCallerWhatToDo) {
  const std::pair<int, std::string> cases[] = {{cudaErrorMemoryAllocation, "device_memory"},
                                               {cudaErrorIllegalAddress, "device_lost"},
                                               {cudaErrorECCUncorrectable, "device_lost"},
                                               {cudaErrorDevicesUnavailable, "no_cuda_device"},
                                               {cudaErrorInvalidValue, "device_error"}};
  Device& device = FakeDevice();
  const auto event = device.MakeEvent().value();
  for (const auto& [error, reason] : cases) {
    FakeCuda::Fail("cudaEventQuery", 1, error);

    const Status status = event->Passed().status();

    EXPECT_EQ(status.reason(), reason);
    EXPECT_THAT(status.message(), HasSubstr("cudaEventQuery"));
  }
}

TEST(CudaErrorTest, AnAllocationThatFailsAtItsSecondStepLeavesNothingBehind) {
  Device& device = FakeDevice();
  (void)device.memory().Allocate(1).value();
  const FakeCudaCensus before = FakeCuda::Census();
  FakeCuda::Fail("cudaMemsetAsync", 1, cudaErrorLaunchFailure);

  EXPECT_EQ(device.memory().Allocate(kBytes).status().reason(), "device_lost");

  EXPECT_EQ(FakeCuda::Census().allocations, before.allocations);
  EXPECT_EQ(FakeCuda::Census().events, before.events);
}

TEST(CudaErrorTest, MemoryThatTheDeviceMayStillWriteToIsNotFreed) {
  Device& device = FakeDevice();
  (void)device.memory().Allocate(1).value();
  const FakeCudaCensus before = FakeCuda::Census();
  FakeCuda::Fail("cudaEventQuery", 1, cudaErrorLaunchFailure);

  EXPECT_EQ(device.memory().Allocate(kBytes).status().reason(), "device_lost");

  EXPECT_EQ(FakeCuda::Census().allocations, before.allocations + 1);
  EXPECT_TRUE(device.memory().Allocate(kBytes).ok()) << "the fill before it went to memory that is there";
}

// C-095.
TEST(CudaBackendTest, DevicesAreFoundByUuidWhateverTheirOrdinalIsHere) {
  (void)FakeDevice();
  DeviceBackend& backend = **LoadCudaBackend();
  const std::vector<DeviceDescription> devices = backend.Devices().value();
  ASSERT_EQ(devices.size(), 2u);

  for (const DeviceDescription& device : devices) {
    EXPECT_EQ(backend.Open(device.uuid).value()->description().ordinal, device.ordinal);
    EXPECT_EQ(backend.Open(device.ordinal).value(), backend.Open(device.uuid).value());
  }
  EXPECT_EQ(devices[0].uuid.bytes[15], 1);  // this process's ordinal 0 is the second device of all
  const Status status = backend.Open(DeviceUuid{}).status();
  EXPECT_EQ(status.reason(), "no_such_device");
  EXPECT_THAT(status.message(), HasSubstr(devices[1].uuid.ToString()));
}

TEST(CudaBackendTest, AThreadKeepsTheDeviceThatItUsed) {
  (void)FakeDevice();
  void* const runtime = dlopen("libcudart.so.13", RTLD_NOW | RTLD_NOLOAD);
  const auto set_device = reinterpret_cast<cudaError_t (*)(int)>(dlsym(runtime, "cudaSetDevice"));
  const auto get_device = reinterpret_cast<cudaError_t (*)(int*)>(dlsym(runtime, "cudaGetDevice"));
  ASSERT_EQ(set_device(1), cudaSuccess);

  ASSERT_TRUE(FakeDevice(0).memory().Allocate(kBytes).ok());
  ASSERT_TRUE(FakeDevice(0).MakeStream(StreamPriority::kNormal).ok());

  int now = -1;
  ASSERT_EQ(get_device(&now), cudaSuccess);
  EXPECT_EQ(now, 1);
  ASSERT_EQ(set_device(0), cudaSuccess);  // other tests may run on this thread
}

// C-092.
// What is set up takes half a gigabyte of a real device.
TEST(CudaBackendTest, AThreadThatUsesOneDeviceSetsUpNoOther) {
  Device& second = FakeDevice(1);
  FakeCuda::ForgetSetUp();
  std::thread([&] {
    const auto stream = second.MakeStream(StreamPriority::kNormal).value();
    const auto event = second.MakeEvent().value();
    const auto shared = second.MakeSharedEvent().value();
    const auto memory = second.memory().Allocate(kBytes).value();
    const auto pinned = second.pinned_memory().Allocate(kBytes).value();
    EXPECT_TRUE(second.Export(memory->bytes()).ok());
    // Each of these is the first thing that a thread does.
    const auto alone = [](const std::function<void()>& work) { std::thread(work).join(); };
    alone([&] { EXPECT_TRUE(stream->Copy(memory->bytes(), pinned->bytes()).ok()); });
    alone([&] { EXPECT_TRUE(stream->Fill(memory->bytes(), std::byte{1}).ok()); });
    alone([&] { EXPECT_TRUE(stream->WaitFor(*event).ok()); });
    alone([&] { EXPECT_TRUE(stream->Record(*event).ok()); });
    alone([&] { EXPECT_TRUE(event->Passed().ok()); });
    alone([&] { EXPECT_TRUE(second.CheckReachable(memory->bytes()).ok()); });
    alone([&] { (void)second.memory().Allocate(1).value(); });
    EXPECT_TRUE(Drain(second, *stream).ok());
  }).join();

  EXPECT_EQ(FakeCuda::Census().set_up, 1);
}

TEST(CudaExportTest, MemoryThatCannotBeExportedIsRefusedByTheNameOfItsAllocator) {
  Device& device = FakeDevice();
  void* const runtime = dlopen("libcudart.so.13", RTLD_NOW | RTLD_NOLOAD);
  void* managed = nullptr;
  void* pooled = nullptr;
  ASSERT_EQ(reinterpret_cast<cudaError_t (*)(void**, std::size_t, unsigned)>(dlsym(runtime, "cudaMallocManaged"))(
                &managed, kBytes, cudaMemAttachGlobal),
            cudaSuccess);
  ASSERT_EQ(reinterpret_cast<cudaError_t (*)(void**, std::size_t, cudaStream_t)>(dlsym(runtime, "cudaMallocAsync"))(
                &pooled, kBytes, nullptr),
            cudaSuccess);
  const auto pinned = device.pinned_memory().Allocate(kBytes).value();
  const auto elsewhere = FakeDevice(1).memory().Allocate(kBytes).value();
  const std::vector<std::byte> pageable(kBytes);
  const std::pair<const void*, std::string> cases[] = {{managed, "cudaMallocManaged"},
                                                       {pooled, "expandable_segments:False"},
                                                       {pinned->bytes().data(), "host memory"},
                                                       {pageable.data(), "host memory"},
                                                       {elsewhere->bytes().data(), "memory of device 1"}};
  for (const auto& [address, named] : cases) {
    const Status status = device.Export(std::span(static_cast<const std::byte*>(address), kBytes)).status();

    EXPECT_EQ(status.reason(), "not_exportable");
    EXPECT_THAT(status.message(), HasSubstr(named));
  }
}

TEST(CudaExportTest, APieceOfAnAllocationIsNamedByItsOffsetAndNotPastItsEnd) {
  Device& device = FakeDevice();
  const auto memory = device.memory().Allocate(std::size_t{3} << 20).value();
  const std::span<const std::byte> all = memory->bytes();

  const Result<ExportedMemory> piece = device.Export(all.subspan(1000, 50));

  ASSERT_TRUE(piece.ok()) << piece.status().ToString();
  EXPECT_EQ(piece->offset, 1000);
  EXPECT_EQ(piece->allocation_bytes, 4 << 20);  // whole pages of the device, which nobody else has a part of
  EXPECT_EQ(device.Export(std::span(all.data(), std::size_t{5} << 20)).status().reason(), "not_exportable");
}

TEST(CudaExportTest, AProcessDoesNotOpenWhatItMadeItself) {
  Device& device = FakeDevice();
  const auto memory = device.memory().Allocate(kBytes).value();
  const ExportedMemory exported = device.Export(memory->bytes()).value();
  const SharedEvent event = device.MakeSharedEvent().value();

  EXPECT_EQ(device.OpenMemory(exported.handle, kBytes).status().reason(), "same_process");
  EXPECT_EQ(device.OpenEvent(event.handle).status().reason(), "same_process");
}

TEST(CudaExportTest, AHandleThatNamesNothingIsALostPeer) {
  Device& device = FakeDevice();

  EXPECT_EQ(device.OpenMemory(MemoryHandle{}, kBytes).status().reason(), "peer_lost");
  EXPECT_EQ(device.OpenEvent(EventHandle{}).status().reason(), "peer_lost");
}

}  // namespace
}  // namespace bascule
