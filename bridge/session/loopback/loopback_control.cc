#include "bridge/session/loopback/loopback_control.h"

#include <array>
#include <atomic>
#include <deque>
#include <list>

#include "base/worker.h"

namespace bascule {
namespace {

// What both ends share; it lives until the second of them is gone.
class Pipe {
 public:
  explicit Pipe(Clock& clock) : clock_(clock) {}

  Status Send(std::size_t end, const SessionMessage& message) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (closed_[end] || closed_[1 - end]) return Status::Unavailable("peer_lost", "the control channel is closed");
    inbox_[1 - end].push_back(message);
    changed_.NotifyAll();
    return OkStatus();
  }

  Result<SessionMessage> Receive(std::size_t end, Deadline deadline) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    while (true) {
      if (closed_[end] || deaf_[end]) return Status::Cancelled("cancelled", "the control channel was cancelled here");
      if (!inbox_[end].empty()) {
        SessionMessage message = std::move(inbox_[end].front());
        inbox_[end].pop_front();
        return message;
      }
      if (closed_[1 - end]) return Status::Unavailable("peer_lost", "the peer closed the control channel");
      if (!clock_.WaitUntil(changed_, mu_, deadline.point()) && inbox_[end].empty()) {
        return Status::DeadlineExceeded("deadline", "no control message in time");
      }
    }
  }

  void StopReceiving(std::size_t end) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    deaf_[end] = true;
    changed_.NotifyAll();
  }

  void Close(std::size_t end) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    closed_[end] = true;
    changed_.NotifyAll();
  }

 private:
  Clock& clock_;
  Mutex mu_;
  CondVar changed_;
  std::array<std::deque<SessionMessage>, 2> inbox_ GUARDED_BY(mu_);
  std::array<bool, 2> closed_ GUARDED_BY(mu_){};
  std::array<bool, 2> deaf_ GUARDED_BY(mu_){};  // receives no more, still sends
};

class LoopbackChannel final : public ControlChannel {
 public:
  LoopbackChannel(std::shared_ptr<Pipe> pipe, std::size_t end, std::string peer)
      : pipe_(std::move(pipe)), end_(end), peer_(std::move(peer)) {}
  ~LoopbackChannel() override { pipe_->Close(end_); }

  Status Send(const SessionMessage& message) override { return pipe_->Send(end_, message); }
  Result<SessionMessage> Receive(Deadline deadline) override { return pipe_->Receive(end_, deadline); }
  void StopReceiving() override { pipe_->StopReceiving(end_); }
  void Cancel() override { pipe_->Close(end_); }
  std::string peer() const override { return peer_; }

 private:
  const std::shared_ptr<Pipe> pipe_;  // shared: the two ends go in any order
  const std::size_t end_;
  const std::string peer_;
};

}  // namespace

std::pair<std::unique_ptr<ControlChannel>, std::unique_ptr<ControlChannel>> MakeLoopbackChannel(
    Clock& clock, const std::string& first_peer, const std::string& second_peer) {
  auto pipe = std::make_shared<Pipe>(clock);
  return {std::make_unique<LoopbackChannel>(pipe, 0, first_peer),
          std::make_unique<LoopbackChannel>(pipe, 1, second_peer)};
}

// The channels that were dialled to one address, each with a thread for its handler.
class LoopbackControl::HandlerThreads final : public Listener {
 public:
  HandlerThreads(LoopbackControl& network, std::string address, ControlHandler handler)
      : network_(network), address_(std::move(address)), handler_(std::move(handler)) {}

  ~HandlerThreads() override {
    network_.Forget(address_);
    for (Call& call : calls_) call.channel->Cancel();
    calls_.clear();
  }

  std::string address() const override { return address_; }

  // Under the network's lock: one call at a time.
  void Take(std::unique_ptr<ControlChannel> channel) {
    calls_.remove_if([](const Call& call) { return call.over.load(); });
    Call& call = calls_.emplace_back();
    call.channel = std::move(channel);
    call.thread = Worker("control", [this, &call](std::stop_token) {
      handler_(*call.channel);
      call.channel->Cancel();
      call.over = true;
    });
  }

 private:
  struct Call {
    std::unique_ptr<ControlChannel> channel;
    std::atomic<bool> over{false};
    Worker thread;  // last: joined before the rest goes
  };

  LoopbackControl& network_;
  const std::string address_;
  const ControlHandler handler_;
  std::list<Call> calls_;
};

LoopbackControl::~LoopbackControl() {
  MutexLock lock(mu_);
  CHECK(listeners_.empty());
}

Result<std::unique_ptr<ControlHost::Listener>> LoopbackControl::Listen(const std::string& address,
                                                                       ControlHandler handler) {
  MutexLock lock(mu_);
  if (listeners_.contains(address)) return Status::FailedPrecondition("address_in_use", address);
  auto listener = std::make_unique<HandlerThreads>(*this, address, std::move(handler));
  listeners_[address] = listener.get();
  return std::unique_ptr<Listener>(std::move(listener));
}

Result<std::unique_ptr<ControlChannel>> LoopbackControl::Dial(const std::string& address, Deadline deadline) {
  if (deadline.Passed(clock_)) return Status::DeadlineExceeded("deadline", fmt::format("dial {}", address));
  MutexLock lock(mu_);
  const auto found = listeners_.find(address);
  if (found == listeners_.end()) {
    return Status::Unavailable("peer_unreachable", fmt::format("nobody listens on loopback address {}", address));
  }
  auto [caller, callee] = MakeLoopbackChannel(clock_, address, "loopback caller");
  found->second->Take(std::move(callee));
  return std::move(caller);
}

void LoopbackControl::Forget(const std::string& address) {
  MutexLock lock(mu_);
  listeners_.erase(address);
}

}  // namespace bascule
