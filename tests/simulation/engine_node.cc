#include "tests/simulation/engine_node.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "bridge/send/publish_session.h"
#include "engine_side/cache_daemon/frozen_memory.h"
#include "engine_side/peer_sender.h"

namespace bascule::simulation {
namespace {

constexpr Duration kFollowFor = std::chrono::seconds(2);
constexpr Duration kLongestSession = kPublishTime + std::chrono::seconds(1);

}  // namespace

EngineNode::EngineNode(Scheduler& scheduler, Network& network, VersionRecord& versions, FleetPromises& promises,
                       const EngineSurroundings& surroundings, Watch watch, NodeId node, std::string address,
                       const EngineKind& kind)
    : scheduler_(scheduler),
      network_(network),
      clock_(scheduler.clock()),
      versions_(versions),
      promises_(promises),
      watch_(std::move(watch)),
      node_(node),
      address_(std::move(address)),
      kind_(kind),
      host_(network.HostOf(node)) {
  const NodeId caller = scheduler_.node();
  scheduler_.Enter(node_);
  auto routes = network.RouteListenerOf(node_);
  CHECK(routes.ok());
  routes_ = std::move(*routes);
  CreateReceiver(*routes_);
  // Whoever reads files first is reachable once it has.
  kind_.has_base ? own_server_ = Listen(OwnAddress()) : server_ = Listen(address_);
  EngineStartOptions start{
      .address = address_, .ranks = kind_.ranks, .check = kind_.checks_daemon, .joins = kind_.joins};
  if (kind_.is_daemon) {
    CreateDaemon();
    workers_.emplace_back("daemon", [this](const std::stop_token& stop) { FollowDaemon(stop); });
  } else {
    start.daemon = kind_.daemon;
    start.socket = kind_.socket;
    workers_.emplace_back("decode", [this](const std::stop_token& stop) { Decode(stop); });
  }
  if (kind_.has_base) {
    start.load = [this] {
      if (!receiver_->status().live) RETURN_IF_ERROR(LoadBase());
      if (!checked_) return Status::Cancelled("cancelled", "the process was killed");
      server_ = Listen(address_);
      return OkStatus();
    };
  }
  start_ = std::make_unique<EngineStart>(std::move(start), surroundings, *receiver_, watch_, clock_);
  workers_.emplace_back("start", [this](const std::stop_token& stop) { start_->Run(stop); });
  workers_.emplace_back("status", [this](const std::stop_token& stop) { FollowStatus(stop); });
  scheduler_.Enter(caller);
}

std::unique_ptr<ControlHost::Listener> EngineNode::Listen(const std::string& address) {
  auto server = host_->Listen(address, [this](ControlChannel& channel) { (void)receiver_->Serve(channel); });
  CHECK(server.ok());
  return std::move(*server);
}

void EngineNode::CreateReceiver(TransportListener& routes) {
  const bool lends = kind_.is_daemon;
  auto receiver = WeightReceiver::Create(
      {.layout = ShardedTrainer::EngineLayout(kind_.ranks, kRows),
       .memory = {.from = lends ? &FreezableMemory() : nullptr, .when_reserved = lends || !kind_.daemon.empty()},
       .slot_count = kind_.slot_count,
       .flip = kind_.flip,
       .copier = this,
       .staging = {.nice = 0},
       .listeners = {&routes},
       .clock = &clock_},
      *this);
  CHECK(receiver.ok());
  receiver_ = std::move(*receiver);
}

void EngineNode::CreateDaemon() {
  auto daemon = CacheDaemon::Create({.socket = kind_.socket,
                                     .keep = kind_.slot_count - 1,
                                     .model = {.fingerprint = EngineStart::Fingerprint(kind_.ranks)},
                                     .clock = &clock_},
                                    *receiver_);
  CHECK(daemon.ok());
  daemon_ = std::move(*daemon);
}

EngineNode::~EngineNode() {
  for (Worker& worker : workers_) worker.RequestStop();
  workers_.clear();
  start_.reset();
  daemon_.reset();
  server_.reset();
  own_server_.reset();
  receiver_.reset();
}

void EngineNode::Broken(std::string_view invariant, const std::string& what) {
  if (checked_) watch_.violation(invariant, fmt::format("{}: {}", address_, what));
}

bool EngineNode::WasLive(const WeightVersion& version) const {
  return std::find(made_live_.begin(), made_live_.end(), version) != made_live_.end();
}

std::uint64_t EngineNode::HighestNumber(const std::string& run) const {
  const auto found = highest_.find(run);
  return found == highest_.end() ? 0 : found->second;
}

// I7: at most one session of the replica receives. I8: none outlives its time.
void EngineNode::OnSessionState(std::string_view session, std::string_view state) {
  session_ = session;
  session_state_ = state;
  if (state == "receiving") {
    if (!receiving_session_.empty() && receiving_session_ != session) {
      Broken("I7", fmt::format("session {} receives while {} is open", session, receiving_session_));
    }
    receiving_session_ = session;
    receiving_since_ = clock_.Now();
  } else if ((state == "committed" || state == "aborted") && session == receiving_session_) {
    receiving_session_.clear();
    const Duration lived = clock_.Now() - receiving_since_ - watch_.stood_still_since(receiving_since_);
    if (lived > kLongestSession) Broken("I8", fmt::format("a session lived for {:.1f} s", MsOf(lived) / 1000));
  }
}

void EngineNode::OnPartialOffer(const Offer& offer) {
  partial_.try_emplace(offer.session.ToString(), PartialSession{*offer.manifest.base, made_live_.size()});
}

// Who takes a partial version has its base: it was live at some time since the offer was made.
void EngineNode::OnAccept(SessionId session) {
  const auto partial = partial_.find(session.ToString());
  if (partial == partial_.end()) return;
  const auto& [base, flips] = partial->second;
  const auto since = made_live_.begin() + static_cast<std::ptrdiff_t>(flips == 0 ? 0 : flips - 1);
  if (std::find(since, made_live_.end(), base) != made_live_.end() || IsLiveNow(base)) return;
  Broken("scope", fmt::format("it takes a version that builds on {}, which is not live", base.ToString()));
}

Result<SafePoint> EngineNode::RunAtSafePoint(std::uint64_t at_step, const std::function<void()>& critical,
                                             Deadline deadline) {
  MutexLock lock(mu_);
  ++waiting_;
  while (stepping_ || critical_) {
    if (clock_.WaitUntil(changed_, mu_, deadline.point()) || !(stepping_ || critical_)) continue;
    --waiting_;
    changed_.NotifyAll();
    return Status::DeadlineExceeded("deadline", "no safe point came");
  }
  --waiting_;
  critical_ = true;
  mu_.Unlock();
  critical();
  mu_.Lock();
  critical_ = false;
  step_ = std::max(step_ + 1, at_step);
  changed_.NotifyAll();
  return SafePoint{step_, std::chrono::microseconds(5)};
}

bool EngineNode::LostSinceItsLastFlip() const {
  const std::vector<HistoryEntry> rows = receiver_->History();
  const auto told = [](const HistoryEntry& row) { return row.committed || row.why.reason() == "live_lost"; };
  const auto last = std::find_if(rows.rbegin(), rows.rend(), told);
  return last != rows.rend() && !last->committed;
}

// Inside the critical section: label and bytes have changed together (I9), to what was verified (I4), on all ranks
// (I5).
KvReport EngineNode::InvalidateKv(const WeightVersion& live) {
  if (stepping_) Broken("I5", fmt::format("{} goes live in the middle of a step", live.ToString()));
  const WeightLease lease = receiver_->AcquireLive();
  if (lease.empty()) {
    Broken("I9", fmt::format("caches are told of {} while nothing is live", live.ToString()));
    return {};
  }
  if (lease.version() != live) {
    Broken("I9", fmt::format("caches are told of {} while {} is live", live.ToString(), lease.version().ToString()));
  }
  CheckBytes(lease, "at the flip");
  const bool back = live == kept_;
  std::uint64_t& highest = highest_[live.run];
  // Where another run is live, after a rollback too, a run may start anew.
  // So may every version be loaded anew where the live one was lost.
  if (!made_live_.empty() && made_live_.back().run != live.run) highest = 0;
  if (LostSinceItsLastFlip()) highest = 0;
  if (!back && live.number > 0 && live.number <= highest) {
    Broken("I3", fmt::format("{} goes live after number {}", live.ToString(), highest));
  }
  highest = std::max(highest, live.number);
  kept_ = made_live_.empty() ? std::nullopt : std::optional(made_live_.back());
  made_live_.push_back(live);
  if (!checked_) return {};
  versions_.WentLive(address_, live);
  // Who follows a daemon comes a moment later, to what that had.
  if (!back && kind_.daemon.empty()) promises_.WentLive(address_, live);
  return {};
}

Status EngineNode::Copy(std::span<std::byte> to, std::span<const std::byte> from) {
  if (copies_to_fail_ > 0 && copies_before_ > 0) {
    --copies_before_;
  } else if (copies_to_fail_ > 0) {
    --copies_to_fail_;
    std::memset(to.data(), 0x5a, to.size() / 2);
    return Status::DataLoss("copy_failed", "the simulation says so");
  }
  std::memcpy(to.data(), from.data(), from.size());
  return OkStatus();
}

void EngineNode::Decode(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    {
      MutexLock lock(mu_);
      while (waiting_ > 0 || critical_) {
        clock_.WaitUntil(changed_, mu_, clock_.Now() + std::chrono::seconds(1));
      }
      stepping_ = true;
    }
    DecodeStep();
    {
      MutexLock lock(mu_);
      stepping_ = false;
      ++step_;
      changed_.NotifyAll();
    }
    const auto pause = std::chrono::milliseconds(5 + scheduler_.RandomBits() % 800);
    clock_.SleepUntil(clock_.Now() + pause, stop);
  }
}

