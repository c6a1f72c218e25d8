#include "tests/simulation/network.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <vector>

namespace bascule::simulation {

// What both ends of a channel or a route have in common beside the loopback between them.
class Wire final : public std::enable_shared_from_this<Wire> {
 public:
  Wire(Network& network, NodeId caller, NodeId callee) : network_(network), caller_(caller), callee_(callee) {
    network_.wires_.push_back(this);
  }
  ~Wire() { std::erase(network_.wires_, this); }

  NodeId caller() const { return caller_; }
  NodeId callee() const { return callee_; }
  NodeId OtherThan(NodeId node) const { return node == caller_ ? callee_ : caller_; }
  bool Joins(NodeId node) const { return caller_ == node || callee_ == node; }
  bool cut() const { return cut_; }
  static Status Lost() { return Status::Unavailable("peer_lost", "the wire is cut"); }

  // Of one end: `cancel` wakes whoever waits there.
  void Attach(NodeId node, std::function<void()> cancel) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (cut_) cancel();
    ends_[node == callee_] = std::move(cancel);
    ++network_.open_ends_;
  }
  void Detach(NodeId node) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    ends_[node == callee_] = nullptr;
    --network_.open_ends_;
  }
  void Cut() EXCLUDES(mu_) {
    MutexLock lock(mu_);
    cut_ = true;
    for (const auto& cancel : ends_) {
      if (cancel) cancel();
    }
    changed_.NotifyAll();
  }

  void Delay(NodeId to, Duration time) {
    TimePoint& until = not_before_[to == callee_];
    until = std::max(until, network_.clock_.Now() + time);
  }
  void EndDelays() EXCLUDES(mu_) {
    MutexLock lock(mu_);
    not_before_ = {};
    changed_.NotifyAll();
  }
  // What has come for `to` is let through when delays and partitions have ended. False at the deadline; true also once
  // `closed`.
  bool AwaitClear(NodeId to, Deadline deadline, const bool& closed) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    while (!closed) {
      const TimePoint clear = std::max(not_before_[to == callee_], network_.PartitionedUntil(caller_, callee_));
      const TimePoint now = network_.clock_.Now();
      if (clear <= now) return true;
      if (deadline.point() <= now) return false;
      network_.clock_.WaitUntil(changed_, mu_, std::min(clear, deadline.point()));
    }
    return true;
  }
  void Wake() EXCLUDES(mu_) {
    MutexLock lock(mu_);
    changed_.NotifyAll();
  }

 private:
  Network& network_;
  const NodeId caller_;
  const NodeId callee_;
  Mutex mu_;
  CondVar changed_;
  bool cut_ = false;
  std::array<std::function<void()>, 2> ends_;
  std::array<TimePoint, 2> not_before_{};
};

namespace {

// A message that nobody sends otherwise. Alone on a wire it says whose that is; later, that a message cannot be read.
GroupPacked Mark(std::uint64_t number) { return {.round = number}; }
constexpr std::uint64_t kUnreadable = ~std::uint64_t{0};
bool IsUnreadable(const SessionMessage& message) {
  const auto* packed = std::get_if<GroupPacked>(&message);
  return packed != nullptr && packed->round == kUnreadable;
}

constexpr Duration kHoldTime = std::chrono::milliseconds(50);  // what is held back waits for others no longer

Duration DelayOf(const Fault& fault) { return std::chrono::milliseconds(1 + fault.detail % 1500); }

void CorruptSeal(Seal& seal, std::uint64_t detail) {
  std::vector<TensorDigest>& digests = seal.manifest.digests;
  if (detail % 2 == 0 || digests.empty()) {
    seal.manifest.version_digest.bytes[detail / 2 % seal.manifest.version_digest.bytes.size()] ^= std::byte{1};
  } else {
    digests[detail / 2 % digests.size()].lane[0] ^= std::uint64_t{1} << (detail % 64);
  }
}

}  // namespace

