#include "tests/unit/device_slots/device_engine.h"

#include "bridge/bucket/bucket_format.h"
#include "bridge/transport/cuda_ipc/dialer.h"
#include "bridge/transport/cuda_ipc/listener.h"
#include "bridge/transport/loopback/dialer.h"
#include "bridge/transport/loopback/listener.h"
#include "bridge/transport/shm/dialer.h"
#include "bridge/transport/shm/listener.h"
#include "tests/support/device_work/device_work.h"

namespace bascule {
namespace {

// Moves the payload of each frame, which is packed on the host, to the frame's part on the device.
class ToDevice final : public BucketSender {
 public:
  ToDevice(std::unique_ptr<BucketSender> sender, Device& device, std::atomic<int>& to_spoil)
      : sender_(std::move(sender)),
        device_(device),
        to_spoil_(to_spoil),
        stream_(device.MakeStream(StreamPriority::kNormal).value()) {}

  std::int64_t frame_bytes() const override { return sender_->frame_bytes(); }
  std::int32_t credits() const override { return sender_->credits(); }
  bool wants_checksum() const override { return false; }
  bool HasCredit() const override { return sender_->HasCredit(); }
  std::span<std::byte> Acquire() override { return sender_->Acquire(); }
  Status Send(std::size_t bytes) override {
    const std::span<std::byte> frame = sender_->Acquire().first(bytes);
    ASSIGN_OR_RETURN(const BucketHeader header, ParseBucketHeader(frame));
    const auto head = static_cast<std::size_t>(PayloadOffset(header.slice_count));
    const std::span<std::byte> payload = frame.subspan(head);
    if (to_spoil_ > 0 && to_spoil_-- > 0) payload[payload.size() / 2] ^= std::byte{2};
    RETURN_IF_ERROR(WriteDevice(device_, sender_->AcquireDevicePayload().first(payload.size()), payload));
    SealBucketFrame(header, frame.first(head), PayloadPlace::kApart);
    return sender_->SendFilledOn(head, payload.size(), *stream_);
  }
  Result<BucketAck> NextAck(Deadline deadline) override { return sender_->NextAck(deadline); }
  void Cancel() override { sender_->Cancel(); }

 private:
  const std::unique_ptr<BucketSender> sender_;
  Device& device_;
  std::atomic<int>& to_spoil_;
  const std::unique_ptr<DeviceStream> stream_;
};

class ToDeviceDialer final : public TransportDialer {
 public:
  ToDeviceDialer(Device& device, std::atomic<int>& to_spoil) : device_(device), to_spoil_(to_spoil), dialer_(device) {}
  TransportKind kind() const override { return dialer_.kind(); }
  bool CanReach(const TransportEndpoint& endpoint) const override { return dialer_.CanReach(endpoint); }
  Result<std::unique_ptr<BucketSender>> Dial(const TransportEndpoint& endpoint, const RouteHello& hello,
                                             Deadline deadline) override {
    ASSIGN_OR_RETURN(auto sender, dialer_.Dial(endpoint, hello, deadline));
    return std::unique_ptr<BucketSender>(std::make_unique<ToDevice>(std::move(sender), device_, to_spoil_));
  }