// I1, I2: what a step reads is one version from its beginning to its end, whatever is written meanwhile.
void EngineNode::DecodeStep() {
  const WeightLease lease = receiver_->AcquireLive();
  if (lease.empty()) {
    if (lost() && kind_.flip == FlipMode::kShadow) Broken("I6", "nothing is live though a version was");
    return;
  }
  const WeightVersion version = lease.version();
  CheckBytes(lease, "at the beginning of a step");
  const std::uint64_t pauses = scheduler_.RandomBits() % 3;
  for (std::uint64_t i = 0; i < pauses; ++i) clock_.SleepUntil(clock_.Now() + std::chrono::milliseconds(1), {});
  CheckBytes(lease, "at the end of a step");
  if (lease.version() != version) Broken("I2", "the label changed under a step");
}

void EngineNode::CheckBytes(const WeightLease& lease, std::string_view when) {
  const WeightVersion& label = lease.version();
  const Content* content = versions_.Find(label.digest);
  if (content == nullptr) {
    Broken("I4", fmt::format("{}: {} has a digest of nothing that was published", when, label.ToString()));
    return;
  }
  for (int rank = 0; rank < kind_.ranks; ++rank) {
    for (std::size_t t = 0; t < content->tensor_count(); ++t) {
      const std::span<const std::byte> held = lease.Tensor(rank, static_cast<int>(t));
      const std::span<const std::byte> want = content->EngineBytes(kind_.ranks, rank, t);
      if (held.size() == want.size() && std::memcmp(held.data(), want.data(), want.size()) == 0) continue;
      Broken(when == "at the flip" ? "I4" : "I2",
             fmt::format("{}: rank {} tensor {} holds other bytes than {}", when, rank, t, label.ToString()));
      return;
    }
  }
}