class Channel final : public ControlChannel {
 public:
  // Borrows `inner`, an end that a listener owns.
  Channel(Network& network, std::shared_ptr<Wire> wire, NodeId self, ControlChannel& inner)
      : network_(network), wire_(std::move(wire)), self_(self), peer_(wire_->OtherThan(self)), inner_(inner) {
    wire_->Attach(self_, [this] { inner_.Cancel(); });
  }
  // Owns it, the end that dialled.
  Channel(Network& network, std::shared_ptr<Wire> wire, NodeId self, std::unique_ptr<ControlChannel> inner)
      : Channel(network, std::move(wire), self, *inner) {
    owned_ = std::move(inner);
  }
  ~Channel() override { wire_->Detach(self_); }

  Status Send(const SessionMessage& message) override {
    if (wire_->cut()) return Wire::Lost();
    const auto fault =
        network_.injector_({.from = self_, .to = peer_, .what = MessageName(message), .message = &message});
    std::optional<SessionMessage> late = std::exchange(late_, std::nullopt);
    RETURN_IF_ERROR(fault ? PassFaulty(message, *fault) : inner_.Send(message));
    return late && !network_.healed_ ? inner_.Send(*late) : OkStatus();
  }

  Result<SessionMessage> Receive(Deadline deadline) override {
    if (!came_) {
      Result<SessionMessage> next = inner_.Receive(deadline);
      if (!next.ok() && next.status().code() == StatusCode::kDeadlineExceeded) return next;
      if (next.ok() && IsUnreadable(*next)) next = Status::DataLoss("bad_message", "bits were flipped");
      came_ = std::move(next);
    }
    if (!wire_->AwaitClear(self_, deadline, deaf_)) return Status::DeadlineExceeded("deadline", "nothing came through");
    if (deaf_) return Status::Cancelled("cancelled", "the control channel was cancelled here");
    if (wire_->cut()) return Wire::Lost();
    return *std::exchange(came_, std::nullopt);
  }

  void StopReceiving() override {
    deaf_ = true;
    inner_.StopReceiving();
    wire_->Wake();
  }
  void Cancel() override {
    deaf_ = true;
    inner_.Cancel();
    wire_->Wake();
  }
  std::string peer() const override { return inner_.peer(); }

 private:
  Status PassFaulty(const SessionMessage& message, const Fault& fault) {
    switch (fault.kind) {
      case FaultKind::kDrop:
        return OkStatus();
      case FaultKind::kDuplicate:
        RETURN_IF_ERROR(inner_.Send(message));
        if (fault.detail % 2 == 0) return inner_.Send(message);
        late_ = message;
        return OkStatus();
      case FaultKind::kReorder:
        late_ = message;
        return OkStatus();
      case FaultKind::kCorrupt:
        return PassCorrupt(message, fault.detail);
      case FaultKind::kDelay:
        wire_->Delay(peer_, DelayOf(fault));
        return inner_.Send(message);
      case FaultKind::kCut:
        wire_->Cut();
        return Wire::Lost();
      default:
        return inner_.Send(message);
    }
  }

  Status PassCorrupt(const SessionMessage& message, std::uint64_t detail) {
    const auto* seal = std::get_if<Seal>(&message);
    if (seal == nullptr) return inner_.Send(Mark(kUnreadable));
    Seal other = *seal;
    CorruptSeal(other, detail);
    return inner_.Send(other);
  }

  Network& network_;
  const std::shared_ptr<Wire> wire_;  // shared by both ends, which go in any order
  const NodeId self_;
  const NodeId peer_;
  ControlChannel& inner_;
  std::unique_ptr<ControlChannel> owned_;
  std::optional<Result<SessionMessage>> came_;  // and waits to be let through
  std::optional<SessionMessage> late_;          // goes behind the next
  bool deaf_ = false;
};

class FaultySender final : public BucketSender {
 public:
  FaultySender(std::shared_ptr<Wire> wire, std::unique_ptr<BucketSender> inner)
      : wire_(std::move(wire)), inner_(std::move(inner)) {
    wire_->Attach(wire_->caller(), [this] { inner_->Cancel(); });
  }
  ~FaultySender() override { wire_->Detach(wire_->caller()); }

