// What a gRPC stream can carry at best: plain protobuf messages with a bytes field, as anybody would write it, filled
// from memory at one end, read and thrown away at the other.
//
// Thread-safety: confined to one thread.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/grpc/grpc_server.h"
#include "base/status.h"

namespace bascule {

class BareServer {
 public:
  // What GrpcServer::Start can fail with.
  static Result<std::unique_ptr<BareServer>> Start();
  ~BareServer();
  const std::string& address() const;

 private:
  class Impl;
  explicit BareServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

class BareStream {
 public:
  // InvalidArgument "bad_address"
  static Result<std::unique_ptr<BareStream>> Open(const std::string& address);
  ~BareStream();

  // Sends `source` in messages of `message_bytes` and waits until the other end has read all of them.
  //
  // Unavailable "peer_lost"
  Status Send(std::span<const std::byte> source, std::size_t message_bytes);

 private:
  class Impl;
  explicit BareStream(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace bascule