// I9: no status shows a version as live that has not gone live.
void EngineNode::FollowStatus(const std::stop_token& stop) {
  std::uint64_t mark = 0;
  while (!stop.stop_requested()) {
    const Result<StatusChanges> changes = receiver_->ChangesSince(mark, Deadline::After(clock_, kFollowFor));
    if (!changes.ok()) {
      if (changes.status().code() == StatusCode::kDeadlineExceeded) continue;
      return;
    }
    mark = changes->mark;
    for (const ReceiverStatus& status : changes->statuses) {
      if (!status.live || WasLive(*status.live)) continue;
      // Between the exchange of the slots and the caches' news of it.
      const WeightLease lease = receiver_->AcquireLive();
      if (lease.empty() || lease.version() != *status.live) {
        Broken("I9", fmt::format("the status shows {} before it is live", status.live->ToString()));
      }
    }
  }
}

void EngineNode::RollBack(Duration patience) {
  workers_.emplace_back("rollback", [this, patience](const std::stop_token&) {
    scheduler_.Enter(node_);
    (void)receiver_->Rollback(std::nullopt, Deadline::After(clock_, patience));
  });
}

void EngineNode::HoldLease(Duration time) {
  workers_.emplace_back("reader", [this, time](const std::stop_token& stop) {
    scheduler_.Enter(node_);
    const WeightLease lease = receiver_->AcquireLive();
    if (lease.empty()) return;
    CheckBytes(lease, "when a reader begins");
    clock_.SleepUntil(clock_.Now() + time, stop);
    CheckBytes(lease, "when a reader ends");
  });
}

