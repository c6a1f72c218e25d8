#include "benchmarks/gpu/remote_trainer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <utility>

#include "base/worker.h"
#include "benchmarks/gpu/stepping_engine.h"
#include "bridge/send/send_pipeline.h"
#include "bridge/transport/cuda_ipc/dialer.h"
#include "trainer_side/tensor_source.h"

namespace bascule {
namespace {

constexpr Duration kPatience = std::chrono::seconds(60);
constexpr std::size_t kTensorsMax = 100;  // whose totals fit into one message

Deadline Soon() { return Deadline::After(Clock::Real(), kPatience); }

// Engine to trainer: send all buckets.
struct SendOrder {
  std::uint64_t session = 0;
  std::uint64_t connection = 0;
  std::int64_t frame_bytes = 0;
  std::int32_t credits = 0;
  std::array<char, 256> address{};
};
// Trainer to engine: all are acknowledged.
struct SentAll {
  std::int64_t wire_bytes = 0;
  std::uint64_t tensors = 0;
  std::array<TensorDigest, kTensorsMax> totals{};
};

template <typename T>
Status SendPod(PeerLink& link, const T& value) {
  return link.Send(std::string_view(reinterpret_cast<const char*>(&value), sizeof value));
}

template <typename T>
Result<T> ReceivePod(PeerLink& link, Deadline deadline) {
  ASSIGN_OR_RETURN(const std::string text, link.Receive(deadline));
  if (text.size() != sizeof(T)) return Status::DataLoss("bad_message", fmt::format("{} bytes", text.size()));
  T value;
  std::memcpy(static_cast<void*>(&value), text.data(), sizeof value);
  return value;
}

// The trainer's process once it is ready.
class Trainer {
 public:
  static Result<std::unique_ptr<Trainer>> Create(const RemoteModel& model) {
    const GpuScale scale{.kernel_bytes = model.model_bytes, .model_bytes = model.model_bytes};
    ASSIGN_OR_RETURN(auto run, GpuRun::Open(&scale));
    std::unique_ptr<Trainer> trainer(new Trainer(std::move(run)));
    ASSIGN_OR_RETURN(trainer->weights_, trainer->run_->Noise(model.model_bytes));
    const std::byte* at = trainer->weights_->bytes().data();
    const std::vector<TensorSpec> tensors = ModelTensors(model.model_bytes);
    for (const TensorSpec& tensor : tensors) {
      RETURN_IF_ERROR(trainer->source_.Add(0, {.tensor = tensor, .box = Box::Whole(tensor.shape), .data = at}));
      at += tensor.shape[0] * tensor.shape[1] * 2;
    }
    trainer->source_.LieOn(std::make_shared<WeightDevice>(trainer->run_->device(), trainer->run_->kernels()));
    ASSIGN_OR_RETURN(trainer->plan_, MakePlan(trainer->source_.layout(), PlainLayout(tensors), PlanOptionsOf(model)));
    trainer->packer_.emplace(trainer->plan_, trainer->source_);
    return trainer;
  }

  Result<SentAll> Send(const SendOrder& order) {
    if (order.connection != connection_) RETURN_IF_ERROR(Dial(order));
    SendPipeline pipeline(*packer_, routes_, SessionId{order.session}, Soon(), /*pacer=*/nullptr, [] {});
    pipeline.SendAll();
    RETURN_IF_ERROR(pipeline.Finish());
    SentAll sent{.wire_bytes = pipeline.wire_bytes()};
    const std::vector<TensorDigest> totals = pipeline.Totals();
    sent.tensors = totals.size();
    std::ranges::copy(totals, sent.totals.begin());
    return sent;
  }

 private:
  explicit Trainer(std::unique_ptr<GpuRun> run) : run_(std::move(run)), dialer_(run_->device()) {}
  Status Dial(const SendOrder& order) {
    routes_.clear();
    for (const Route& route : plan_.routes) {
      ASSIGN_OR_RETURN(auto sender, dialer_.Dial({TransportKind::kCudaIpc, order.address.data()},
                                                 {.connection = order.connection,
                                                  .route = route,
                                                  .frame_bytes = order.frame_bytes,
                                                  .credits = order.credits},
                                                 Soon()));
      routes_.push_back(std::move(sender));
    }
    connection_ = order.connection;
    return OkStatus();
  }

