// The VersionStatus service of a publisher: what it last published and how its replicas fare.
//
// Thread-safety: thread-safe.
#pragma once

#include <memory>

#include "trainer_side/weight_publisher.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace bascule {

class PublisherVersionStatusService {
 public:
  // `publisher` is borrowed.
  explicit PublisherVersionStatusService(WeightPublisher& publisher);
  // No call is running: the server has shut down.
  ~PublisherVersionStatusService();

  // For the server that serves it.
  grpc::Service& service();
  // Ends every WatchStatus stream soon, so that a server can shut down.
  void Stop();

 private:
  class Service;
  std::unique_ptr<Service> service_;
};

}  // namespace bascule
