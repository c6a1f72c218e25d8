// At most so many calls of one kind at a time: each has a thread of the server's and memory until it ends.
//
// Thread-safety: thread-safe.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <string_view>

#include "base/status.h"

namespace bascule {

class CallLimit {
 public:
  explicit CallLimit(int most) : most_(most) {}

  // Of one call, from its beginning to its end.
  class Place {
   public:
    explicit Place(CallLimit& limit) : limit_(limit), taken_(++limit.calls_ <= limit.most_) {}
    ~Place() { --limit_.calls_; }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    // ResourceExhausted `reason`  there was none left
    Status Taken(std::string_view reason = "too_many_callers") const {
      if (taken_) return OkStatus();
      return Status::ResourceExhausted(reason, fmt::format("{} such calls are being answered already", limit_.most_));
    }

   private:
    CallLimit& limit_;
    const bool taken_;
  };

 private:
  const int most_;
  std::atomic<int> calls_{0};
};

}  // namespace bascule
