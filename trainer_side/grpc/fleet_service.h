// The Fleet service of a publisher: takes replicas in and lets them go.
//
// Thread-safety: thread-safe.
#pragma once

#include <memory>

#include "trainer_side/weight_publisher.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace bascule {

class FleetService {
 public:
  // `publisher` is borrowed.
  explicit FleetService(WeightPublisher& publisher);
  // No call is running: the server has shut down.
  ~FleetService();

  // For the server that serves it.
  grpc::Service& service();

 private:
  class Service;
  std::unique_ptr<Service> service_;
};

}  // namespace bascule
