#include "engine_side/version_ledger.h"

namespace bascule {
namespace {

constexpr std::size_t kNumbersPerRun = 10'000;

}  // namespace

Status VersionLedger::Check(const ManifestOffer& offer, const std::string& live_run) const {
  // A publisher may say that a run starts because it has not heard that another has started it.
  const bool starts = offer.new_run && offer.run != live_run;
  if (starts || live_run.empty()) return OkStatus();
  if (offer.run != live_run && offer.run != last_run_) {
    return Status::FailedPrecondition(
        "unknown_run",
        fmt::format("run \"{}\" is not the live run \"{}\"; a new run has to say so", offer.run, live_run));
  }
  const auto found = committed_.find(offer.run);
  if (found == committed_.end() || offer.number > found->second.rbegin()->first) return OkStatus();
  const std::uint64_t highest = found->second.rbegin()->first;
  if (found->second.contains(offer.number)) {
    return Status::FailedPrecondition("version_reused", fmt::format("run \"{}\" committed number {} before; highest={}",
                                                                    offer.run, offer.number, highest));
  }
  return Status::FailedPrecondition("stale_version",
                                    fmt::format("run \"{}\": number={} highest={}", offer.run, offer.number, highest));
}

Status VersionLedger::CheckDigest(const ManifestOffer& offer, const Hash256& digest,
                                  const std::string& live_run) const {
  if (!live_run.empty() || offer.run != last_run_) return OkStatus();  // Check has seen to it, or the run starts
  const std::map<std::uint64_t, Hash256>& numbers = committed_.at(last_run_);
  const auto found = numbers.find(offer.number);
  if (found == numbers.end() || found->second == digest) return OkStatus();
  return Status::FailedPrecondition(
      "version_reused", fmt::format("run \"{}\" committed number {} before, with digest {}, not {}", offer.run,
                                    offer.number, found->second.ToHex(), digest.ToHex()));
}

void VersionLedger::Commit(const ManifestOffer& offer, const Hash256& digest, bool was_live) {
  std::map<std::uint64_t, Hash256>& numbers = committed_[offer.run];
  if (offer.new_run && (was_live || offer.run != last_run_)) numbers.clear();
  numbers[offer.number] = digest;
  if (numbers.size() > kNumbersPerRun) numbers.erase(numbers.begin());
  last_run_ = offer.run;
}

std::uint64_t VersionLedger::Highest(const std::string& run) const {
  const auto found = committed_.find(run.empty() ? last_run_ : run);
  return found == committed_.end() ? 0 : found->second.rbegin()->first;
}

}  // namespace bascule
