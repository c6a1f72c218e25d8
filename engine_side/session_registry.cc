#include "engine_side/session_registry.h"

#include "engine_side/receive_session.h"

namespace bascule {
namespace {

// A takeover is an operator's act: more than this many publishers are not fenced at once.
constexpr std::size_t kFencedPublishers = 256;

}  // namespace

Status SessionRegistry::CheckNumber(const Offer& offer) const {
  MutexLock lock(mu_);
  return CheckNumberLocked(offer);
}

Status SessionRegistry::CheckDigest(const ManifestOffer& offer, const Hash256& digest) const {
  MutexLock lock(mu_);
  const std::optional<WeightVersion> live = slots_.live();
  return ledger_.CheckDigest(offer, digest, live ? live->run : std::string());
}

Status SessionRegistry::CheckNumberLocked(const Offer& offer) const {
  const std::optional<WeightVersion> live = slots_.live();
  if (offer.first && live) {
    return Status::FailedPrecondition("already_live", fmt::format("{} came first", live->ToString()));
  }
  return ledger_.Check(offer.manifest, live ? live->run : std::string());
}

Status SessionRegistry::CheckTurn(const ReceiveSession& session) const {
  const SessionTerms& terms = session.terms();
  const auto fenced = fenced_terms_.find(terms.publisher);
  if (fenced != fenced_terms_.end() && terms.offer.term <= fenced->second && !terms.offer.take_over) {
    return Status::Aborted(
        "fenced", fmt::format("publisher {} was taken over in term {}", terms.publisher.ToString(), fenced->second));
  }
  if (open_ == nullptr) return OkStatus();
  const SessionTerms& holder = open_->terms();
  if (holder.publisher == terms.publisher) {
    if (terms.offer.term >= holder.offer.term) return OkStatus();
    return Status::Aborted("fenced", fmt::format("term={} open={}", terms.offer.term, holder.offer.term));
  }
  if (terms.offer.take_over) return OkStatus();
  return Status::Unavailable(
      "publisher_busy",
      fmt::format("publisher {} sends {}@{} in session {}, open for {:.0f} ms", holder.publisher.ToString(),
                  holder.offer.manifest.run, holder.offer.manifest.number, holder.offer.session.ToString(),
                  MsOf(clock_.Now() - opened_at_)));
}

Status SessionRegistry::Open(const std::shared_ptr<ReceiveSession>& session) {
  while (true) {
    std::shared_ptr<ReceiveSession> older;
    {
      MutexLock lock(mu_);
      RETURN_IF_ERROR(AwaitClosed(session->terms().deadline));
      RETURN_IF_ERROR(CheckNumberLocked(session->terms().offer));
      RETURN_IF_ERROR(CheckTurn(*session));
      if (open_ == nullptr) {
        open_ = session;
        opened_at_ = clock_.Now();
        return OkStatus();
      }
      older = open_;
    }
    const Status why = Status::Aborted(
        "fenced", fmt::format("session {} of publisher {} replaces it", session->terms().offer.session.ToString(),
                              session->terms().publisher.ToString()));
    if (!older->End(SessionEvent::kFenced, why)) {
      return Status::FailedPrecondition("flip_in_progress", "the open session flips at this moment");
    }
    if (older->terms().publisher != session->terms().publisher) {
      Fence(older->terms().publisher, older->terms().offer.term);
    }
  }
}

// Whoever saw in the status that a session is over may come at once: no reason to be refused.
Status SessionRegistry::AwaitClosed(Deadline deadline) {
  while (open_ != nullptr && open_->ended()) {
    if (clock_.WaitUntil(closed_, mu_, deadline.point()) || open_ == nullptr || !open_->ended()) continue;
    return Status::Unavailable("publisher_busy", "the session before has ended but cannot tell its publisher");
  }
  return OkStatus();
}

void SessionRegistry::Close(const ReceiveSession& session) {
  std::shared_ptr<ReceiveSession> closed;  // let go outside the lock
  MutexLock lock(mu_);
  if (open_.get() != &session) return;
  closed = std::move(open_);
  closed_.NotifyAll();
}

void SessionRegistry::Fence(InstanceId publisher, std::uint64_t term) {
  MutexLock lock(mu_);
  fenced_terms_[publisher] = term;
  if (fenced_terms_.size() > kFencedPublishers) fenced_terms_.erase(fenced_terms_.begin());
}

void SessionRegistry::Committed(const ManifestOffer& offer, const Hash256& digest, bool was_live) {
  MutexLock lock(mu_);
  ledger_.Commit(offer, digest, was_live);
}

std::uint64_t SessionRegistry::HighestNumber(const std::string& run) const {
  MutexLock lock(mu_);
  return ledger_.Highest(run);
}

}  // namespace bascule
