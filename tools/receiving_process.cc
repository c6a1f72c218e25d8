#include "tools/receiving_process.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "base/grpc/grpc_server.h"
#include "base/ids.h"
#include "base/log.h"
#include "base/worker.h"
#include "bridge/send/publish_session.h"
#include "bridge/session/grpc/grpc_control.h"
#include "bridge/session/loopback/loopback_control.h"
#include "bridge/transport/cuda_ipc/listener.h"
#include "bridge/transport/grpc/dialer.h"
#include "bridge/transport/grpc/listener.h"
#include "bridge/transport/loopback/dialer.h"
#include "bridge/transport/loopback/listener.h"
#include "bridge/transport/nccl/listener.h"
#include "bridge/transport/shm/dialer.h"
#include "bridge/transport/shm/listener.h"
#include "bridge/transport/shm/runtime_directory.h"
#include "engine_side/grpc/peer_source_service.h"
#include "engine_side/grpc/version_load_service.h"
#include "engine_side/peer_sender.h"
#include "tools/engine_cut.h"

namespace bascule {
namespace {

// The receiver's name in its own process, where the cold start calls it.
constexpr char kSelf[] = "self";
constexpr Duration kStopGrace = std::chrono::seconds(2);
constexpr Duration kHealthLook = std::chrono::milliseconds(200);  // between looks whether the process stops

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

}  // namespace

// The ways to another engine.
struct PeerDialers {
  explicit PeerDialers(const ClientSecurity& security) : control(security), grpc(security) {}
  GrpcControlDialer control;
  ShmDialer shm;
  GrpcDialer grpc;
};

// In the order in which they are made; each may use those before it, and they go the other way.
struct ReceivingProcess::Parts {
  ServerSecurity security;
  std::string listen;
  std::string model;
  ArtifactFingerprint fingerprint;
  std::vector<QuantizationFamily> families;
  ReadOptions read;
  std::vector<std::shared_ptr<const AllowedRoot>> roots;  // shared with the directories that are being read
  LoopbackControl own_control;
  LoopbackNetwork own_network;
  std::unique_ptr<LoopbackListener> own_listener;
  std::unique_ptr<CudaIpcListener> cuda_ipc_listener;  // null where slots lie on the host
  std::unique_ptr<ShmListener> shm_listener;
  std::unique_ptr<GrpcListener> grpc_listener;
  std::unique_ptr<NcclListener> nccl_listener;  // null where slots lie on the host, or NCCL is not there
  std::unique_ptr<WeightReceiver> receiver;
  std::unique_ptr<LoopbackControl::Listener> own_calls;
  std::unique_ptr<GrpcControlService> control;
  std::unique_ptr<EngineVersionStatusService> status;
  std::unique_ptr<VersionLoadService> load;
  std::unique_ptr<PeerDialers> peers;
  std::unique_ptr<PeerSourceService> peer_source;
  std::unique_ptr<GrpcServer> server;
  Worker health;

