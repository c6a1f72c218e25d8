// An engine that is not ours in forty lines: WeightReceiver with hooks, a control port, a shared-memory transport.
//
//   two_processes_engine SOCKET      prints "listening on ADDRESS", then a line for every version that goes live
#include <fmt/core.h>

#include <cstdio>
#include <memory>

#include "base/grpc/grpc_server.h"
#include "bridge/session/grpc/grpc_control.h"
#include "bridge/transport/shm/listener.h"
#include "engine_side/weight_receiver.h"
#include "examples/02_two_processes/model.h"

namespace {

using namespace bascule;

Status Run(const std::string& socket_path) {
  IdleHooks hooks;  // nothing decodes here: every moment is a safe point
  ASSIGN_OR_RETURN(const std::unique_ptr<ShmListener> listener, ShmListener::Create(socket_path));
  WeightReceiverOptions options;
  options.layout = PlainLayout({ExampleTensor(DType::kBf16)});
  options.listeners = {listener.get()};
  ASSIGN_OR_RETURN(const std::unique_ptr<WeightReceiver> receiver, WeightReceiver::Create(options, hooks));
  GrpcControlService control([&](ControlChannel& channel) { (void)receiver->Serve(channel); });
  ASSIGN_OR_RETURN(const std::unique_ptr<GrpcServer> server, GrpcServer::Start("127.0.0.1:0", {control.service()}));
  fmt::print("listening on {}\n", server->address());
  std::fflush(stdout);

  std::uint64_t seen = 0;
  std::size_t told = 0;
  for (;;) {  // until it is killed
    const Result<std::uint64_t> change =
        receiver->WaitForChange(seen, Deadline::After(Clock::Real(), std::chrono::hours(1)));
    if (change.ok()) seen = *change;
    const std::vector<HistoryEntry> history = receiver->History();
    for (; told < history.size(); ++told) {
      const HistoryEntry& entry = history[told];
      fmt::print("engine: version {} {}\n", entry.version.number,
                 entry.committed ? fmt::format("is live, digest {}...", entry.version.digest.ToHex().substr(0, 12))
                                 : fmt::format("was aborted ({}), still serving {}", entry.why.reason(),
                                               receiver->status().live ? receiver->status().live->ToString() : "none"));
    }
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: two_processes_engine SOCKET\n");
    return 2;
  }
  const Status status = Run(argv[1]);
  fmt::print(stderr, "engine: {}\n", status.ToString());
  return 1;
}
