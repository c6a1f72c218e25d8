#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "benchmarks/measure.h"
#include "benchmarks/temp_directory.h"
#include "benchmarks/transport_benchmarks.h"
#include "bridge/transport/shm/dialer.h"
#include "bridge/transport/shm/listener.h"

namespace bascule {
namespace {

Deadline Soon() { return Deadline::After(Clock::Real(), std::chrono::seconds(30)); }

// The engine's part, in a process of its own until it is killed.
[[noreturn]] void ServeInChild(const std::string& path, std::size_t bytes) {
  const auto listener = ShmListener::Create(path);
  const auto target = NoiseBuffer(bytes);
  if (!listener.ok() || !target.ok()) _exit(1);
  (*listener)->Expect(1);
  const auto receiver = (*listener)->Accept(1, Route{}, Soon());
  if (receiver.ok()) ReceiveCopies(**receiver, (*target)->bytes());
  _exit(0);
}

Result<std::unique_ptr<BucketSender>> DialChild(const std::string& path) {
  Clock& clock = Clock::Real();
  const Deadline deadline = Soon();
  while (true) {
    auto sender = ShmDialer(clock).Dial({TransportKind::kShm, path}, BenchmarkHello(1), deadline);
    if (sender.ok() || deadline.Passed(clock)) return sender;
    clock.SleepUntil(clock.Now() + std::chrono::milliseconds(1), {});
  }
}

Result<std::vector<BenchmarkRow>> MeasureShm(const std::string& path, const BenchmarkScale& scale) {
  ASSIGN_OR_RETURN(const auto source, NoiseBuffer(scale.bytes));
  ASSIGN_OR_RETURN(const auto target, NoiseBuffer(scale.bytes));
  ASSIGN_OR_RETURN(const auto sender, DialChild(path));
  bool sent = true;
  const std::function<void()> contenders[] = {
      [&] { sent = sent && SendCopies(*sender, source->bytes()); },
      [&] { std::memcpy(target->bytes().data(), source->bytes().data(), scale.bytes); },
  };
  const std::vector<double> seconds = MedianSeconds(contenders, scale.rounds);
  if (!sent) return Status::Unavailable("peer_lost", "the receiving process ended");
  return std::vector<BenchmarkRow>{{"shm_transport", GigabytesPerSecond(scale.bytes, seconds[0]), "GB/s",
                                    GigabytesPerSecond(scale.bytes, seconds[1]),
                                    "memcpy of the same bytes, one thread"}};
}

}  // namespace

RouteHello BenchmarkHello(std::uint64_t connection) {
  return RouteHello{.connection = connection, .route = {}, .frame_bytes = kFrameBytes, .credits = kBenchmarkCredits};
}

bool SendCopies(BucketSender& sender, std::span<const std::byte> source) {
  std::int64_t out = 0;
  while (!source.empty()) {
    if (!sender.HasCredit()) {
      if (!sender.NextAck(Soon()).ok()) return false;
      --out;
    }
    const std::size_t bytes = std::min(source.size(), kFrameBytes);
    std::memcpy(sender.Acquire().data(), source.data(), bytes);
    if (!sender.Send(bytes).ok()) return false;
    ++out;
    source = source.subspan(bytes);
  }
  for (; out > 0; --out) {
    if (!sender.NextAck(Soon()).ok()) return false;
  }
  return true;
}

void ReceiveCopies(BucketReceiver& receiver, std::span<std::byte> target) {
  std::size_t at = 0;
  while (true) {
    const Result<ReceivedFrame> frame = receiver.Receive(Soon());
    if (!frame.ok()) return;
    if (at + frame->bytes.size() > target.size()) at = 0;
    std::memcpy(target.data() + at, frame->bytes.data(), frame->bytes.size());
    at += frame->bytes.size();
    if (!receiver.Acknowledge(*frame, BucketAck{}).ok()) return;
  }
}

Result<std::vector<BenchmarkRow>> RunShmBenchmark(const BenchmarkScale& scale) {
  const TempDirectory folder;
  const std::string path = folder.path() + "/engine.sock";
  const pid_t engine = fork();
  if (engine == 0) ServeInChild(path, scale.bytes);
  Result<std::vector<BenchmarkRow>> rows = MeasureShm(path, scale);
  kill(engine, SIGKILL);
  waitpid(engine, nullptr, 0);
  return rows;
}

}  // namespace bascule
