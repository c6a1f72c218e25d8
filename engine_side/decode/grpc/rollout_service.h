// The Rollout service: generation over gRPC, in tokens. Each stream has a thread of the server that writes what the
// scheduler has made; a bounded queue lies between them, so a slow client holds up nothing but its own stream, and
// loses its requests ("slow_reader") when the queue is full. One that takes nothing loses its stream.
//
// Thread-safety: thread-safe.
#pragma once

#include <chrono>
#include <memory>

#include "base/clock.h"
#include "engine_side/decode/decode_engine.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace bascule {

struct RolloutServiceOptions {
  int max_streams = 512;                              // at once; further ones are refused with "too_many_streams"
  int max_batch = 4096;                               // rollouts of one GenerateBatch; more are a "bad_request"
  Duration write_patience = std::chrono::minutes(1);  // for a client to take a piece; its call is then cancelled
};

class RolloutService {
 public:
  // `engine` is borrowed.
  explicit RolloutService(DecodeEngine& engine, RolloutServiceOptions options = {});
  // No call is running: the server has shut down.
  ~RolloutService();

  // For the server that serves it. DecodeEngine::Stop ends its streams.
  grpc::Service& service();

 private:
  class Service;
  std::unique_ptr<Service> service_;
};

}  // namespace bascule