  const std::unique_ptr<GpuRun> run_;
  std::unique_ptr<DeviceBuffer> weights_;
  TensorSource source_{/*trainer_ranks=*/1};
  Plan plan_;
  std::optional<BucketPacker> packer_;
  CudaIpcDialer dialer_;
  std::uint64_t connection_ = 0;
  std::vector<std::unique_ptr<BucketSender>> routes_;
};

// In the engine's process: one session of the trainer.
class RemoteSession final : public TeamSession {
 public:
  RemoteSession(PeerLink& link, const SendOrder& order, Deadline deadline, std::function<void()> on_change)
      : link_(link), order_(order), deadline_(deadline), on_change_(std::move(on_change)) {}
  ~RemoteSession() override { thread_.Join(); }

  void SendAll() override {
    thread_ = Worker("remote-trainer", [this](std::stop_token) {
      Result<SentAll> sent = SendPod(link_, order_).ok() ? ReceivePod<SentAll>(link_, deadline_)
                                                         : Result<SentAll>(Status::Unavailable("peer_lost"));
      if (sent.ok()) {
        sent_ = *sent;
      } else {
        failure_ = sent.status();
      }
      finished_ = true;
      on_change_();
    });
  }
  // A benchmark in which buckets get lost measures nothing.
  void SendAgain(std::span<const std::uint32_t>) override { failure_ = Status::Internal("buckets_missing"); }
  void Fetch(std::uint32_t, std::uint32_t) override {}
  void EndFetching() override {}
  bool finished() const override { return finished_; }
  bool failed() const override { return finished_ && !failure_.ok(); }
  Status failure() const override { return failure_; }
  std::string Unfinished() const override { return finished_ ? "" : "the trainer's process"; }
  void End(const Status&) override {}
  void AddTotals(std::span<TensorDigest> totals) const override {
    for (std::size_t t = 0; t < totals.size() && t < sent_.tensors; ++t) totals[t] += sent_.totals[t];
  }
  std::int64_t wire_bytes() const override { return sent_.wire_bytes; }

 private:
  PeerLink& link_;
  const SendOrder order_;
  const Deadline deadline_;
  const std::function<void()> on_change_;
  SentAll sent_;    // before `finished_`
  Status failure_;  // likewise
  std::atomic<bool> finished_ = false;
  Worker thread_;
};

}  // namespace

PlanOptions PlanOptionsOf(const RemoteModel& model) { return {.bucket_bytes = model.bucket_bytes}; }

Status RunRemoteTrainer(PeerLink& link) {
  // Whoever starts this may look at other things first.
  ASSIGN_OR_RETURN(const RemoteModel model, ReceivePod<RemoteModel>(link, Deadline::At(TimePoint::max())));
  ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer, Trainer::Create(model));
  RETURN_IF_ERROR(SendPod(link, model));
  while (true) {
    const Result<SendOrder> order = ReceivePod<SendOrder>(link, Deadline::At(TimePoint::max()));
    if (order.status().reason() == "peer_lost") return OkStatus();
    RETURN_IF_ERROR(order.status());
    ASSIGN_OR_RETURN(const SentAll sent, trainer->Send(*order));
    RETURN_IF_ERROR(SendPod(link, sent));
  }
}

Status BeginRemoteTrainer(PeerLink& link, const RemoteModel& model) {
  RETURN_IF_ERROR(SendPod(link, model));
  return ReceivePod<RemoteModel>(link, Soon()).status();
}

Result<std::vector<TransportEndpoint>> RemoteTeam::Agree(const TeamConnection& connection,
                                                         const std::vector<TransportEndpoint>& endpoints,
                                                         Deadline /*deadline*/, const std::stop_token& /*stop*/) {
  CHECK(connection.plan.tensors.size() <= kTensorsMax);
  return endpoints;
}

std::unique_ptr<TeamSession> RemoteTeam::Begin(const Plan& /*plan*/, const TeamSessionTerms& terms,
                                               std::function<void()> on_change) {
  SendOrder order{.session = terms.session.value,
                  .connection = terms.connection,
                  .frame_bytes = terms.frame_bytes,
                  .credits = terms.credits};
  CHECK(terms.endpoint.address.size() < order.address.size());
  std::ranges::copy(terms.endpoint.address, order.address.begin());
  return std::make_unique<RemoteSession>(link_, order, terms.deadline, std::move(on_change));
}

}  // namespace bascule
