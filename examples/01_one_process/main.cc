// A trainer and an engine in one process: the whole bridge without a network. The trainer holds fp32 masters, cut over
// two trainer ranks; the engine holds bf16. A reader thread stands for decode: it takes a lease for each "step" and
// checks that every element it sees is of one version.
#include <fmt/core.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "bridge/session/loopback/loopback_control.h"
#include "bridge/transport/loopback/dialer.h"
#include "bridge/transport/loopback/listener.h"
#include "engine_side/weight_receiver.h"
#include "trainer_side/weight_publisher.h"

namespace {

using namespace bascule;
using std::chrono::seconds;

constexpr std::int64_t kRows = 4096;
constexpr std::int64_t kColumns = 1024;
const TensorSpec kMaster = {"model.layers.0.mlp.down_proj.weight", DType::kF32, {kRows, kColumns}};

// The engine stores the same logical tensor whole, in bf16, under a name of its own.
Layout EngineLayout() {
  const TensorSpec wire = {kMaster.name, DType::kBf16, kMaster.shape};
  Layout layout = PlainLayout({wire});
  layout.ranks[0].tensors[0].name = "down_proj";
  return layout;
}

// Trainer rank r holds half of the rows, as fully sharded data parallelism does.
Status AddHalf(TensorSource& source, int trainer_rank, const std::vector<float>& half) {
  const Box box{{trainer_rank * kRows / 2, 0}, {kRows / 2, kColumns}};
  return source.Add(trainer_rank, {.tensor = kMaster, .box = box, .data = half.data()});
}

// bf16 bits of a small whole number, which bf16 holds exactly.
std::uint16_t Bf16(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<std::uint16_t>(bits >> 16);
}

// One "decode step": every element of the leased tensor is the number of the leased version.
bool StepSeesOneVersion(const WeightLease& lease) {
  const std::span<const std::byte> bytes = lease.Tensor(/*engine_rank=*/0, /*tensor=*/0);
  const auto* element = reinterpret_cast<const std::uint16_t*>(bytes.data());
  const std::uint16_t wanted = Bf16(static_cast<float>(lease.version().number));
  for (std::int64_t i = 0; i < kRows * kColumns; ++i) {
    if (element[i] != wanted) return false;
  }
  return true;
}

Status Run() {
  // Engine side: slots, a control address, a transport.
  LoopbackControl control;
  LoopbackNetwork network;
  ASSIGN_OR_RETURN(const std::unique_ptr<LoopbackListener> listener, LoopbackListener::Create(network, "engine"));
  IdleHooks hooks;  // a real engine gives its scheduler here: engine_side/engine_hooks.h
  WeightReceiverOptions engine_options;
  engine_options.layout = EngineLayout();
  engine_options.listeners = {listener.get()};
  ASSIGN_OR_RETURN(const std::unique_ptr<WeightReceiver> receiver, WeightReceiver::Create(engine_options, hooks));
  ASSIGN_OR_RETURN(const std::unique_ptr<LoopbackControl::Listener> address,
                   control.Listen("engine", [&](ControlChannel& channel) { (void)receiver->Serve(channel); }));

  // Trainer side: two trainer ranks, each with half of the rows.
  std::vector<std::vector<float>> halves(2, std::vector<float>(kRows / 2 * kColumns));
  TensorSource source(/*trainer_ranks=*/2);
  for (int r = 0; r < 2; ++r) RETURN_IF_ERROR(AddHalf(source, r, halves[static_cast<std::size_t>(r)]));
  LoopbackDialer dialer(network);
  WeightPublisherOptions trainer_options;
  trainer_options.replicas = {"engine"};
  trainer_options.control = &control;
  trainer_options.transports = {&dialer};
  trainer_options.run = "example";
  ASSIGN_OR_RETURN(const std::unique_ptr<WeightPublisher> publisher,
                   WeightPublisher::Create(trainer_options, std::move(source)));

  std::atomic<bool> mixed{false};
  std::atomic<std::uint64_t> steps{0};
  std::jthread decode([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      const WeightLease lease = receiver->AcquireLive();
      if (lease.empty()) continue;
      if (!StepSeesOneVersion(lease)) mixed = true;
      ++steps;
    }
  });

  for (std::uint64_t number = 1; number <= 5; ++number) {
    for (std::vector<float>& half : halves) half.assign(half.size(), static_cast<float>(number));  // "train"
    ASSIGN_OR_RETURN(const std::shared_ptr<PublishHandle> handle, publisher->Publish({.number = number}));
    RETURN_IF_ERROR(handle->WaitPacked(Deadline::After(Clock::Real(), seconds(30))));  // the next step may train now
    ASSIGN_OR_RETURN(const PublishReport report, handle->WaitCommitted(Deadline::After(Clock::Real(), seconds(30))));
    for (const ReplicaReport& replica : report.replicas) RETURN_IF_ERROR(replica.status);
    fmt::print("version {}  digest {}...  {} bytes  verified, live\n", report.version.number,
               report.version.digest.ToHex().substr(0, 12), report.bytes);
  }

  ASSIGN_OR_RETURN(const FlipReport back, receiver->Rollback(std::nullopt, Deadline::After(Clock::Real(), seconds(5))));
  fmt::print("rolled back to version {}, no transfer\n", back.version.number);
  decode.request_stop();
  decode.join();
  if (mixed) return Status::DataLoss("mixed_versions", "a step saw two versions");
  fmt::print("every decode step saw exactly one version\n");
  return steps > 0 ? OkStatus() : Status::Internal("no_step", "decode never ran");
}

}  // namespace

int main() {
  const Status status = Run();
  if (!status.ok()) fmt::print(stderr, "one_process: {}\n", status.ToString());
  return status.ok() ? 0 : 1;
}