  std::int64_t frame_bytes() const override { return inner_->frame_bytes(); }
  std::int32_t credits() const override { return inner_->credits(); }
  bool wants_checksum() const override { return inner_->wants_checksum(); }
  bool HasCredit() const override { return inner_->HasCredit(); }
  std::span<std::byte> Acquire() override { return inner_->Acquire(); }
  Status Send(std::size_t bytes) override { return wire_->cut() ? Wire::Lost() : inner_->Send(bytes); }

  Result<BucketAck> NextAck(Deadline deadline) override {
    if (!came_) {
      Result<BucketAck> next = inner_->NextAck(deadline);
      if (!next.ok() && next.status().code() == StatusCode::kDeadlineExceeded) return next;
      came_ = std::move(next);
    }
    if (!wire_->AwaitClear(wire_->caller(), deadline, cancelled_)) return Status::DeadlineExceeded("deadline");
    if (cancelled_) return Status::Cancelled("cancelled");
    if (wire_->cut()) return Wire::Lost();
    return *std::exchange(came_, std::nullopt);
  }

  void Cancel() override {
    cancelled_ = true;
    inner_->Cancel();
    wire_->Wake();
  }

 private:
  const std::shared_ptr<Wire> wire_;  // shared by both ends
  const std::unique_ptr<BucketSender> inner_;
  std::optional<Result<BucketAck>> came_;
  bool cancelled_ = false;
};

class FaultyReceiver final : public BucketReceiver {
 public:
  FaultyReceiver(Network& network, std::shared_ptr<Wire> wire, std::unique_ptr<BucketReceiver> inner)
      : network_(network), wire_(std::move(wire)), inner_(std::move(inner)) {
    wire_->Attach(wire_->callee(), [this] { inner_->Cancel(); });
  }
  ~FaultyReceiver() override { wire_->Detach(wire_->callee()); }

  const RouteHello& hello() const override { return inner_->hello(); }

  Result<ReceivedFrame> Receive(Deadline deadline) override {
    while (true) {
      if (!ready_.empty()) return TakeReady();
      const Deadline soon = held_.empty() ? deadline : std::min(deadline, Deadline::After(network_.clock_, kHoldTime));
      const Result<ReceivedFrame> frame = inner_->Receive(soon);
      if (frame.ok()) {
        Arrive(*frame);
      } else if (frame.status().code() != StatusCode::kDeadlineExceeded) {
        return wire_->cut() && !cancelled_ ? Wire::Lost() : frame.status();
      } else if (deadline.Passed(network_.clock_)) {
        return frame.status();
      } else {
        LetHeldGo();
      }
      if (!wire_->AwaitClear(wire_->callee(), deadline, cancelled_)) return Status::DeadlineExceeded("deadline");
      if (cancelled_) return Status::Cancelled("cancelled");
      if (wire_->cut()) return Wire::Lost();
    }
  }

  Status Acknowledge(const ReceivedFrame& frame, const BucketAck& ack) override {
    std::optional<ReceivedFrame> original = frame;
    if (const auto copy = copies_.find(frame.handle); copy != copies_.end()) {
      original = copy->second.original;
      copies_.erase(copy);
    }
    if (!original) return OkStatus();  // of what the network made up
    if (wire_->cut()) return Wire::Lost();
    const auto fault =
        network_.injector_({.from = wire_->callee(), .to = wire_->caller(), .what = "ack", .message = nullptr});
    BucketAck passing = ack;
    if (fault) {
      if (fault->kind == FaultKind::kDrop) return OkStatus();
      if (fault->kind == FaultKind::kReorder && !late_ack_) {
        late_ack_ = {*original, ack};
        return OkStatus();
      }
      if (fault->kind == FaultKind::kCorrupt) passing.verdict = BucketVerdict::kDamaged;
      if (fault->kind == FaultKind::kDelay) wire_->Delay(wire_->caller(), DelayOf(*fault));
      if (fault->kind == FaultKind::kCut) {
        wire_->Cut();
        return Wire::Lost();
      }
    }
    RETURN_IF_ERROR(inner_->Acknowledge(*original, passing));
    if (!late_ack_) return OkStatus();
    const auto [late_frame, late] = *std::exchange(late_ack_, std::nullopt);
    return inner_->Acknowledge(late_frame, late);
  }

