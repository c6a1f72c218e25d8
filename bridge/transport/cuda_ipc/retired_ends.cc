#include "bridge/transport/cuda_ipc/retired_ends.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <utility>

#include "base/log.h"

namespace bascule {
namespace {

constexpr Duration kPatience = std::chrono::seconds(5);
constexpr Duration kStep = std::chrono::milliseconds(1);

// Nothing but acknowledgements nobody wants comes before the end.
bool PeerHasClosed(const UniqueFd& socket) {
  std::array<std::byte, 256> dropped;
  ssize_t got = 0;
  do {
    got = recv(socket.get(), dropped.data(), dropped.size(), MSG_DONTWAIT);
  } while (got > 0 || (got < 0 && errno == EINTR));
  return got == 0 || errno != EAGAIN;
}

}  // namespace

RetiredEnds::~RetiredEnds() {
  const Deadline deadline = Deadline::After(clock_, kPatience);
  for (Sweep(); !IsEmpty() && !deadline.Passed(clock_); Sweep()) clock_.SleepUntil(clock_.Now() + kStep, {});
  const MutexLock lock(mu_);
  for (Retired& retired : retired_) {
    KeepForEver(std::move(retired.end), Status::DeadlineExceeded("deadline", "the peer has it open"));
  }
}

void RetiredEnds::Take(UniqueFd socket, std::shared_ptr<DeviceEnd> end) {
  shutdown(socket.get(), SHUT_WR);
  {
    const MutexLock lock(mu_);
    retired_.push_back({std::move(socket), std::move(end)});
  }
  Sweep();
}

void RetiredEnds::Sweep() {
  std::list<Retired> closed;  // Destroyed without the lock: freeing device memory takes time.
  const MutexLock lock(mu_);
  for (auto at = retired_.begin(); at != retired_.end();) {
    const auto next = std::next(at);
    if (PeerHasClosed(at->socket)) closed.splice(closed.end(), retired_, at);
    at = next;
  }
}

bool RetiredEnds::IsEmpty() {
  const MutexLock lock(mu_);
  return retired_.empty();
}

void KeepForEver(std::shared_ptr<DeviceEnd> end, const Status& why) {
  LogWarn("device_memory_kept", "bytes={} why=\"{}\"", end->name().memory_bytes, why.ToString());
  static auto* const mu = new Mutex;
  static auto* const kept = new std::list<std::shared_ptr<DeviceEnd>>;
  const MutexLock lock(*mu);
  kept->push_back(std::move(end));
}

}  // namespace bascule
