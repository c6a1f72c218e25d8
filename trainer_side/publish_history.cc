#include "trainer_side/publish_history.h"

#include <utility>

#include "base/error_text.h"

namespace bascule {

void PublishHistory::Add(PublishReport report) {
  for (ReplicaReport& replica : report.replicas) replica.status = WithShortText(replica.status, kTextBytes);
  replicas_ += report.replicas.size();
  reports_.push_back(std::move(report));
  while (reports_.size() > kReports || (replicas_ > kReplicas && reports_.size() > 1)) {
    replicas_ -= reports_.front().replicas.size();
    reports_.pop_front();
  }
}

}  // namespace bascule