  void Cancel() override {
    cancelled_ = true;
    inner_->Cancel();
    wire_->Wake();
  }

 private:
  struct alignas(64) Block {
    std::array<std::byte, 64> bytes;
  };
  struct Copy {
    std::vector<Block> memory;
    std::size_t size = 0;
    std::optional<ReceivedFrame> original;  // none: its acknowledgement goes nowhere
    std::span<std::byte> bytes() { return {memory.front().bytes.data(), size}; }
  };
  static constexpr std::uint64_t kFirstCopy = std::uint64_t{1} << 32;  // beyond the handles of loopback

  void Arrive(const ReceivedFrame& frame) {
    const auto fault =
        network_.injector_({.from = wire_->caller(), .to = wire_->callee(), .what = "frame", .message = nullptr});
    const FaultKind kind = fault ? fault->kind : FaultKind::kLeap;
    if (kind == FaultKind::kDrop) return;
    if (kind == FaultKind::kCut) return wire_->Cut();
    if (kind == FaultKind::kReorder) {
      held_.push_back(frame);
      return;
    }
    if (kind == FaultKind::kDelay) wire_->Delay(wire_->callee(), DelayOf(*fault));
    ready_.push_back(kind == FaultKind::kCorrupt ? Damaged(frame, fault->detail) : frame);
    LetHeldGo();
    if (kind != FaultKind::kDuplicate) return;
    const ReceivedFrame again = MakeCopy(frame, /*original=*/std::nullopt);
    (fault->detail % 2 == 0 ? ready_ : held_).push_back(again);
  }

  void LetHeldGo() {
    ready_.insert(ready_.end(), held_.begin(), held_.end());
    held_.clear();
  }

  ReceivedFrame TakeReady() {
    const ReceivedFrame frame = ready_.front();
    ready_.pop_front();
    return frame;
  }

  ReceivedFrame Damaged(const ReceivedFrame& frame, std::uint64_t detail) {
    const ReceivedFrame copy = MakeCopy(frame, frame);
    // Headers are small: every fourth time it is one.
    const std::size_t hit = detail / 8 % 4 == 0 ? std::min<std::size_t>(64, frame.bytes.size()) : frame.bytes.size();
    copies_.at(copy.handle).bytes()[detail / 32 % hit] ^= std::byte{1} << static_cast<int>(detail % 8);
    return copy;
  }

  ReceivedFrame MakeCopy(const ReceivedFrame& frame, std::optional<ReceivedFrame> original) {
    Copy copy{std::vector<Block>((frame.bytes.size() + 63) / 64), frame.bytes.size(), original};
    std::ranges::copy(frame.bytes, copy.bytes().begin());
    const std::uint64_t handle = kFirstCopy + next_copy_++;
    Copy& kept = copies_.emplace(handle, std::move(copy)).first->second;
    return {kept.bytes(), handle};
  }

  Network& network_;
  const std::shared_ptr<Wire> wire_;  // shared by both ends
  const std::unique_ptr<BucketReceiver> inner_;
  std::deque<ReceivedFrame> ready_;
  std::deque<ReceivedFrame> held_;  // goes behind the next
  std::map<std::uint64_t, Copy> copies_;
  std::uint64_t next_copy_ = 0;
  std::optional<std::pair<ReceivedFrame, BucketAck>> late_ack_;
  bool cancelled_ = false;
};

class Host final : public ControlHost {
 public:
  Host(Network& network, NodeId node) : network_(network), node_(node) {}

