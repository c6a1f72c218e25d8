#include "benchmarks/sync_engine.h"

#include <unistd.h>

#include "bridge/transport/shm/listener.h"
#include "bridge/transport/shm/runtime_directory.h"
#include "model/engine_layout.h"

namespace bascule {
namespace {

constexpr Duration kStartPatience = std::chrono::minutes(2);  // the slots are prefaulted

}  // namespace

Result<std::unique_ptr<SyncEngine>> SyncEngine::Create(const ModelConfig& config, TransportKind kind,
                                                       const std::vector<grpc::Service*>& extra) {
  std::unique_ptr<SyncEngine> engine(new SyncEngine());
  std::vector<grpc::Service*> services = extra;
  CHECK(kind == TransportKind::kShm);
  ASSIGN_OR_RETURN(engine->listener_,
                   ShmListener::Create(fmt::format("{}/benchmark-{}", DefaultRuntimeDirectory(), getpid())));
  ASSIGN_OR_RETURN(EngineLayout layout, MakeEngineLayout(config, DType::kBf16));
  ASSIGN_OR_RETURN(engine->receiver_, WeightReceiver::Create({.model = config.Description(),
                                                              .layout = std::move(layout.layout),
                                                              .listeners = {engine->listener_.get()}},
                                                             engine->hooks_));
  engine->control_ = std::make_unique<GrpcControlService>(
      [receiver = engine->receiver_.get()](ControlChannel& channel) { static_cast<void>(receiver->Serve(channel)); });
  services.push_back(engine->control_->service());
  ASSIGN_OR_RETURN(engine->server_, GrpcServer::Start("127.0.0.1:0", services));
  return engine;
}

SyncEngine::~SyncEngine() {
  receiver_.reset();  // ends the calls that the server still serves
  server_.reset();
}

Result<RemoteEngine> StartSyncEngine(const ModelConfig& config, TransportKind kind,
                                     const std::function<std::vector<grpc::Service*>()>& make_extra) {
  RemoteEngine engine;
  ASSIGN_OR_RETURN(engine.process, PeerProcess::Start([&](PeerLink& link) -> Status {
                     const std::vector<grpc::Service*> extra =
                         make_extra ? make_extra() : std::vector<grpc::Service*>{};
                     ASSIGN_OR_RETURN(const auto here, SyncEngine::Create(config, kind, extra));
                     RETURN_IF_ERROR(link.Send(here->address()));
                     link.AwaitEnd();
                     return OkStatus();
                   }));
  ASSIGN_OR_RETURN(engine.address, engine.process->link().Receive(Deadline::After(Clock::Real(), kStartPatience)));
  return engine;
}

}  // namespace bascule
