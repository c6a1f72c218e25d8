#include "engine_side/route_reader.h"

#include <fmt/format.h>

#include <utility>

#include "base/start_worker.h"
#include "base/thread_priority.h"

namespace bascule {
namespace {

// An idle route waits for the next session; the session's own deadline bounds a transfer.
constexpr Duration kIdleWait = std::chrono::hours(1);

}  // namespace

RouteReader::RouteReader(TransportListener& listener, std::uint64_t connection, int index, Route route,
                         BucketSink& sink, Clock& clock, const StagingThreads& manners)
    : listener_(listener),
      connection_(connection),
      index_(index),
      route_(route),
      sink_(sink),
      clock_(clock),
      throttle_(manners.throttle),
      nice_(manners.nice) {}

Result<std::unique_ptr<RouteReader>> RouteReader::Start(TransportListener& listener, std::uint64_t connection,
                                                        int index, Route route, BucketSink& sink, Clock& clock,
                                                        const StagingThreads& manners) {
  auto reader = std::unique_ptr<RouteReader>(new RouteReader(listener, connection, index, route, sink, clock, manners));
  ASSIGN_OR_RETURN(reader->thread_, StartWorker(fmt::format("route{}-{}", route.sender_rank, route.engine_rank),
                                                [self = reader.get(), cores = manners.cores](std::stop_token stop) {
                                                  PinToCores(cores);
                                                  self->Run(std::move(stop));
                                                }));
  return reader;
}

void RouteReader::Run(std::stop_token stop) {
  const Status why = ReadUntilLost(stop);
  if (!stop.stop_requested()) sink_.OnRouteLost(index_, why);
}

Status RouteReader::ReadUntilLost(std::stop_token stop) {
  ASSIGN_OR_RETURN(const std::unique_ptr<BucketReceiver> receiver,
                   listener_.Accept(connection_, route_, Deadline::After(clock_, kIdleWait)));
  std::stop_callback cancel(stop, [&] { receiver->Cancel(); });
  while (true) {
    const Result<ReceivedFrame> frame = receiver->Receive(Deadline::After(clock_, kIdleWait));
    if (!frame.ok() && frame.status().code() == StatusCode::kDeadlineExceeded) continue;
    RETURN_IF_ERROR(frame.status());
    RETURN_IF_ERROR(TakeFrame(*receiver, *frame, stop));
  }
}

Status RouteReader::TakeFrame(BucketReceiver& receiver, const ReceivedFrame& frame, std::stop_token stop) {
  if (nice_ != 0 && sink_.IsLive()) GiveWay(std::exchange(nice_, 0));
  const TimePoint began = clock_.Now();
  RETURN_IF_ERROR(sink_.GiveBack(receiver, frame, sink_.OnBucket(index_, frame)));
  if (throttle_ == nullptr) return OkStatus();
  const Duration pause = throttle_->PauseAfter(clock_.Now() - began);
  if (pause > Duration::zero()) clock_.SleepUntil(clock_.Now() + pause, std::move(stop));
  return OkStatus();
}

}  // namespace bascule
