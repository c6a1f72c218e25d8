#include "engine_side/adoption.h"

#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "base/mutex.h"
#include "engine_side/receive_session.h"

namespace bascule {
namespace {

// What the session says. Whoever ends a session does so soon: it waits for nobody.
constexpr Duration kLookAgain = std::chrono::seconds(1);

class Answers {
 public:
  explicit Answers(Clock& clock) : clock_(clock) {}

  void Note(const SessionMessage& message) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (std::holds_alternative<Accept>(message)) accepted_ = true;
    if (const Abort* abort = std::get_if<Abort>(&message)) end_ = abort->why;
    if (const Committed* committed = std::get_if<Committed>(&message)) end_ = committed->report;
    changed_.NotifyAll();
  }
  void AwaitAcceptOrEnd() EXCLUDES(mu_) {
    MutexLock lock(mu_);
    while (!accepted_ && !end_) clock_.WaitUntil(changed_, mu_, clock_.Now() + kLookAgain);
  }
  Result<FlipReport> AwaitEnd() EXCLUDES(mu_) {
    MutexLock lock(mu_);
    while (!end_) clock_.WaitUntil(changed_, mu_, clock_.Now() + kLookAgain);
    return *end_;
  }

 private:
  Clock& clock_;
  Mutex mu_;
  CondVar changed_;
  bool accepted_ GUARDED_BY(mu_) = false;
  std::optional<Result<FlipReport>> end_ GUARDED_BY(mu_);
};

Status CheckLent(const ReceiverParts& parts, const LentVersion& version) {
  const Layout& layout = parts.options.layout;
  if (parts.slots.work().OnHost() && parts.options.flip == FlipMode::kInPlace) {
    return Status::FailedPrecondition("slot_read_only",
                                      "lent memory cannot be written, and flips in place write to every slot");
  }
  if (version.digests.size() != layout.tensors.size() || version.memory.ranks.size() != layout.ranks.size()) {
    return Status::InvalidArgument(
        "bad_lent_memory", fmt::format("{} digests for {} tensors, memory of {} ranks of {}", version.digests.size(),
                                       layout.tensors.size(), version.memory.ranks.size(), layout.ranks.size()));
  }
  for (std::size_t r = 0; r < layout.ranks.size(); ++r) {
    const std::int64_t want = WeightSlots::RankBytes(layout.ranks[r]);
    const std::int64_t got = std::ssize(version.memory.ranks[r]->bytes());
    if (got == want) continue;
    return Status::InvalidArgument("bad_lent_memory", fmt::format("rank={} bytes={} want={}", r, got, want));
  }
  return OkStatus();
}

// The plan is the receiver's own layout: every tensor is where it belongs.
SessionTerms TermsOf(const ReceiverParts& parts, const LentVersion& version, std::shared_ptr<const ReceivePlan> plan,
                     Deadline deadline) {
  const std::optional<WeightVersion> live = parts.slots.live();
  Offer offer{.session = SessionId::Mint(), .term = 1, .first = !live};
  offer.manifest.run = version.version.run;
  offer.manifest.number = version.version.number;
  offer.manifest.new_run = !live || live->run != version.version.run;
  offer.manifest.model = parts.options.model;
  for (const std::size_t t : plan->manifest_order) offer.manifest.tensors.push_back(plan->plan.tensors[t]);
  offer.manifest.sender_layout = plan->plan.sender_layout;
  offer.manifest.families = parts.options.families;
  offer.plan_digest = plan->plan.digest;
  offer.time_left = deadline.Left(parts.clock);
  return {InstanceId::Mint(), std::move(offer), std::move(plan), deadline};
}

ManifestSeal SealOf(const LentVersion& version, const ReceivePlan& plan) {
  ManifestSeal seal{.digests = {}, .version_digest = version.version.digest};
  for (const std::size_t t : plan.manifest_order) seal.digests.push_back(version.digests[t]);
  return seal;
}

}  // namespace

Result<FlipReport> AdoptVersion(ReceiverParts& parts, LentVersion version, Deadline deadline, std::stop_token stop) {
  RETURN_IF_ERROR(CheckLent(parts, version));
  ASSIGN_OR_RETURN(const auto plan, parts.plans.PlanFor(PlainLayout(parts.options.layout.tensors), PlanOptions{}));
  SessionTerms terms = TermsOf(parts, version, plan, deadline);
  RETURN_IF_ERROR(CheckOffer(terms.offer.manifest));
  const SessionId id = terms.offer.session;
  Answers answers(parts.clock);
  const auto session = std::make_shared<ReceiveSession>(
      std::move(terms), parts, [&answers](const SessionMessage& message) { answers.Note(message); });
  RETURN_IF_ERROR(parts.registry.Open(session));
  parts.board.Offered(version.version.run, version.version.number);
  const std::stop_callback cancel(std::move(stop), [&session] {
    session->End(SessionEvent::kAbort, Status::Cancelled("cancelled", "the adoption was ended"));
  });
  session->Begin(std::move(version.memory));
  answers.AwaitAcceptOrEnd();
  session->OnLent();
  session->OnSeal(Seal{.session = id, .manifest = SealOf(version, *plan)});
  session->OnFlip(Flip{.session = id});
  Result<FlipReport> end = answers.AwaitEnd();
  while (!session->AwaitOver(Deadline::After(parts.clock, kLookAgain))) continue;
  parts.registry.Close(*session);
  session->AwaitThread();
  return end;
}

}  // namespace bascule
