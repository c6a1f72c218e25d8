#include "tools/engine_process.h"

#include <algorithm>
#include <utility>

#include "base/grpc/grpc_server.h"
#include "base/ids.h"
#include "base/worker.h"
#include "bridge/send/publish_session.h"
#include "bridge/session/grpc/grpc_control.h"
#include "bridge/session/loopback/loopback_control.h"
#include "bridge/transport/grpc/dialer.h"
#include "bridge/transport/grpc/listener.h"
#include "bridge/transport/loopback/dialer.h"
#include "bridge/transport/loopback/listener.h"
#include "bridge/transport/shm/dialer.h"
#include "bridge/transport/shm/listener.h"
#include "bridge/transport/shm/runtime_directory.h"
#include "engine_side/decode/decode_engine.h"
#include "engine_side/decode/grpc/rollout_service.h"
#include "engine_side/grpc/peer_source_service.h"
#include "engine_side/grpc/version_load_service.h"
#include "engine_side/grpc/version_status_service.h"
#include "engine_side/peer_sender.h"
#include "engine_side/weight_receiver.h"
#include "tools/engine_cut.h"

namespace bascule {
namespace {

// The engine's name in its own process, where the cold start calls it.
constexpr char kSelf[] = "self";
constexpr std::int32_t kMostStepTokens = 2048;  // activations have memory for so many
constexpr Duration kStopGrace = std::chrono::seconds(2);
constexpr Duration kHealthLook = std::chrono::milliseconds(200);  // between looks whether the engine stops

// Norms and routers are often kept in fp32 beside bf16 weights.
Status CheckEngineTypes(const LogicalCheckpoint& checkpoint, WantedDType wanted) {
  if (checkpoint.tensors().empty()) {
    return Status::DataLoss("no_tensors", fmt::format("{} holds no tensor", checkpoint.path()));
  }
  for (const TensorSpec& tensor : checkpoint.tensors()) {
    const DType stored = StorageDType(tensor, wanted);
    if (stored == DType::kBf16 || stored == DType::kF32) continue;
    return Status::InvalidArgument(
        "unsupported_dtype", fmt::format("{} is {}; the engine runs BF16 and F32", tensor.name, DTypeName(stored)));
  }
  return OkStatus();
}

// An artifact's digests are on record. What the record does not cover is looked at here: padding, which is never sent.
Result<VersionOffer> OfferOf(const LogicalCheckpoint& checkpoint) {
  VersionOffer offer;
  if (checkpoint.artifact() == nullptr) return offer;
  ASSIGN_OR_RETURN(const std::vector<Artifact::Altered> padding, checkpoint.artifact()->AlteredPadding());
  if (!padding.empty()) {
    return Status::DataLoss("artifact_altered", fmt::format("tensor {}: {}", padding[0].tensor, padding[0].why));
  }
  const ArtifactManifest& manifest = checkpoint.artifact()->manifest();
  for (std::size_t t = 0; t < manifest.digests.size(); ++t) {
    offer.recorded[manifest.layout.tensors[t].name] = manifest.digests[t];
  }
  return offer;
}

ServingStatus ServingOf(const DecodeStatus& decode) {
  return {.running = decode.running,
          .waiting = decode.waiting,
          .kv_pages_used = decode.kv_pages_used,
          .kv_pages_total = decode.kv_pages_total,
          .prefix_entries = decode.prefix_entries,
          .kv_policy = std::string(KvPolicyName(decode.kv_policy)),
          .flip_gaps = decode.flip_gaps,
          .staging_share = std::nullopt};
}

}  // namespace

// The ways to another engine.
struct PeerDialers {
  explicit PeerDialers(const ClientSecurity& security) : control(security), grpc(security) {}
  GrpcControlDialer control;
  ShmDialer shm;
  GrpcDialer grpc;
};

// In the order in which they are made; each may use those before it, and they go the other way.
struct EngineProcess::Parts {
  std::string model;
  ArtifactFingerprint fingerprint;
  ReadOptions read;
  std::vector<std::shared_ptr<const AllowedRoot>> roots;  // shared with the directories that are being read
  std::unique_ptr<StagingThrottle> throttle;              // may be null
  std::unique_ptr<DecodeEngine> decode;
  LoopbackControl own_control;
  LoopbackNetwork own_network;
  std::unique_ptr<LoopbackListener> own_listener;
  std::unique_ptr<ShmListener> shm_listener;
  std::unique_ptr<GrpcListener> grpc_listener;
  std::unique_ptr<WeightReceiver> receiver;
  std::unique_ptr<LoopbackControl::Listener> own_calls;
  std::unique_ptr<GrpcControlService> control;
  std::unique_ptr<EngineVersionStatusService> status;
  std::unique_ptr<RolloutService> rollout;
  std::unique_ptr<VersionLoadService> load;
  std::unique_ptr<PeerDialers> peers;
  std::unique_ptr<PeerSourceService> peer_source;
  std::unique_ptr<GrpcServer> server;
  Worker health;

