#include "benchmarks/sync_engine.h"

#include <unistd.h>

#include <algorithm>
#include <thread>

#include "bridge/transport/grpc/listener.h"
#include "bridge/transport/shm/listener.h"
#include "bridge/transport/shm/runtime_directory.h"
#include "model/engine_layout.h"

namespace bascule {
namespace {

constexpr Duration kStartPatience = std::chrono::minutes(2);  // slots are prefaulted
constexpr std::int64_t kKvPages = 256;  // of 16 tokens: for every request that benchmarks run at once
constexpr std::string_view kAnyPort = "127.0.0.1:0";

}  // namespace

Result<std::unique_ptr<SyncEngine>> SyncEngine::Create(const ModelConfig& config, TransportKind kind, Decoding decoding,
                                                       int tensor_parallel) {
  std::unique_ptr<SyncEngine> engine(new SyncEngine());
  std::vector<grpc::Service*> services;
  RETURN_IF_ERROR(engine->Listen(kind, services));
  ASSIGN_OR_RETURN(EngineLayout layout, MakeEngineLayout(config, DType::kBf16, {.tensor = tensor_parallel}));
  EngineHooks* hooks = &engine->idle_;
  if (decoding == Decoding::kYes) {
    const int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    ASSIGN_OR_RETURN(engine->decode_, DecodeEngine::Create({.config = config,
                                                            .tensors = layout.tensors,
                                                            .threads = threads,
                                                            .kv_pages = kKvPages,
                                                            .staging = &engine->throttle_}));
    hooks = engine->decode_.get();
  }
  ASSIGN_OR_RETURN(engine->receiver_, WeightReceiver::Create({.model = config.Description(),
                                                              .layout = std::move(layout.layout),
                                                              .staging = {.throttle = &engine->throttle_},
                                                              .listeners = {engine->listener_.get()}},
                                                             *hooks));
  if (engine->decode_) engine->decode_->Start([receiver = engine->receiver_.get()] { return receiver->AcquireLive(); });
  engine->control_ = std::make_unique<GrpcControlService>(
      [receiver = engine->receiver_.get()](ControlChannel& channel) { static_cast<void>(receiver->Serve(channel)); });
  services.push_back(engine->control_->service());
  ASSIGN_OR_RETURN(engine->server_, GrpcServer::Start(std::string(kAnyPort), services));
  if (auto* listener = dynamic_cast<GrpcListener*>(engine->listener_.get())) listener->SetAddress(engine->address());
  return engine;
}

Status SyncEngine::Listen(TransportKind kind, std::vector<grpc::Service*>& services) {
  if (kind == TransportKind::kShm) {
    ASSIGN_OR_RETURN(listener_,
                     ShmListener::Create(fmt::format("{}/benchmark-{}", DefaultRuntimeDirectory(), getpid())));
    return OkStatus();
  }
  if (kind == TransportKind::kGrpc) {
    auto listener = std::make_unique<GrpcListener>();
    services.push_back(&listener->service());
    listener_ = std::move(listener);
    return OkStatus();
  }
  return Status::Unimplemented("transport_unavailable", fmt::format("{} between processes", TransportName(kind)));
}

SyncEngine::~SyncEngine() {
  if (decode_) decode_->Stop();  // gives its leases back
}

Result<RemoteServer> StartServer(const std::function<Status(PeerLink&)>& body) {
  RemoteServer server;
  ASSIGN_OR_RETURN(server.process, PeerProcess::Start(body));
  ASSIGN_OR_RETURN(server.address, server.process->link().Receive(Deadline::After(Clock::Real(), kStartPatience)));
  return server;
}

Result<RemoteServer> StartSyncEngine(const ModelConfig& config, TransportKind kind, int tensor_parallel) {
  return StartServer([&](PeerLink& link) -> Status {
    ASSIGN_OR_RETURN(const auto engine, SyncEngine::Create(config, kind, SyncEngine::Decoding::kNo, tensor_parallel));
    RETURN_IF_ERROR(link.Send(engine->address()));
    link.AwaitEnd();
    return OkStatus();
  });
}

}  // namespace bascule
