// Endpoints whose link failed a short while ago. For as long a dialer takes them for unreachable, so that the next
// attempt of a publish goes over the next transport that both sides have.
//
// Thread-safety: thread-safe.
#pragma once

#include <map>
#include <string>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"

namespace bascule {

class AvoidedEndpoints {
 public:
  explicit AvoidedEndpoints(Clock& clock) : clock_(clock) {}
  // From now on, for a minute. `why` goes to the log.
  void Add(const std::string& address, const Status& why) EXCLUDES(mu_);
  bool Contains(const std::string& address) EXCLUDES(mu_);

 private:
  Clock& clock_;
  Mutex mu_;
  std::map<std::string, Deadline> avoided_ GUARDED_BY(mu_);
};

}  // namespace bascule