ConnectionOptions EngineNode::ConnectionTo(const std::string& address, ControlDialer& control,
                                           TransportDialer& routes) {
  return {.address = address,
          .control = &control,
          .transports = {&routes},
          .publisher = InstanceId::Mint(),
          .plan = {.bucket_bytes = 4096},
          .credits = 2,
          .connect_timeout = std::chrono::seconds(1),
          .clock = &clock_};
}

// From its own files, through the session that every version comes by.
Status EngineNode::LoadBase() {
  const auto control = network_.DialerOf(node_);
  const auto routes = network_.RouteDialerOf(node_);
  const TensorSource files = BaseContent().Of(0).held().Source();
  return PublishOnce(files, ConnectionTo(OwnAddress(), *control, *routes),
                     {.run = "base", .number = 0, .new_run = true}, Deadline::After(clock_, kPublishTime))
      .status;
}

Status EngineNode::SendLiveTo(const PeerRequest& request, Deadline deadline) {
  const auto control = network_.DialerOf(node_);
  const auto routes = network_.RouteDialerOf(node_);
  return SendLive(*receiver_, {}, ConnectionTo(request.to, *control, *routes), deadline, {}, request).status;
}

bool EngineNode::IsLiveNow(const WeightVersion& version) {
  const WeightLease lease = receiver_->AcquireLive();
  return !lease.empty() && lease.version() == version;
}

// Its readiness is never stale: what it says that it holds it holds, and that is live.
void EngineNode::FollowDaemon(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    const CacheDaemonStatus status = daemon_->status();
    if (status.phase == CachePhase::kHolding && status.objects.empty()) {
      Broken("daemon", "it says that it holds a version, and has none");
    }
    for (const CacheDaemonStatus::Object& object : status.objects) {
      // Between the exchange of the slots and the caches' news of it.
      if (!WasLive(object.version) && !IsLiveNow(object.version))
        Broken("daemon", fmt::format("{} was never live", object.version.ToString()));
    }
    const auto pause = std::chrono::milliseconds(1 + scheduler_.RandomBits() % 300);
    clock_.SleepUntil(clock_.Now() + pause, stop);
  }
}

// I8: every session has ended; I3 in the engine's own account.
void EngineNode::CheckQuiet() {
  const ReceiverStatus status = receiver_->status();
  if (status.session) {
    Broken("I8", fmt::format("session {} is {} still", status.session->session.ToString(),
                             SessionStateName(status.session->state)));
  }
  if (!receiving_session_.empty()) Broken("I8", fmt::format("session {} never ended", receiving_session_));
  CheckHistory();
}

void EngineNode::CheckHistory() {
  std::map<std::string, std::uint64_t> highest;
  std::string live_run;
  WeightVersion live;
  std::vector<WeightVersion> refused;  // by a gate, which this engine has heard
  for (const HistoryEntry& row : receiver_->History()) {
    if (row.why.reason() == "live_lost") highest.clear();
    if (!row.committed) continue;
    const bool starts = std::exchange(live_run, row.version.run) != row.version.run;
    const WeightVersion left = std::exchange(live, row.version);
    if (row.kind == HistoryEntry::Kind::kRollback && std::ranges::find(refused, live) != refused.end()) {
      Broken("canary", fmt::format("a rollback goes to {}, which the gate has refused", live.ToString()));
    }
    if (row.why.reason() == kGateReason) refused.push_back(left);
    if (row.kind == HistoryEntry::Kind::kRollback) continue;
    const auto [before, first] = highest.try_emplace(row.version.run, row.version.number);
    if (!first && !starts && row.version.number <= before->second) {
      Broken("I3", fmt::format("{} was committed late", row.version.ToString()));
    }
    before->second = row.version.number;
  }
}

void EngineNode::CheckLive(const Content& content, std::uint64_t number) {
  const WeightLease lease = receiver_->AcquireLive();
  if (lease.empty() || lease.version().digest != content.digest() || lease.version().number != number) {
    Broken("heal", fmt::format("version {} was published last, live is {}", number,
                               lease.empty() ? "nothing" : lease.version().ToString()));
    return;
  }
  CheckBytes(lease, "in the end");
}

}  // namespace bascule::simulation
