// The decision for a version that is known already: only the same bytes are that version.
//
// Thread-safety: confined to the session's thread.
#pragma once

#include <functional>
#include <optional>
#include <utility>

#include "bridge/send/flip_decider.h"

namespace bascule {

class DecidedVersion final : public FlipDecider {
 public:
  using WriteDown = std::function<Status(const WeightVersion&)>;
  // Without a digest any bytes are. `write_down`, if there is one, has to succeed before the replica flips.
  explicit DecidedVersion(WeightVersion decided, WriteDown write_down = {})
      : decided_(std::move(decided)), write_down_(std::move(write_down)) {}

  void Ready(const WeightVersion& version, std::function<void()> wake) override {
    if (!decided_.digest.IsZero() && version != decided_) {
      decision_ = Status::DataLoss("digest_mismatch",
                                   fmt::format("{} has digest {}, the source now gives {}", decided_.ToString(),
                                               decided_.digest.ToHex(), version.digest.ToHex()));
    } else if (write_down_) {
      decision_ = write_down_(version);
    }
    wake();
  }
  std::optional<Status> decision() const override { return decision_; }
  std::optional<Status> Withdraw(const Status& /*why*/) override { return decision_; }

 private:
  const WeightVersion decided_;
  const WriteDown write_down_;
  Status decision_;
};

}  // namespace bascule
