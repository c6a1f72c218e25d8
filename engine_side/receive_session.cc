#include "engine_side/receive_session.h"

#include "base/log.h"
#include "base/start_worker.h"
#include "bridge/plan/bucket_tensors.h"
#include "engine_side/carry_over.h"
#include "engine_side/lent_copy.h"
#include "kernels/pack.h"

namespace bascule {
namespace {

// Who ends a session waits for threads that copy, digest or zero memory right now: they wait for nobody.
constexpr Duration kLookAgain = std::chrono::seconds(1);

SessionEvent EventOf(const Status& why) {
  return why.code() == StatusCode::kDeadlineExceeded ? SessionEvent::kDeadline : SessionEvent::kAbort;
}

// Where the slices lie that a frame, whose header agrees with the plan, holds itself.
std::vector<BoxView> ViewsInFrame(const ReceivedFrame& frame, const Bucket& bucket) {
  const std::byte* const payload =
      frame.device_payload.empty()
          ? frame.bytes.subspan(static_cast<std::size_t>(PayloadOffset(std::ssize(bucket.slices)))).data()
          : frame.device_payload.data();
  std::vector<BoxView> views;
  views.reserve(bucket.slices.size());
  for (const Slice& slice : bucket.slices) {
    views.push_back({payload + slice.payload_offset, CompactPlace(ShapeOf(slice.engine_box)), nullptr});
  }
  return views;
}

}  // namespace

ReceiveSession::ReceiveSession(SessionTerms terms, ReceiverParts& parts,
                               std::function<void(const SessionMessage&)> send)
    : terms_(std::move(terms)), parts_(parts), send_(std::move(send)), coverage_(terms_.plan->plan.buckets.size()) {
  MutexLock lock(mu_);
  version_.run = terms_.offer.manifest.run;
  version_.number = terms_.offer.manifest.number;
  CHECK(Step(SessionEvent::kOffer));
}

ReceiveSession::~ReceiveSession() { preparer_.Join(); }

bool ReceiveSession::over() const {
  MutexLock lock(mu_);
  return over_;
}

bool ReceiveSession::ended() const {
  MutexLock lock(mu_);
  return IsOver(state_);
}

bool ReceiveSession::AwaitOver(Deadline deadline) {
  MutexLock lock(mu_);
  while (!over_ && parts_.clock.WaitUntil(changed_, mu_, deadline.point())) continue;
  return over_;
}

void ReceiveSession::Begin(std::optional<LentMemory> lent) {
  Status started;
  {
    MutexLock lock(mu_);
    if (state_ != SessionState::kOffered) return;  // a newer session was quicker
    parts_.board.SessionOpened(SessionProgress{.state = state_,
                                               .session = terms_.offer.session,
                                               .version = version_,
                                               .received_bytes = 0,
                                               .total_bytes = terms_.plan->plan.payload_bytes,
                                               .carried_bytes = terms_.plan->carried_bytes});
    lent_ = std::move(lent);
    auto preparer = StartWorker("session", [this](std::stop_token stop) { Prepare(stop); });
    started = preparer.status();
    if (preparer.ok()) {
      ++working_;
      preparer_ = *std::move(preparer);
    }
  }
  if (!started.ok()) End(EventOf(started), started);
}

void ReceiveSession::Prepare(std::stop_token stop) {
  Status status = ReserveAndFill(stop);
  bool accepted = false;
  {
    MutexLock lock(mu_);
    accepted = status.ok() && Step(SessionEvent::kAccept);
    accepted_ = accepted;
    carried_ = accepted && base_.empty();
    accepted_at_ = staged_at_ = parts_.clock.Now();
  }
  if (accepted) send_(Acceptance());
  if (accepted) status = CarryOverBase(stop);
  base_ = {};  // whoever waits for its slot waits no longer
  std::optional<ManifestSeal> seal;
  {
    MutexLock lock(mu_);
    carried_ = carried_ || (accepted && status.ok());
    if (carried_) seal = std::exchange(early_seal_, std::nullopt);
    if (seal) status = Sealed(*seal);
    WorkDone();
  }
  if (!status.ok()) {
    End(EventOf(status), status);
  } else if (seal) {
    Verify(*seal);
  }
}

Status ReceiveSession::ReserveAndFill(std::stop_token stop) {
  const bool shows_lent = lent_ && !CopiesLent();
  ASSIGN_OR_RETURN(const int slot, shows_lent ? parts_.slots.ReserveLent(std::move(lent_->ranks), terms_.deadline, stop)
                                              : parts_.slots.ReserveShadow(terms_.deadline, stop));
  {
    MutexLock lock(mu_);
    slot_ = slot;
  }
  staging_.emplace(*terms_.plan, parts_.slots, slot);
  verifier_.emplace(*terms_.plan, parts_.slots.layout(), staging_->memory(), parts_.slots.work());
  if (shows_lent) return OkStatus();
  RETURN_IF_ERROR(staging_->FillPadding());
  if (!terms_.offer.manifest.base) return OkStatus();
  ASSIGN_OR_RETURN(base_, LeaseBase(parts_.slots, *terms_.offer.manifest.base));
  return OkStatus();
}

Accept ReceiveSession::Acceptance() const {
  Accept accept{terms_.offer.session};
  if (base_.empty()) return accept;
  const std::vector<TensorDigest>& digests = base_.held().totals;
  CHECK(digests.size() == terms_.plan->plan.tensors.size());
  for (const std::size_t tensor : terms_.plan->manifest_order) accept.base.push_back(digests[tensor]);
  return accept;
}

Status ReceiveSession::CarryOverBase(const std::stop_token& stop) {
  if (base_.empty()) return OkStatus();
  RETURN_IF_ERROR(CarryOver({.plan = *terms_.plan,
                             .staging = *staging_,
                             .verifier = *verifier_,
                             .manners = parts_.options.staging,
                             .clock = parts_.clock},
                            base_, stop));
  MutexLock lock(mu_);
  staged_at_ = parts_.clock.Now();
  return OkStatus();
}

void ReceiveSession::OnLent() {
  {
    MutexLock lock(mu_);
    if (state_ != SessionState::kReceiving) return;
    ++working_;
  }
  const Status noted = NoteLent();
  {
    MutexLock lock(mu_);
    WorkDone();
    const std::vector<Bucket>& buckets = terms_.plan->plan.buckets;
    for (std::size_t b = 0; noted.ok() && b < buckets.size() && state_ == SessionState::kReceiving; ++b) {
      CountGood(buckets[b], static_cast<std::uint32_t>(b));
    }
  }
  if (!noted.ok()) End(EventOf(noted), noted);
}

Status ReceiveSession::NoteLent() {
  if (!CopiesLent()) return lent_->check ? verifier_->NoteEveryBucket() : OkStatus();
  const auto wanted = [this] {
    MutexLock lock(mu_);
    return state_ == SessionState::kReceiving;
  };
  const Status copied = CopyLent(*terms_.plan, parts_.slots.layout(), *lent_, *staging_, *verifier_, wanted);
  lent_->ranks.clear();
  return copied;
}

BucketAck ReceiveSession::OnBucket(int route, const ReceivedFrame& frame) {
  const Result<BucketHeader> header = ParseBucketHeader(frame.bytes, PlaceOfPayload(frame));
  if (!header.ok()) return OnUnreadableFrame(header.status());
  BucketAck ack{header->bucket, header->attempt, BucketVerdict::kFenced};
  if (header->session != terms_.offer.session) return ack;
  if (const Status outside = CheckBucket(route, *header, frame); !outside.ok()) {
    End(SessionEvent::kAbort, outside);
    return ack;
  }
  if (const auto verdict = StartBucket(*header)) {
    ack.verdict = *verdict;
    return ack;
  }
  ack.verdict = Conclude(*header, PlaceAndDigest(*header, frame));
  return ack;
}

// Which bucket it was is not known: the seal will name it as missing.
BucketAck ReceiveSession::OnUnreadableFrame(const Status& why) {
  Status abort;
  {
    MutexLock lock(mu_);
    if (Step(SessionEvent::kBucketDamaged) && ++unreadable_frames_ > 1) {
      abort = Status::DataLoss("bucket_damaged", fmt::format("a second frame without a readable header: {}: {}",
                                                             why.reason(), why.message()));
    }
  }
  if (!abort.ok()) End(SessionEvent::kBucketDamagedAgain, abort);
  return BucketAck{kNoBucket, 0, BucketVerdict::kDamaged};
}

Status ReceiveSession::CheckBucket(int route, const BucketHeader& header, const ReceivedFrame& frame) const {
  const Plan& plan = terms_.plan->plan;
  if (header.bucket >= plan.buckets.size()) {
    return Status::DataLoss("bucket_outside_plan",
                            fmt::format("bucket={} planned={}", header.bucket, plan.buckets.size()));
  }
  const Bucket& bucket = plan.buckets[header.bucket];
  if (bucket.route != route || std::cmp_not_equal(header.slice_count, bucket.slices.size()) ||
      header.payload_bytes != bucket.payload_bytes ||
      (!frame.payload.empty() && frame.payload.size() != bucket.slices.size()) ||
      (!frame.device_payload.empty() && std::cmp_less(frame.device_payload.size(), header.payload_bytes))) {
    return Status::DataLoss(
        "bucket_outside_plan",
        fmt::format("bucket={} route={} slices={} payload_bytes={}; planned route={} slices={} payload_bytes={}",
                    header.bucket, route, header.slice_count, header.payload_bytes, bucket.route, bucket.slices.size(),
                    bucket.payload_bytes));
  }
  return OkStatus();
}

std::optional<BucketVerdict> ReceiveSession::StartBucket(const BucketHeader& header) {
  MutexLock lock(mu_);
  if (IsOver(state_) || state_ == SessionState::kOffered) return BucketVerdict::kFenced;
  if (coverage_.HasArrived(header.bucket)) return BucketVerdict::kDuplicate;
  CHECK(state_ == SessionState::kReceiving);  // beyond it every bucket has arrived
  ++working_;
  return std::nullopt;
}

// OK; DataLoss: what is wrong with the bucket; or what is wrong with this side. The peer may still write to the frame:
// each digest is read once, and compared with that of the slot's memory.
Status ReceiveSession::PlaceAndDigest(const BucketHeader& header, const ReceivedFrame& frame) {
  if (PlaceOfPayload(frame) == PayloadPlace::kInFrame) RETURN_IF_ERROR(CheckPayload(header, frame.bytes));
  const Bucket& bucket = terms_.plan->plan.buckets[header.bucket];
  const std::vector<BoxView> in_frame = frame.payload.empty() ? ViewsInFrame(frame, bucket) : std::vector<BoxView>();
  const FrameMemory memory = frame.device_payload.empty() ? FrameMemory::kHost : FrameMemory::kDevice;
  ASSIGN_OR_RETURN(std::vector<TensorDigest> digests,
                   staging_->PlaceAndDigest(bucket, frame.payload.empty() ? in_frame : frame.payload, memory));
  for (std::size_t s = 0; s < bucket.slices.size(); ++s) {
    const Slice& slice = bucket.slices[s];
    const TensorDigest sent = ReadSliceDigest(frame.bytes, static_cast<std::int64_t>(s));
    if (digests[s] == sent) continue;
    const std::string& tensor = terms_.plan->plan.tensors[static_cast<std::size_t>(slice.tensor)].name;
    return Status::DataLoss(
        "digest_mismatch",
        fmt::format("tensor {} box {} on engine rank {}: memory={} sender={}", tensor, slice.logical_box.ToString(),
                    terms_.plan->engine_rank(bucket), digests[s].ToHex(), sent.ToHex()));
  }
  verifier_->Note(header.bucket, std::move(digests));
  return OkStatus();
}

BucketVerdict ReceiveSession::Conclude(const BucketHeader& header, const Status& damage) {
  const Bucket& bucket = terms_.plan->plan.buckets[header.bucket];
  Status abort;
  {
    MutexLock lock(mu_);
    WorkDone();
    if (state_ != SessionState::kReceiving) return BucketVerdict::kFenced;
    if (damage.ok()) {
      CountGood(bucket, header.bucket);
      return BucketVerdict::kGood;
    }
    if (damage.code() == StatusCode::kDataLoss) {
      if (coverage_.Damaged(header.bucket) == 1) {
        CHECK(Step(SessionEvent::kBucketDamaged));
        return BucketVerdict::kDamaged;
      }
      abort = Status::DataLoss("bucket_damaged",
                               fmt::format("bucket {} came damaged twice, from sender rank {}: {}: {}", header.bucket,
                                           terms_.plan->plan.routes[static_cast<std::size_t>(bucket.route)].sender_rank,
                                           damage.reason(), damage.message()));
    }
  }
  if (abort.ok()) {
    End(SessionEvent::kAbort, damage);
    return BucketVerdict::kFenced;
  }
  End(SessionEvent::kBucketDamagedAgain, abort);
  return BucketVerdict::kDamaged;
}

void ReceiveSession::CountGood(const Bucket& bucket, std::uint32_t number) {
  CHECK(Step(SessionEvent::kBucketGood));
  coverage_.Arrived(number);
  std::int64_t bytes = 0;
  for (const Slice& slice : bucket.slices) bytes += slice.payload_bytes;
  received_bytes_ += bytes;
  staged_at_ = parts_.clock.Now();
  parts_.board.BytesReceived(bytes);
}

void ReceiveSession::OnSeal(const Seal& seal) {
  std::vector<std::uint32_t> missing;
  Status abort;
  {
    MutexLock lock(mu_);
    if (IsOver(state_)) return;
    if (Staged() || state_ != SessionState::kReceiving) {
      abort = Sealed(seal.manifest);
    } else if (coverage_.complete()) {
      early_seal_ = seal.manifest;
      return;
    } else if (!missing_sent_) {
      CHECK(Step(SessionEvent::kSealIncomplete));
      missing_sent_ = true;
      missing = coverage_.Missing();
    } else {
      const std::vector<std::uint32_t> lost = coverage_.Missing();
      abort = Status::DataLoss("buckets_missing", fmt::format("{} at the second seal, with parts of {}", lost.size(),
                                                              TensorsIn(terms_.plan->plan, lost)));
    }
  }
  if (!abort.ok()) {
    End(SessionEvent::kAbort, abort);
  } else if (!missing.empty()) {
    send_(Missing{terms_.offer.session, std::move(missing)});
  } else {
    Verify(seal.manifest);
  }
}

// The caller's work then ends in Verify.
Status ReceiveSession::Sealed(const ManifestSeal& seal) {
  version_.digest = seal.version_digest;
  if (!Step(SessionEvent::kSeal)) return NextState(state_, SessionEvent::kSeal).status();
  ++working_;
  return OkStatus();
}

void ReceiveSession::Verify(const ManifestSeal& seal) {
  const TimePoint start = parts_.clock.Now();
  const Status proof = Prove(seal);
  Ready ready{.session = terms_.offer.session};
  bool verified = false;
  {
    MutexLock lock(mu_);
    verify_ms_ = MsOf(parts_.clock.Now() - start);
    WorkDone();
    ready.verify_ms = verify_ms_;
    ready.stage_ms = MsOf(staged_at_ - accepted_at_);
    verified = proof.ok() && Step(SessionEvent::kVerified);
  }
  if (verified) send_(ready);
  if (!proof.ok()) End(proof.code() == StatusCode::kDataLoss ? SessionEvent::kMismatch : SessionEvent::kAbort, proof);
}

Result<HeldDigests> ReceiveSession::ProveReceived(const ManifestSeal& seal) const {
  if (!lent_ || lent_->check || CopiesLent()) {
    RETURN_IF_ERROR(verifier_->Check(terms_.offer.manifest, seal));
    return HeldDigests{.received = verifier_->HeldByRank(), .derived = {}, .totals = verifier_->Totals()};
  }
  RETURN_IF_ERROR(CheckVersionDigest(terms_.offer.manifest, seal));
  HeldDigests held;
  held.totals.resize(seal.digests.size());
  for (std::size_t i = 0; i < seal.digests.size(); ++i) held.totals[terms_.plan->manifest_order[i]] = seal.digests[i];
  return held;
}

// What was received agrees with the seal; then the engine's own tensors are made of it.
Status ReceiveSession::Prove(const ManifestSeal& seal) {
  RETURN_IF_ERROR(parts_.registry.CheckDigest(terms_.offer.manifest, seal.version_digest));
  ASSIGN_OR_RETURN(HeldDigests held, ProveReceived(seal));
  int slot = 0;
  WeightVersion version;
  {
    MutexLock lock(mu_);
    slot = *slot_;
    version = version_;
  }
  ASSIGN_OR_RETURN(held.derived, parts_.derived.Make(parts_.hooks, version, parts_.slots, slot, terms_.deadline));
  RETURN_IF_ERROR(parts_.slots.FreezeShadow(slot));
  MutexLock lock(mu_);
  held_ = std::move(held);
  return OkStatus();
}

void ReceiveSession::OnFlip(const Flip& flip) {
  StagedVersion staged;
  Status refused;
  {
    MutexLock lock(mu_);
    if (IsOver(state_)) return;
    refused = NextState(state_, SessionEvent::kFlip).status();
    if (refused.ok()) {
      flipping_ = true;
      staged = {.slot = *slot_, .version = version_, .held = std::move(held_), .check = [this] {
                  return parts_.registry.CheckNumber(terms_.offer);
                }};
    }
  }
  if (!refused.ok()) {
    End(SessionEvent::kAbort, refused);
    return;
  }
  const auto kind = parts_.slots.live() ? HistoryEntry::Kind::kFull : HistoryEntry::Kind::kInitial;
  const Result<FlipReport> report = parts_.gate.Flip(staged, flip.at_step, terms_.deadline,
                                                     [&](const FlipReport& flipped) { Record(flipped, kind); });
  if (report.ok()) {
    send_(Committed{terms_.offer.session, *report});
    SetOver();
    return;
  }
  {
    MutexLock lock(mu_);
    flipping_ = false;
  }
  End(EventOf(report.status()), report.status());
}

void ReceiveSession::Record(const FlipReport& report, HistoryEntry::Kind kind) {
  HistoryEntry row;
  {
    MutexLock lock(mu_);
    CHECK(Step(SessionEvent::kFlip));
    flipping_ = false;
    slot_.reset();
    row = Row();
  }
  row.kind = kind;
  row.committed = true;
  row.flip_stall_us = report.flip_stall_us;
  // The number is taken before anybody can learn that it is live.
  parts_.registry.Committed(terms_.offer.manifest, row.version.digest, kind != HistoryEntry::Kind::kInitial);
  parts_.board.Flipped(std::move(row));
}

bool ReceiveSession::End(SessionEvent event, Status why) {
  std::optional<int> slot;
  std::optional<HistoryEntry> row;
  {
    MutexLock lock(mu_);
    if (flipping_) return false;
    if (IsOver(state_)) {  // somebody else ends it at this moment
      while (!over_) parts_.clock.WaitUntil(changed_, mu_, parts_.clock.Now() + kLookAgain);
      return true;
    }
    why = why.WithContext(Progress());
    // An event that came too late for its state (a bucket damaged again, after another thread has moved on) still ends.
    if (!Step(event)) CHECK(Step(SessionEvent::kAbort));
    preparer_.RequestStop();
    while (working_ > 0) parts_.clock.WaitUntil(changed_, mu_, parts_.clock.Now() + kLookAgain);
    slot = std::exchange(slot_, std::nullopt);
    if (accepted_) row = Row();
  }
  if (row) row->why = why;
  if (slot) parts_.slots.ReleaseShadow(*slot);
  LogInfo("session_aborted", "session={} why=\"{}\"", terms_.offer.session.ToString(), why.ToString());
  parts_.board.SessionFailed(why, std::move(row));
  send_(Abort{terms_.offer.session, std::move(why)});
  SetOver();
  return true;
}

// The registry comes last: once it has let the session go, nothing of the session is under way.
void ReceiveSession::SetOver() {
  {
    MutexLock lock(mu_);
    over_ = true;
    changed_.NotifyAll();
  }
  parts_.registry.Close(*this);
}

bool ReceiveSession::Step(SessionEvent event) {
  const Result<SessionState> next = NextState(state_, event);
  if (!next.ok()) return false;
  if (state_ == *next) return true;
  state_ = *next;
  if (!IsOver(state_)) parts_.board.SessionMoved(state_, version_);
  LogInfo("session_state", "session={} version={} state={} event={}", terms_.offer.session.ToString(),
          version_.ToString(), SessionStateName(state_), SessionEventName(event));
  return true;
}

void ReceiveSession::WorkDone() {
  --working_;
  changed_.NotifyAll();
}

HistoryEntry ReceiveSession::Row() const {
  HistoryEntry row;
  row.version = version_;
  row.bytes = received_bytes_;
  row.carried_bytes = terms_.plan->carried_bytes;
  row.stage_ms = MsOf(staged_at_ - accepted_at_);
  row.verify_ms = verify_ms_;
  return row;
}

std::string ReceiveSession::Progress() const {
  const bool carries = state_ == SessionState::kReceiving && !carried_;
  return fmt::format("{} {}, {} of {} buckets{}", version_.ToString(), SessionStateName(state_),
                     coverage_.arrived_count(), coverage_.bucket_count(),
                     carries ? ", and its base is still being copied" : "");
}

}  // namespace bascule
