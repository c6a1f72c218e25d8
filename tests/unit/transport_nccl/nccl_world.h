// A trainer's device and an engine's, and routes between them that loopback carries, for tests.
#pragma once

#include <memory>

#include "bridge/transport/loopback/dialer.h"
#include "bridge/transport/loopback/listener.h"
#include "bridge/transport/nccl/dialer.h"
#include "bridge/transport/nccl/listener.h"
#include "tests/support/fake_cuda/fake_device.h"
#include "tests/unit/transport_cuda_ipc/device_frames.h"

namespace bascule {

struct NcclWorld {
  Device& trainer = FakeDevice(0);
  Device& engine = FakeDevice(1);
  Communicators& communicators = **LoadCommunicators();
  LoopbackNetwork network;
  std::unique_ptr<LoopbackListener> carrier = LoopbackListener::Create(network, "engine").value();
  LoopbackDialer carrying{network};
  NcclListener listener{{&engine}, communicators, *carrier};
  NcclDialer dialer{trainer, communicators, carrying};
  std::unique_ptr<BucketSender> sender;
  std::unique_ptr<BucketReceiver> receiver;
  std::uint64_t connection = 0;

  // A route of a new connection.
  Status Open() {
    RouteHello hello = kHello;
    hello.connection = ++connection;
    listener.Expect(hello.connection);
    ASSIGN_OR_RETURN(sender, dialer.Dial(listener.endpoint(), hello, Soon()));
    ASSIGN_OR_RETURN(receiver, listener.Accept(hello.connection, hello.route, Soon()));
    listener.Forget(hello.connection);
    return OkStatus();
  }
  void CloseRoute() {
    sender.reset();
    receiver.reset();
  }
};

}  // namespace bascule