  Status MakeDecoder(const EngineProcessOptions& options, const ModelConfig& config, const EngineLayout& layout);
  Status OpenRoots(const EngineProcessOptions& options);
  Status MakeListeners();
  Status MakeReceiver(const EngineProcessOptions& wanted, Layout layout);
  Status StartServer(const std::string& address, const ServerSecurity& security);
  // The way of every version whose bytes this process reads itself.
  SendReport Stage(const LogicalCheckpoint& checkpoint, VersionOffer offer, std::vector<std::string> ignore,
                   Deadline deadline, std::stop_token stop);
  Result<VersionOffer> OfferOfRequest(const VersionLoadRequest& request, const LogicalCheckpoint& checkpoint) const;
  SendReport LoadFromDisk(const VersionLoadRequest& request, Deadline deadline, std::stop_token stop);
  SendReport SendToPeer(const std::string& to, Deadline deadline, std::stop_token stop);
  // A replica that is not ready is out of rotation: its health says so.
  void ShowHealth(const std::stop_token& stop);
  ~Parts();
};

Status EngineProcess::Parts::MakeDecoder(const EngineProcessOptions& options, const ModelConfig& config,
                                         const EngineLayout& layout) {
  DecodeOptions decode_options;
  decode_options.config = config;
  decode_options.tensors = layout.tensors;
  for (const LocalTensor& tensor : layout.layout.ranks.front().tensors) decode_options.dtypes.push_back(tensor.dtype);
  decode_options.ranks = options.parallel.tensor;
  decode_options.threads = options.threads;
  decode_options.kv_pages = options.kv_pages;
  decode_options.max_running = options.max_running;
  decode_options.max_waiting = options.max_waiting;
  decode_options.kv_policy = options.kv_policy;
  decode_options.drains = options.flip == FlipMode::kShadow;
  // A step has room for every request that decodes, and as much again for prompts.
  decode_options.max_step_tokens =
      std::max(decode_options.max_step_tokens, 2 * std::min(options.max_running, kMostStepTokens / 2));
  decode_options.cores = options.decode_cores;
  if (options.staging_slowdown > 0) {
    throttle = std::make_unique<StagingThrottle>(options.staging_slowdown, Clock::Real());
  }
  decode_options.staging = throttle.get();
  ASSIGN_OR_RETURN(decode, DecodeEngine::Create(std::move(decode_options)));
  return OkStatus();
}

Status EngineProcess::Parts::OpenRoots(const EngineProcessOptions& options) {
  read = options.read;
  for (const std::string& path : options.allow_roots) {
    ASSIGN_OR_RETURN(auto root, AllowedRoot::Open(path));
    roots.push_back(std::move(root));
  }
  return OkStatus();
}

Status EngineProcess::Parts::MakeListeners() {
  ASSIGN_OR_RETURN(own_listener, LoopbackListener::Create(own_network, kSelf));
  const std::string socket = fmt::format("{}/engine-{}.sock", DefaultRuntimeDirectory(), InstanceId::Mint().ToString());
  ASSIGN_OR_RETURN(shm_listener, ShmListener::Create(socket));
  grpc_listener = std::make_unique<GrpcListener>();
  return OkStatus();
}

Status EngineProcess::Parts::MakeReceiver(const EngineProcessOptions& wanted, Layout layout) {
  WeightReceiverOptions options;
  options.model = model;
  options.layout = std::move(layout);
  options.slot_count = wanted.slot_count;
  options.flip = wanted.flip;
  options.stall_budget = wanted.stall_budget;
  options.staging.cores = wanted.staging_cores;
  options.staging.throttle = throttle.get();
  options.full_tensors_only = wanted.full_tensors;
  options.listeners = {shm_listener.get(), grpc_listener.get(), own_listener.get()};
  ASSIGN_OR_RETURN(receiver, WeightReceiver::Create(std::move(options), *decode));
  const auto serve = [this](ControlChannel& channel) { static_cast<void>(receiver->Serve(channel)); };
  ASSIGN_OR_RETURN(own_calls, own_control.Listen(kSelf, serve));
  control = std::make_unique<GrpcControlService>(serve);
  return OkStatus();
}

SendReport EngineProcess::Parts::SendToPeer(const std::string& to, Deadline deadline, std::stop_token stop) {
  ConnectionOptions connection;
  connection.address = to;
  connection.model = model;
  connection.control = &peers->control;
  connection.transports = {&peers->shm, &peers->grpc};
  return SendLive(*receiver, /*families=*/{}, std::move(connection), deadline, std::move(stop));
}

void EngineProcess::Parts::ShowHealth(const std::stop_token& stop) {
  std::uint64_t seen = 0;
  while (!stop.stop_requested()) {
    const auto mark = receiver->WaitForChange(seen, Deadline::After(Clock::Real(), kHealthLook));
    if (!mark.ok()) continue;
    seen = *mark;
    server->SetServing(receiver->status().Ready());
  }
}

Status EngineProcess::Parts::StartServer(const std::string& address, const ServerSecurity& security) {
  status = std::make_unique<EngineVersionStatusService>(
      *receiver, VersionStatusOptions{.model = model, .serving = [this] {
                                        ServingStatus serving = ServingOf(decode->status());
                                        if (throttle != nullptr) serving.staging_share = throttle->share();
                                        return serving;
                                      }});
  rollout = std::make_unique<RolloutService>(*decode);
  load = std::make_unique<VersionLoadService>(
      VersionLoadOptions{.load = [this](const VersionLoadRequest& request, Deadline deadline, std::stop_token stop) {
        return LoadFromDisk(request, deadline, std::move(stop));
      }});
  peer_source = std::make_unique<PeerSourceService>(
      PeerSourceOptions{.send = [this](const std::string& to, Deadline deadline, std::stop_token stop) {
        return SendToPeer(to, deadline, std::move(stop));
      }});
  ASSIGN_OR_RETURN(server, GrpcServer::Start(address,
                                             {control->service(), &status->service(), &rollout->service(),
                                              &load->service(), &peer_source->service(), &grpc_listener->service()},
                                             security));
  grpc_listener->SetAddress(server->address());
  health = Worker("health", [this](const std::stop_token& stop) { ShowHealth(stop); });
  return OkStatus();
}

SendReport EngineProcess::Parts::Stage(const LogicalCheckpoint& checkpoint, VersionOffer offer,
                                       std::vector<std::string> ignore, Deadline deadline, std::stop_token stop) {
  LoopbackDialer dialer(own_network);
  ConnectionOptions connection;
  connection.address = kSelf;
  connection.model = checkpoint.model();
  connection.control = &own_control;
  connection.transports = {&dialer};
  connection.plan.ignore = std::move(ignore);
  return PublishOnce(checkpoint.source(), std::move(connection), std::move(offer), deadline, std::move(stop));
}

Result<VersionOffer> EngineProcess::Parts::OfferOfRequest(const VersionLoadRequest& request,
                                                          const LogicalCheckpoint& checkpoint) const {
  RETURN_IF_ERROR(checkpoint.config().status());  // names alone do not tell which model it is
  RETURN_IF_ERROR(CheckFingerprint(checkpoint, fingerprint));
  RETURN_IF_ERROR(CheckCut(checkpoint, receiver->layout()));
  ASSIGN_OR_RETURN(VersionOffer offer, OfferOf(checkpoint));
  const std::optional<WeightVersion> live = receiver->status().live;
  if (request.run.empty() && !live) return Status::FailedPrecondition("nothing_live", "no version is live; name a run");
  offer.run = request.run.empty() ? live->run : request.run;
  offer.number = request.number;
  offer.new_run = request.new_run;
  return offer;
}

SendReport EngineProcess::Parts::LoadFromDisk(const VersionLoadRequest& request, Deadline deadline,
                                              std::stop_token stop) {
  SendReport report;
  const auto directory = Directory::Beneath(roots, request.path);
  report.status = directory.status();
  if (!report.status.ok()) return report;
  const auto checkpoint = LogicalCheckpoint::Open(*directory, read);
  report.status = checkpoint.status();
  if (!report.status.ok()) return report;
  auto offer = OfferOfRequest(request, *checkpoint);
  report.status = offer.status();
  if (!report.status.ok()) return report;
  return Stage(*checkpoint, *std::move(offer), request.ignore, deadline, std::move(stop));
}

EngineProcess::Parts::~Parts() {
  if (decode != nullptr) decode->Stop();
  if (status != nullptr) status->Stop();
  if (load != nullptr) load->Stop();
  if (peer_source != nullptr) peer_source->Stop();
  health.RequestStop();
  health.Join();
  if (server != nullptr) server->Stop(kStopGrace);
}

Result<std::unique_ptr<EngineProcess>> EngineProcess::Start(const EngineProcessOptions& options,
                                                            const LogicalCheckpoint& checkpoint) {
  RETURN_IF_ERROR(checkpoint.config().status());
  RETURN_IF_ERROR(CheckDecodable(*checkpoint.config()));
  const ModelConfig& config = *checkpoint.config();
  RETURN_IF_ERROR(CheckEngineTypes(checkpoint, options.dtype));
  ASSIGN_OR_RETURN(const ArtifactFingerprint fingerprint, FingerprintOf(checkpoint, options.parallel, options.dtype));
  RETURN_IF_ERROR(CheckFingerprint(checkpoint, fingerprint));
  if (options.parallel.pipeline != 1) {
    return Status::Unimplemented("unsupported_parallel",
                                 fmt::format("{}: the decoder runs one stage", options.parallel.ToString()));
  }
  ASSIGN_OR_RETURN(EngineLayout layout, EngineLayoutOf(checkpoint, options.parallel, options.dtype));
  RETURN_IF_ERROR(CheckCut(checkpoint, layout.layout));
  auto parts = std::make_unique<Parts>();
  parts->model = checkpoint.model();
  parts->fingerprint = fingerprint;
  RETURN_IF_ERROR(parts->OpenRoots(options));
  RETURN_IF_ERROR(parts->MakeDecoder(options, config, layout));
  parts->peers = std::make_unique<PeerDialers>(options.peers);
  RETURN_IF_ERROR(parts->MakeListeners());
  RETURN_IF_ERROR(parts->MakeReceiver(options, std::move(layout.layout)));
  RETURN_IF_ERROR(parts->StartServer(options.listen, options.security));
  parts->decode->Start([receiver = parts->receiver.get()] { return receiver->AcquireLive(); });
  return std::unique_ptr<EngineProcess>(new EngineProcess(std::move(parts)));
}

EngineProcess::EngineProcess(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

EngineProcess::~EngineProcess() = default;

const std::string& EngineProcess::address() const { return parts_->server->address(); }
WeightReceiver& EngineProcess::receiver() { return *parts_->receiver; }

Result<WeightVersion> EngineProcess::Load(const LogicalCheckpoint& checkpoint, const std::string& run,
                                          std::uint64_t number, Deadline deadline, std::stop_token stop) {
  ASSIGN_OR_RETURN(VersionOffer offer, OfferOf(checkpoint));
  offer.run = run;
  offer.number = number;
  offer.new_run = true;
  const SendReport report = parts_->Stage(checkpoint, std::move(offer), {}, deadline, std::move(stop));
  RETURN_IF_ERROR(report.status);
  parts_->server->SetServing(parts_->receiver->status().Ready());
  return report.version;
}

}  // namespace bascule
