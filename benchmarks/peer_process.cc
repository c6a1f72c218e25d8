#include "benchmarks/peer_process.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

namespace bascule {
namespace {

constexpr std::size_t kMessageBytes = 4096;
constexpr char kMessageTag = 'm';
constexpr char kErrorTag = 'e';
constexpr Duration kEndPatience = std::chrono::seconds(10);

// Code, reason and message of an error, in that order, parted by a zero byte.
std::string EncodeError(const Status& status) {
  std::string text(1, static_cast<char>(status.code()));
  return text + status.reason() + '\0' + status.message();
}

Status DecodeError(std::string_view text) {
  const std::size_t end = std::min(text.find('\0', 1), text.size());
  return Status(static_cast<StatusCode>(text[0]), text.substr(1, end - 1),
                std::string(text.substr(std::min(end + 1, text.size()))));
}

}  // namespace

Status PeerLink::SendTagged(char tag, std::string_view text) {
  const std::string tagged = tag + std::string(text.substr(0, kMessageBytes));
  while (send(socket_.get(), tagged.data(), tagged.size(), MSG_NOSIGNAL) < 0) {
    if (errno != EINTR) return Status::Unavailable("peer_lost", std::strerror(errno));
  }
  return OkStatus();
}

Status PeerLink::Send(std::string_view message) {
  CHECK(message.size() <= kMessageBytes);
  return SendTagged(kMessageTag, message);
}

Result<std::string> PeerLink::Receive(Deadline deadline) {
  while (true) {
    pollfd readable{socket_.get(), POLLIN, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.Left(Clock::Real()));
    const int ready = poll(&readable, 1, static_cast<int>(std::min<std::int64_t>(left.count(), 1 << 30)));
    if (ready == 0) return Status::DeadlineExceeded("deadline", "the other process says nothing");
    std::array<char, kMessageBytes + 1> bytes{};
    const ssize_t got = ready < 0 ? -1 : recv(socket_.get(), bytes.data(), bytes.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 1) return Status::Unavailable("peer_lost", "the other process has ended");
    const std::string_view text(bytes.data() + 1, static_cast<std::size_t>(got) - 1);
    if (bytes[0] == kErrorTag) return DecodeError(text);
    return std::string(text);
  }
}

void PeerLink::AwaitEnd() {
  Result<std::string> next = std::string();
  while (next.ok() || next.status().code() == StatusCode::kDeadlineExceeded) {
    next = Receive(Deadline::After(Clock::Real(), std::chrono::hours(1)));
  }
}

Result<std::unique_ptr<PeerProcess>> PeerProcess::Start(const std::function<Status(PeerLink&)>& body) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return Status::ResourceExhausted("process", std::strerror(errno));
  }
  UniqueFd ours(ends[0]);
  UniqueFd theirs(ends[1]);
  const pid_t pid = fork();
  if (pid < 0) return Status::ResourceExhausted("process", std::strerror(errno));
  if (pid > 0) return std::unique_ptr<PeerProcess>(new PeerProcess(pid, std::move(ours)));

  ours = UniqueFd();
  PeerLink link(std::move(theirs));
  const Status status = body(link);
  if (!status.ok()) static_cast<void>(link.SendTagged(kErrorTag, EncodeError(status)));
  _exit(status.ok() ? 0 : 1);  // what runs at exit belongs to the process that forked
}

void PeerProcess::Kill() { kill(pid_, SIGKILL); }

PeerProcess::~PeerProcess() {
  shutdown(link_.socket_.get(), SHUT_WR);
  const Deadline patience = Deadline::After(Clock::Real(), kEndPatience);
  Result<std::string> last = std::string();
  while (last.ok()) last = link_.Receive(patience);
  if (last.status().code() == StatusCode::kDeadlineExceeded) Kill();
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace bascule
