#include "trainer_side/gather/tensor_gatherer.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "bridge/group/group_session.h"
#include "bridge/manifest/manifest.h"
#include "device/host/host_memory.h"

namespace bascule {

TensorGatherer::TensorGatherer(const GatherPlan& plan, const WeightSource& own, GatherConnection* connection,
                               Deadline deadline, Clock& clock)
    : plan_(plan),
      connection_(connection),
      deadline_(deadline),
      clock_(clock),
      packer_(plan.plan(), own),
      digests_(plan.plan().tensors.size()) {
  for (const TensorSpec& tensor : plan.plan().tensors) keys_.push_back(KeyOf(tensor));
  if (connection_ != nullptr) {
    auto team = connection_->Begin(session_, deadline, [this] { OnTeamChange(); });
    MutexLock lock(mu_);
    team_ = std::move(team);
  }
  worker_ = Worker("gather", [this](std::stop_token) { Run(); });
}

TensorGatherer::~TensorGatherer() { static_cast<void>(Finish()); }

Result<std::shared_ptr<const FullWindow>> TensorGatherer::Take(std::int32_t window, const std::stop_token& stop) {
  std::stop_callback wake(stop, [this] {
    MutexLock lock(mu_);
    changed_.NotifyAll();
  });
  Request request{.window = window, .full = nullptr};
  MutexLock lock(mu_);
  if (latest_ != nullptr && latest_->window() == window) return latest_;
  requests_.push_back(&request);
  changed_.NotifyAll();
  while (request.full == nullptr && failure_.ok() && !stop.stop_requested() && !deadline_.Passed(clock_)) {
    clock_.WaitUntil(changed_, mu_, deadline_.point());
  }
  std::erase(requests_, &request);
  if (request.full != nullptr) return request.full;
  if (!failure_.ok()) return failure_;
  if (stop.stop_requested()) return Status::Cancelled("cancelled", "nobody reads any more");
  return Status::DeadlineExceeded("deadline", "a window of tensors was not gathered in time");
}

std::optional<TensorDigest> TensorGatherer::DigestOf(std::int32_t tensor) const {
  MutexLock lock(mu_);
  return digests_[static_cast<std::size_t>(tensor)];
}

std::string TensorGatherer::WaitsFor() const {
  MutexLock lock(mu_);
  return waits_for_ ? fmt::format("trainer rank {}", *waits_for_) : "";
}

std::int64_t TensorGatherer::window_bytes() const {
  MutexLock lock(mu_);
  return static_cast<std::int64_t>(windows_.size()) * plan_.largest_window_bytes();
}

bool TensorGatherer::Finish() {
  if (!worker_.joinable()) return true;
  const bool was_idle = StopWhenIdle();
  if (!was_idle && connection_ != nullptr) connection_->Cancel();
  worker_.Join();
  if (connection_ == nullptr) return true;
  const bool all_received = was_idle && !fetched_;
  const Status status = all_received ? EndFetching() : Status::Cancelled("cancelled", "nobody reads any more");
  if (!status.ok()) team_->End(status);
  return status.ok();
}

bool TensorGatherer::StopWhenIdle() {
  MutexLock lock(mu_);
  stopping_ = true;
  changed_.NotifyAll();
  return idle_;
}

Status TensorGatherer::EndFetching() {
  team_->EndFetching();
  MutexLock lock(mu_);
  while (!team_->finished() && !deadline_.Passed(clock_)) clock_.WaitUntil(changed_, mu_, deadline_.point());
  if (team_->failed()) return team_->failure();
  return team_->finished() ? OkStatus() : Status::DeadlineExceeded("deadline", team_->Unfinished());
}

// A rank that fails wakes whoever waits for its frames.
void TensorGatherer::OnTeamChange() {
  bool failed = false;
  {
    MutexLock lock(mu_);
    failed = team_ != nullptr && team_->failed();
    changed_.NotifyAll();
  }
  if (failed) connection_->Cancel();
}

void TensorGatherer::Run() {
  Status status = GatherAll();
  if (status.ok()) return;
  if (team_ != nullptr && team_->failed()) status = team_->failure();  // it knows why its routes ended
  MutexLock lock(mu_);
  failure_ = std::move(status);
  changed_.NotifyAll();
}

Status TensorGatherer::GatherAll() {
  if (team_ != nullptr) {
    team_->SendAll();
    RETURN_IF_ERROR(connection_->AcceptRoutes(deadline_));
  }
  while (const std::optional<std::int32_t> window = NextWindow()) RETURN_IF_ERROR(Gather(*window));
  return OkStatus();
}

std::optional<std::int32_t> TensorGatherer::NextWindow() {
  MutexLock lock(mu_);
  idle_ = true;
  while (requests_.empty() && !stopping_) clock_.WaitUntil(changed_, mu_, deadline_.point());
  if (stopping_) return std::nullopt;
  idle_ = false;
  return fetched_.value_or(requests_.front()->window);
}

Status TensorGatherer::Gather(std::int32_t window) {
  if (fetched_ != window) Fetch(window);
  ASSIGN_OR_RETURN(FullWindow* const full, FreeWindow());
  full->Reset(window);
  WindowAssembly assembly(plan_, keys_, session_, *full);
  const GatherWindow& planned = plan_.windows()[static_cast<std::size_t>(window)];
  for (std::uint32_t i = 0; i < planned.bucket_count; ++i) {
    const std::uint32_t bucket = planned.first_bucket + i;
    const std::int32_t route = plan_.plan().buckets[bucket].route;
    const bool is_own = packer_.source().Holds(plan_.plan().routes[static_cast<std::size_t>(route)].sender_rank);
    RETURN_IF_ERROR(is_own ? PlaceOwn(bucket, assembly) : Receive(route, assembly));
  }
  RETURN_IF_ERROR(NoteDigests(window, assembly.totals()));
  fetched_.reset();
  // Ahead of its reader, unless another one waits.
  const bool others_wait = Deliver(*full);
  const std::int32_t next = window + 1;
  if (!others_wait && std::cmp_less(next, plan_.windows().size())) Fetch(next);
  return OkStatus();
}

Status TensorGatherer::PlaceOwn(std::uint32_t bucket, WindowAssembly& assembly) {
  if (own_frame_ == nullptr) {
    ASSIGN_OR_RETURN(own_frame_, HostMemory().Allocate(static_cast<std::size_t>(MaxFrameBytes(plan_.plan()))));
  }
  const std::span<std::byte> frame = own_frame_->bytes().first(static_cast<std::size_t>(packer_.FrameBytesOf(bucket)));
  const std::unique_ptr<BoxReader> reader = packer_.Read({&bucket, 1});
  RETURN_IF_ERROR(packer_.Pack({.session = session_, .bucket = bucket}, *reader, frame, {}));
  return assembly.Take(plan_.plan().buckets[bucket].route, frame).status();
}

// The next bucket of the route that is good.
Status TensorGatherer::Receive(std::int32_t route, WindowAssembly& assembly) {
  const std::int32_t rank = plan_.plan().routes[static_cast<std::size_t>(route)].sender_rank;
  BucketReceiver& receiver = connection_->receiver(route);
  WaitFor(rank);
  while (true) {
    const Result<ReceivedFrame> frame = receiver.Receive(deadline_);
    if (!frame.ok()) {
      const bool lost = frame.status().reason() == "peer_lost";
      return OfRank(rank, lost ? Status::Unavailable("rank_lost", frame.status().ToString()) : frame.status());
    }
    const Result<BucketAck> ack = assembly.Take(route, frame->bytes);
    if (!ack.ok()) return OfRank(rank, ack.status());
    RETURN_IF_ERROR(receiver.Acknowledge(*frame, *ack));
    if (ack->verdict == BucketVerdict::kGood) break;
  }
  WaitFor(std::nullopt);
  return OkStatus();
}

void TensorGatherer::WaitFor(std::optional<std::int32_t> rank) {
  MutexLock lock(mu_);
  waits_for_ = rank;
}

void TensorGatherer::Fetch(std::int32_t window) {
  fetched_ = window;
  if (team_ == nullptr) return;
  const GatherWindow& planned = plan_.windows()[static_cast<std::size_t>(window)];
  team_->Fetch(planned.first_bucket, planned.bucket_count);
}

Result<FullWindow*> TensorGatherer::FreeWindow() {
  std::shared_ptr<const FullWindow> given_up;  // outside the lock, which giving up takes
  {
    MutexLock lock(mu_);
    given_up = std::move(latest_);
  }
  given_up.reset();
  {
    MutexLock lock(mu_);
    if (!free_.empty()) {
      FullWindow* const full = free_.back();
      free_.pop_back();
      return full;
    }
  }
  ASSIGN_OR_RETURN(auto memory, HostMemory().Allocate(static_cast<std::size_t>(plan_.largest_window_bytes())));
  MutexLock lock(mu_);
  windows_.push_back(std::make_unique<FullWindow>(plan_, std::move(memory)));
  return windows_.back().get();
}

Status TensorGatherer::NoteDigests(std::int32_t window, const std::vector<TensorDigest>& totals) {
  const GatherWindow& planned = plan_.windows()[static_cast<std::size_t>(window)];
  MutexLock lock(mu_);
  for (std::size_t i = 0; i < totals.size(); ++i) {
    const std::size_t tensor = static_cast<std::size_t>(planned.first_tensor) + i;
    if (digests_[tensor].value_or(totals[i]) != totals[i]) {
      return Status::DataLoss(
          "digest_mismatch", fmt::format("tensor {} has changed while it was sent", plan_.plan().tensors[tensor].name));
    }
    digests_[tensor] = totals[i];
  }
  return OkStatus();
}

bool TensorGatherer::Deliver(FullWindow& full) {
  // Whoever gives it up last gives it back.
  const std::shared_ptr<const FullWindow> shared(&full, [this](const FullWindow* read) {
    MutexLock lock(mu_);
    const auto own = std::ranges::find(windows_, read, &std::unique_ptr<FullWindow>::get);
    free_.push_back(own->get());
  });
  MutexLock lock(mu_);
  for (Request* request : requests_) {
    if (request->window == full.window()) request->full = shared;
  }
  std::erase_if(requests_, [&](const Request* request) { return request->full != nullptr; });
  latest_ = shared;
  changed_.NotifyAll();
  return !requests_.empty();
}

}  // namespace bascule