  Result<std::unique_ptr<Listener>> Listen(const std::string& address, ControlHandler handler) override {
    network_.names_[address] = node_;
    return network_.control_.Listen(
        NameOf(address, node_), [this, handler = std::move(handler)](ControlChannel& inner) {
          network_.scheduler_.Enter(node_);
          const Result<SessionMessage> mark = inner.Receive(Deadline::After(network_.clock_, std::chrono::seconds(1)));
          if (!mark.ok()) return;
          const auto called = network_.called_.extract(std::get<GroupPacked>(*mark).round);
          Channel channel(network_, called.mapped(), node_, inner);
          handler(channel);
        });
  }

  static std::string NameOf(const std::string& address, NodeId node) { return fmt::format("{}#{}", address, node); }

 private:
  Network& network_;
  const NodeId node_;
};

class Dialer final : public ControlDialer {
 public:
  Dialer(Network& network, NodeId node) : network_(network), node_(node) {}

  Result<std::unique_ptr<ControlChannel>> Dial(const std::string& address, Deadline deadline) override {
    const auto named = network_.names_.find(address);
    if (named == network_.names_.end()) return Status::Unavailable("peer_unreachable", address);
    const NodeId callee = named->second;
    RETURN_IF_ERROR(network_.AwaitReachable(node_, callee, deadline));
    ASSIGN_OR_RETURN(auto inner, network_.control_.Dial(Host::NameOf(address, callee), deadline));
    const std::uint64_t number = network_.next_wire_++;
    auto wire = std::make_shared<Wire>(network_, node_, callee);
    network_.called_[number] = wire;
    RETURN_IF_ERROR(inner->Send(Mark(number)));
    return std::unique_ptr<ControlChannel>(
        std::make_unique<Channel>(network_, std::move(wire), node_, std::move(inner)));
  }

 private:
  Network& network_;
  const NodeId node_;
};

class RouteDialer final : public TransportDialer {
 public:
  RouteDialer(Network& network, NodeId node)
      : network_(network), node_(node), inner_(network.routes_, network.clock_) {}

  TransportKind kind() const override { return inner_.kind(); }
  bool CanReach(const TransportEndpoint& endpoint) const override { return inner_.CanReach(endpoint); }
  Result<std::unique_ptr<BucketSender>> Dial(const TransportEndpoint& endpoint, const RouteHello& hello,
                                             Deadline deadline) override {
    const NodeId callee = std::stoi(endpoint.address);
    RETURN_IF_ERROR(network_.AwaitReachable(node_, callee, deadline));
    auto wire = std::make_shared<Wire>(network_, node_, callee);
    const auto key = std::pair(hello.connection, hello.route);
    const bool first = network_.dialled_.emplace(key, wire).second;
    Result<std::unique_ptr<BucketSender>> inner = inner_.Dial(endpoint, hello, deadline);
    if (!inner.ok() && first) network_.dialled_.erase(key);
    RETURN_IF_ERROR(inner.status());
    return std::unique_ptr<BucketSender>(std::make_unique<FaultySender>(std::move(wire), std::move(*inner)));
  }

 private:
  Network& network_;
  const NodeId node_;
  LoopbackDialer inner_;
};

class RouteListener final : public TransportListener {
 public:
  RouteListener(Network& network, std::unique_ptr<LoopbackListener> inner)
      : network_(network), inner_(std::move(inner)) {}

  TransportEndpoint endpoint() const override { return inner_->endpoint(); }
  void Expect(std::uint64_t connection) override { inner_->Expect(connection); }
  void Forget(std::uint64_t connection) override { inner_->Forget(connection); }
  Result<std::unique_ptr<BucketReceiver>> Accept(std::uint64_t connection, Route route, Deadline deadline) override {
    ASSIGN_OR_RETURN(auto inner, inner_->Accept(connection, route, deadline));
    auto dialled = network_.dialled_.extract({connection, route});
    return std::unique_ptr<BucketReceiver>(
        std::make_unique<FaultyReceiver>(network_, dialled.mapped(), std::move(inner)));
  }