 private:
  Device& device_;
  std::atomic<int>& to_spoil_;
  CudaIpcDialer dialer_;
};

}  // namespace

Layout PaddedLayout(std::int64_t rows) {
  Layout layout = ShardedTrainer::EngineLayout(kEngineRanks, rows);
  for (RankLayout& rank : layout.ranks) {
    LocalTensor& first = rank.tensors[0];
    const Dims held = first.shape;
    first.shape[0] += kPaddingRows;
    rank.rows.push_back(
        {.local = 0, .local_box = {{held[0], 0}, {kPaddingRows, held[1]}}, .logical = kFill, .logical_box = {}});
  }
  return layout;
}

void DeviceEngineTest::Start(WeightReceiverOptions options, TransportKind transport) {
  Stop();
  switch (transport) {
    case TransportKind::kShm:
      listener_ = *ShmListener::Create(directory_.File("engine.sock"));
      dialer_ = std::make_unique<ShmDialer>();
      break;
    case TransportKind::kCudaIpc:
      listener_ = *CudaIpcListener::Create(directory_.File("engine.sock"), FakeDevice());
      dialer_ = std::make_unique<ToDeviceDialer>(FakeDevice(), frames_to_spoil_);
      break;
    default:
      listener_ = *LoopbackListener::Create(network_, "engine");
      dialer_ = std::make_unique<LoopbackDialer>(network_);
  }
  options.layout = PaddedLayout(trainer_.Rows());
  // The fake runtime takes its time with all memory that there is.
  options.device_staging = {.lanes = 2, .lane_bytes = 4096, .exchange_bytes = 4096};
  options.listeners = {listener_.get()};
  auto receiver = WeightReceiver::Create(std::move(options), *hooks_);
  ASSERT_TRUE(receiver.ok()) << receiver.status().ToString();
  receiver_ = *std::move(receiver);
  server_ = *control_.Listen("engine", [this](ControlChannel& channel) { (void)receiver_->Serve(channel); });
  sending_.replicas = {"engine"};
  sending_.control = &control_;
  sending_.transports = {dialer_.get()};
  sending_.run = "run";
  sending_.bucket_bytes = 4096;
  sending_.connect_timeout = sending_.deadline;
  publisher_ = *WeightPublisher::Create(sending_, trainer_.Source());
}

void DeviceEngineTest::Stop() {
  publisher_.reset();
  server_.reset();
  receiver_.reset();
  dialer_.reset();
  listener_.reset();
}

ReplicaReport DeviceEngineTest::Publish(std::uint32_t seed, PublishRequest request) {
  trainer_.Fill(seed);
  const auto handle = publisher_->Publish(std::move(request));
  EXPECT_TRUE(handle.ok()) << handle.status().ToString();
  return (*handle)->WaitCommitted(Soon())->replicas.at(0);
}

void DeviceEngineTest::PublishWell(std::uint32_t seed) {
  const ReplicaReport report = Publish(seed);
  ASSERT_TRUE(report.status.ok()) << report.status.ToString();
  EXPECT_EQ(Live(), Expected());
}

EngineContents DeviceEngineTest::Expected() const {
  const Layout layout = PaddedLayout(trainer_.Rows());
  EngineContents contents(kEngineRanks);
  for (int rank = 0; rank < kEngineRanks; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    for (int tensor = 0; tensor < static_cast<int>(layout.ranks[r].tensors.size()); ++tensor) {
      std::vector<std::byte> bytes = trainer_.EngineBytes(kEngineRanks, rank, tensor);
      bytes.resize(static_cast<std::size_t>(layout.ranks[r].tensors[static_cast<std::size_t>(tensor)].Bytes()));
      contents[r].push_back(std::move(bytes));
    }
  }
  return contents;
}

EngineContents DeviceEngineTest::Live() {
  const WeightLease lease = receiver_->AcquireLive();
  if (lease.empty()) return {};
  EngineContents contents(kEngineRanks);
  for (int rank = 0; rank < kEngineRanks; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    const int tensors = static_cast<int>(receiver_->layout().ranks[r].tensors.size());
    // They lie one behind another, and one copy is quicker than many.
    const std::byte* const begin = lease.Tensor(rank, 0).data();
    const std::span<const std::byte> last = lease.Tensor(rank, tensors - 1);
    const std::vector<std::byte> all = ReadDevice(FakeDevice(), {begin, last.data() + last.size()}).value();
    for (int tensor = 0; tensor < tensors; ++tensor) {
      const std::span<const std::byte> bytes = lease.Tensor(rank, tensor);
      const auto first = all.begin() + (bytes.data() - begin);
      contents[r].emplace_back(first, first + std::ssize(bytes));
    }
  }
  return contents;
}

}  // namespace bascule
