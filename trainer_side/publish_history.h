// What a publisher has published, oldest first; the newest reports are kept.
//
// Thread-safety: thread-compatible.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "trainer_side/weight_publisher.h"

namespace bascule {

class PublishHistory {
 public:
  static constexpr std::size_t kReports = 10'000;
  static constexpr std::size_t kReplicas = 10'000;  // of all reports together; the newest is kept whatever it has
  static constexpr std::size_t kTextBytes = 1024;   // of each replica's error

  void Add(PublishReport report);
  std::vector<PublishReport> Reports() const { return {reports_.begin(), reports_.end()}; }

 private:
  std::deque<PublishReport> reports_;
  std::size_t replicas_ = 0;  // of these
};

}  // namespace bascule