 private:
  Network& network_;
  const std::unique_ptr<LoopbackListener> inner_;
};

Network::Network(Scheduler& scheduler, Injector injector)
    : scheduler_(scheduler), clock_(scheduler.clock()), injector_(std::move(injector)), control_(clock_) {}
Network::~Network() {
  called_.clear();
  dialled_.clear();
}

std::unique_ptr<ControlHost> Network::HostOf(NodeId node) { return std::make_unique<Host>(*this, node); }
std::unique_ptr<ControlDialer> Network::DialerOf(NodeId node) { return std::make_unique<Dialer>(*this, node); }
std::unique_ptr<TransportDialer> Network::RouteDialerOf(NodeId node) {
  return std::make_unique<RouteDialer>(*this, node);
}
Result<std::unique_ptr<TransportListener>> Network::RouteListenerOf(NodeId node) {
  ASSIGN_OR_RETURN(auto inner, LoopbackListener::Create(routes_, std::to_string(node), clock_));
  return std::unique_ptr<TransportListener>(std::make_unique<RouteListener>(*this, std::move(inner)));
}

void Network::Sever(NodeId node) {
  gone_.insert(node);
  std::vector<std::shared_ptr<Wire>> cut;
  for (Wire* wire : wires_) {
    if (wire->Joins(node)) cut.push_back(wire->shared_from_this());
  }
  for (const auto& wire : cut) wire->Cut();
}

void Network::Partition(NodeId a, NodeId b, TimePoint until) {
  TimePoint& end = partitions_[std::minmax(a, b)];
  end = std::max(end, until);
}

TimePoint Network::PartitionedUntil(NodeId a, NodeId b) const {
  const auto found = partitions_.find(std::minmax(a, b));
  return found == partitions_.end() ? TimePoint{} : found->second;
}

void Network::Heal() {
  healed_ = true;
  partitions_.clear();
  std::vector<std::shared_ptr<Wire>> held_up;
  for (Wire* wire : wires_) held_up.push_back(wire->shared_from_this());
  for (const auto& wire : held_up) wire->EndDelays();
}

Status Network::Call(NodeId from, NodeId to, std::string_view what, Deadline deadline,
                     const std::function<void()>& serve) {
  ASSIGN_OR_RETURN(const bool twice, PassCall({.from = from, .to = to, .what = what}, deadline));
  scheduler_.Enter(to);
  serve();
  if (twice) serve();
  scheduler_.Enter(from);
  return PassCall({.from = to, .to = from, .what = what}, deadline).status();
}

Result<bool> Network::PassCall(const Passage& passage, Deadline deadline) {
  RETURN_IF_ERROR(AwaitReachable(passage.from, passage.to, deadline));
  const auto fault = injector_(passage);
  const FaultKind kind = fault ? fault->kind : FaultKind::kLeap;
  if (kind == FaultKind::kDrop) {
    clock_.SleepUntil(deadline.point(), {});
    return Status::DeadlineExceeded("deadline", "it got lost");
  }
  if (kind == FaultKind::kCut) return Wire::Lost();
  if (kind == FaultKind::kCorrupt) return Status::DataLoss("bad_message", "bits were flipped");
  if (kind == FaultKind::kDelay) clock_.SleepUntil(clock_.Now() + DelayOf(*fault), {});
  RETURN_IF_ERROR(AwaitReachable(passage.from, passage.to, deadline));
  return kind == FaultKind::kDuplicate;
}

Status Network::AwaitReachable(NodeId a, NodeId b, Deadline deadline) {
  while (true) {
    if (gone_.contains(a) || gone_.contains(b)) return Status::Unavailable("peer_unreachable", "nobody is there");
    const TimePoint until = PartitionedUntil(a, b);
    if (until <= clock_.Now()) return OkStatus();
    if (deadline.Passed(clock_)) return Status::DeadlineExceeded("deadline", "the network is parted");
    clock_.SleepUntil(std::min(until, deadline.point()), {});
  }
}

}  // namespace bascule::simulation