  Status OpenRoots(const ReceivingOptions& options);
  Status MakeListeners(const std::vector<Device*>& devices);
  // To publishers, best first; and this process's own.
  std::vector<TransportListener*> Offered(std::optional<TransportKind> only) const;
  Status MakeReceiver(const ReceivingOptions& wanted, EngineLayout layout, EngineHooks& hooks,
                      StagingThrottle* throttle);
  // The way of every version whose bytes this process reads itself.
  SendReport Stage(const LogicalCheckpoint& checkpoint, VersionOffer offer, PlanOptions plan, Deadline deadline,
                   std::stop_token stop);
  Result<VersionOffer> OfferOfRequest(const VersionLoadRequest& request, const LogicalCheckpoint& checkpoint) const;
  SendReport LoadFromDisk(const VersionLoadRequest& request, Deadline deadline, std::stop_token stop);
  SendReport SendToPeer(const PeerRequest& request, Deadline deadline, std::stop_token stop);
  // A replica that is not ready is out of rotation: its health says so.
  void ShowHealth(const std::stop_token& stop);
  ~Parts();
};

Status ReceivingProcess::Parts::OpenRoots(const ReceivingOptions& options) {
  read = options.read;
  for (const std::string& path : options.allow_roots) {
    ASSIGN_OR_RETURN(auto root, AllowedRoot::Open(path));
    roots.push_back(std::move(root));
  }
  return OkStatus();
}

Status ReceivingProcess::Parts::MakeListeners(const std::vector<Device*>& devices) {
  ASSIGN_OR_RETURN(own_listener, LoopbackListener::Create(own_network, kSelf));
  const std::string socket = fmt::format("{}/engine-{}", DefaultRuntimeDirectory(), InstanceId::Mint().ToString());
  Result<std::unique_ptr<ShmListener>> shm = ShmListener::Create(socket + ".sock");
  if (!shm.ok()) return shm.status().WithContext("shared memory's socket, which lies where XDG_RUNTIME_DIR says");
  shm_listener = *std::move(shm);
  grpc_listener = std::make_unique<GrpcListener>();
  if (devices.empty()) return OkStatus();
  ASSIGN_OR_RETURN(cuda_ipc_listener, CudaIpcListener::Create(socket + "-gpu.sock", devices));
  const Result<Communicators*> communicators = LoadCommunicators();
  if (communicators.ok()) {
    nccl_listener = std::make_unique<NcclListener>(devices, **communicators, *grpc_listener);
  } else {
    LogInfo("nccl_not_offered", "why=\"{}\"", communicators.status().ToString());
  }
  return OkStatus();
}

Status ReceivingProcess::Parts::MakeReceiver(const ReceivingOptions& wanted, EngineLayout layout, EngineHooks& hooks,
                                             StagingThrottle* throttle) {
  WeightReceiverOptions options;
  options.model = model;
  options.layout = std::move(layout.layout);
  options.families = families = std::move(layout.families);
  options.memory = wanted.slot_memory;
  options.slot_count = wanted.slot_count;
  options.flip = wanted.flip;
  options.stall_budget = wanted.stall_budget;
  options.staging.cores = wanted.staging_cores;
  options.staging.throttle = throttle;
  options.full_tensors_only = wanted.full_tensors;
  options.devices = wanted.devices;
  options.listeners = Offered(wanted.transport);
  ASSIGN_OR_RETURN(receiver, WeightReceiver::Create(std::move(options), hooks));
  const auto serve = [this](ControlChannel& channel) { static_cast<void>(receiver->Serve(channel)); };
  ASSIGN_OR_RETURN(own_calls, own_control.Listen(kSelf, serve));
  control = std::make_unique<GrpcControlService>(serve);
  return OkStatus();
}

std::vector<TransportListener*> ReceivingProcess::Parts::Offered(std::optional<TransportKind> only) const {
  std::vector<TransportListener*> offered;
  for (TransportListener* const listener : std::initializer_list<TransportListener*>{
           cuda_ipc_listener.get(), nccl_listener.get(), shm_listener.get(), grpc_listener.get()}) {
    if (listener != nullptr && (!only || listener->endpoint().kind == *only)) offered.push_back(listener);
  }
  offered.push_back(own_listener.get());
  return offered;
}

SendReport ReceivingProcess::Parts::SendToPeer(const PeerRequest& request, Deadline deadline, std::stop_token stop) {
  ConnectionOptions connection;
  connection.address = request.to;
  connection.model = model;
  connection.control = &peers->control;
  connection.transports = {&peers->shm, &peers->grpc};
  return SendLive(*receiver, families, std::move(connection), deadline, std::move(stop), request);
}

void ReceivingProcess::Parts::ShowHealth(const std::stop_token& stop) {
  std::uint64_t seen = 0;
  while (!stop.stop_requested()) {
    const auto mark = receiver->WaitForChange(seen, Deadline::After(Clock::Real(), kHealthLook));
    if (!mark.ok()) continue;
    seen = *mark;
    server->SetServing(receiver->status().Ready());
  }
}

SendReport ReceivingProcess::Parts::Stage(const LogicalCheckpoint& checkpoint, VersionOffer offer, PlanOptions plan,
                                          Deadline deadline, std::stop_token stop) {
  LoopbackDialer dialer(own_network);
  ConnectionOptions connection;
  connection.address = kSelf;
  connection.model = checkpoint.model();
  connection.control = &own_control;
  connection.transports = {&dialer};
  connection.plan = std::move(plan);
  offer.families = families;
  return PublishOnce(checkpoint.source(), std::move(connection), std::move(offer), deadline, std::move(stop));
}

Result<VersionOffer> ReceivingProcess::Parts::OfferOfRequest(const VersionLoadRequest& request,
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
  offer.base = request.base;
  return offer;
}

SendReport ReceivingProcess::Parts::LoadFromDisk(const VersionLoadRequest& request, Deadline deadline,
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
  return Stage(*checkpoint, *std::move(offer), {.ignore = request.ignore, .scope = request.scope}, deadline,
               std::move(stop));
}

ReceivingProcess::Parts::~Parts() {
  if (status != nullptr) status->Stop();
  if (load != nullptr) load->Stop();
  if (peer_source != nullptr) peer_source->Stop();
  health.RequestStop();
  health.Join();
  if (server != nullptr) server->Stop(kStopGrace);
}

Result<ModelCut> CutOf(const LogicalCheckpoint& checkpoint, const ParallelLayout& parallel, WantedDType dtype) {
  if (checkpoint.tensors().empty()) {
    return Status::DataLoss("no_tensors", fmt::format("{} holds no tensor", checkpoint.path()));
  }
  ASSIGN_OR_RETURN(ArtifactFingerprint fingerprint, FingerprintOf(checkpoint, parallel, dtype));
  RETURN_IF_ERROR(CheckFingerprint(checkpoint, fingerprint));
  if (parallel.pipeline != 1) {
    return Status::Unimplemented("unsupported_parallel",
                                 fmt::format("{}: the decoder runs one stage", parallel.ToString()));
  }
  ASSIGN_OR_RETURN(EngineLayout layout, EngineLayoutOf(checkpoint, parallel, dtype));
  RETURN_IF_ERROR(CheckCut(checkpoint, layout.layout));
  return ModelCut{std::move(fingerprint), std::move(layout)};
}

ParallelLayout ParallelWanted(const LogicalCheckpoint& checkpoint, std::optional<int> tensor_parallel) {
  ParallelLayout parallel;
  if (checkpoint.artifact() != nullptr) parallel = ParallelOf(checkpoint.artifact()->manifest().fingerprint);
  if (tensor_parallel) parallel.tensor = *tensor_parallel;
  return parallel;
}

Result<std::unique_ptr<ReceivingProcess>> ReceivingProcess::Create(const ReceivingOptions& options, ModelCut cut,
                                                                   const LogicalCheckpoint& checkpoint,
                                                                   EngineHooks& hooks, StagingThrottle* throttle) {
  auto parts = std::make_unique<Parts>();
  parts->security = options.security;
  parts->listen = options.listen;
  parts->model = checkpoint.model();
  parts->fingerprint = std::move(cut.fingerprint);
  RETURN_IF_ERROR(parts->OpenRoots(options));
  parts->peers = std::make_unique<PeerDialers>(options.peers);
  RETURN_IF_ERROR(parts->MakeListeners(options.devices));
  RETURN_IF_ERROR(parts->MakeReceiver(options, std::move(cut.layout), hooks, throttle));
  return std::unique_ptr<ReceivingProcess>(new ReceivingProcess(std::move(parts)));
}

ReceivingProcess::ReceivingProcess(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

ReceivingProcess::~ReceivingProcess() = default;

Status ReceivingProcess::Serve(std::function<ServingStatus()> serving, std::vector<grpc::Service*> services) {
  Parts& parts = *parts_;
  parts.status = std::make_unique<EngineVersionStatusService>(
      *parts.receiver, VersionStatusOptions{.model = parts.model, .serving = std::move(serving)});
  parts.load = std::make_unique<VersionLoadService>(
      VersionLoadOptions{.load = [&parts](const VersionLoadRequest& request, Deadline deadline, std::stop_token stop) {
        return parts.LoadFromDisk(request, deadline, std::move(stop));
      }});
  parts.peer_source = std::make_unique<PeerSourceService>(
      PeerSourceOptions{.send = [&parts](const PeerRequest& request, Deadline deadline, std::stop_token stop) {
        return parts.SendToPeer(request, deadline, std::move(stop));
      }});
  for (grpc::Service* own : {parts.control->service(), &parts.status->service(), &parts.load->service(),
                             &parts.peer_source->service(), &parts.grpc_listener->service()}) {
    services.push_back(own);
  }
  ASSIGN_OR_RETURN(parts.server, GrpcServer::Start(parts.listen, services, parts.security));
  parts.grpc_listener->SetAddress(parts.server->address());
  parts.health = Worker("health", [&parts](const std::stop_token& stop) { parts.ShowHealth(stop); });
  return OkStatus();
}

const std::string& ReceivingProcess::address() const { return parts_->server->address(); }
WeightReceiver& ReceivingProcess::receiver() { return *parts_->receiver; }
const ArtifactFingerprint& ReceivingProcess::fingerprint() const { return parts_->fingerprint; }

Result<WeightVersion> ReceivingProcess::Load(const LogicalCheckpoint& checkpoint, const std::string& run,
                                             std::uint64_t number, Deadline deadline, std::stop_token stop) {
  ASSIGN_OR_RETURN(VersionOffer offer, OfferOf(checkpoint));
  offer.run = run;
  offer.number = number;
  offer.new_run = true;
  offer.first = true;
  const SendReport report = parts_->Stage(checkpoint, std::move(offer), {}, deadline, std::move(stop));
  RETURN_IF_ERROR(report.status);
  parts_->server->SetServing(parts_->receiver->status().Ready());
  return report.version;
}

}  // namespace bascule
