#include "tests/support/scripted_engine/scripted_engine.h"

#include <atomic>
#include <cstring>
#include <utility>

#include "base/worker.h"
#include "bridge/bucket/bucket_format.h"
#include "bridge/plan/planner.h"

namespace bascule {
namespace {

constexpr Duration kLongTime = std::chrono::hours(24 * 365);
constexpr std::int32_t kMaxGrantedCredits = 6;
std::atomic<std::uint64_t> next_connection = 1;

// Element `index` of the box in row-major order, as a position in a dense tensor of `shape`.
std::int64_t PositionInTensor(const Box& box, const Dims& shape, std::int64_t index) {
  std::int64_t position = 0;
  std::int64_t scale = 1;
  for (int d = shape.size() - 1; d >= 0; --d) {
    position += (box.offset[d] + index % box.extent[d]) * scale;
    index /= box.extent[d];
    scale *= shape[d];
  }
  return position;
}

}  // namespace

struct ScriptedEngine::Connection {
  ControlChannel& channel;
  std::uint64_t id = next_connection++;
  Plan plan;
  SessionId session;                                    // under mu_
  std::set<std::uint32_t> received;                     // under mu_
  bool stalled = false;                                 // under mu_
  bool over = false;                                    // under mu_
  std::vector<std::unique_ptr<BucketReceiver>> routes;  // under mu_
  std::vector<Worker> workers;
};

ScriptedEngine::ScriptedEngine(LoopbackControl& control, LoopbackNetwork& network, std::string address, Layout layout,
                               Clock& clock)
    : clock_(clock), layout_(std::move(layout)) {
  auto listener = LoopbackListener::Create(network, address, clock);
  CHECK(listener.ok());
  listener_ = std::move(*listener);
  for (const RankLayout& rank : layout_.ranks) {
    auto& tensors = shadow_.emplace_back();
    for (const LocalTensor& tensor : rank.tensors) tensors.emplace_back(static_cast<std::size_t>(tensor.Bytes()));
  }
  live_memory_ = shadow_;
  auto serving = control.Listen(address, [this](ControlChannel& channel) { Serve(channel); });
  CHECK(serving.ok());
  control_ = std::move(*serving);
}

ScriptedEngine::~ScriptedEngine() { control_.reset(); }

void ScriptedEngine::Play(EngineScript script) {
  MutexLock lock(mu_);
  script_ = std::move(script);
  changed_.NotifyAll();
}

void ScriptedEngine::SetLive(WeightVersion live) {
  MutexLock lock(mu_);
  live_ = std::move(live);
}

void ScriptedEngine::GoBack() {
  MutexLock lock(mu_);
  std::swap(live_memory_, kept_memory_);
  std::swap(live_, kept_);
}

std::vector<std::byte> ScriptedEngine::Live(int engine_rank, int tensor) const {
  MutexLock lock(mu_);
  return live_memory_[static_cast<std::size_t>(engine_rank)][static_cast<std::size_t>(tensor)];
}

WeightVersion ScriptedEngine::live() const {
  MutexLock lock(mu_);
  return live_;
}

ScriptedEngine::Account ScriptedEngine::account() const {
  MutexLock lock(mu_);
  return account_;
}

bool ScriptedEngine::WaitFor(const std::function<bool(const Account&)>& wanted) const {
  const Deadline deadline = Deadline::After(Clock::Real(), std::chrono::seconds(30));
  MutexLock lock(mu_);
  while (!wanted(account_)) {
    if (deadline.Passed(Clock::Real())) return false;
    Clock::Real().WaitUntil(changed_, mu_, deadline.point());
  }
  return true;
}

void ScriptedEngine::Serve(ControlChannel& channel) {
  Connection connection{.channel = channel, .plan = {}, .session = {}, .received = {}, .routes = {}, .workers = {}};
  {
    MutexLock lock(mu_);
    ++account_.connections;
  }
  while (true) {
    const Result<SessionMessage> message = channel.Receive(Deadline::After(clock_, kLongTime));
    if (!message.ok() || !Answer(connection, *message)) break;
  }
  channel.Cancel();
  listener_->Forget(connection.id);
  {
    MutexLock lock(mu_);
    connection.over = true;
    for (const auto& route : connection.routes) route->Cancel();
  }
  connection.workers.clear();
}

bool ScriptedEngine::Answer(Connection& connection, const SessionMessage& message) {
  {
    MutexLock lock(mu_);
    if (const auto* abort = std::get_if<Abort>(&message)) {
      account_.aborts.push_back(abort->why);
      connection.session = {};
      changed_.NotifyAll();
      return true;
    }
    if (const auto* require = std::get_if<Require>(&message)) {
      account_.required.push_back(require->version);
      changed_.NotifyAll();
      return true;
    }
    if (connection.stalled) return true;
  }
  if (const auto* hello = std::get_if<Hello>(&message)) return OnHello(connection, *hello);
  if (const auto* offer = std::get_if<Offer>(&message)) return OnOffer(connection, *offer);
  if (const auto* seal = std::get_if<Seal>(&message)) return OnSeal(connection, *seal);
  if (const auto* flip = std::get_if<Flip>(&message)) return OnFlip(connection, *flip);
  if (const auto* roll_back = std::get_if<RollBack>(&message)) return OnRollBack(connection, *roll_back);
  return false;
}

bool ScriptedEngine::Misbehaves(EngineStep step, Connection& connection) {
  MutexLock lock(mu_);
  if (script_.hold == step) {
    ++account_.holds;
    changed_.NotifyAll();
  }
  while (script_.hold == step) Clock::Real().WaitUntil(changed_, mu_, Clock::Real().Now() + kLongTime);
  if (script_.step != step) return false;
  ++account_.misdeeds;
  changed_.NotifyAll();
  switch (script_.deed) {
    case EngineDeed::kAbort:
      static_cast<void>(connection.channel.Send(Abort{connection.session, script_.why}));
      connection.session = {};
      break;
    case EngineDeed::kVanish:
      connection.channel.Cancel();
      break;
    case EngineDeed::kStall:
      connection.stalled = true;
      break;
  }
  return true;
}

bool ScriptedEngine::OnHello(Connection& connection, const Hello& hello) {
  if (Misbehaves(EngineStep::kHello, connection)) return true;
  if (full_tensors_only_ && !HoldsFullTensors(hello.sender_layout)) {
    const Status why = Status::FailedPrecondition("full_tensors_only", "by the engine");
    return connection.channel.Send(Abort{SessionId{}, why}).ok();
  }
  // Without a plan the publisher finds out why, from the same layouts.
  if (Result<Plan> plan = MakePlan(hello.sender_layout, layout_, hello.plan_options); plan.ok()) {
    connection.plan = std::move(*plan);
  }
  listener_->Expect(connection.id);
  const WeightVersion now_live = live();
  WeightVersion now_kept;
  {
    MutexLock lock(mu_);
    now_kept = kept_;
  }
  return connection.channel
      .Send(HelloReply{.engine = {.value = 7},
                       .model = "",
                       .engine_layout = layout_,
                       .live = now_live,
                       .kept = now_kept,
                       .highest_number = now_live.number,
                       .endpoints = {listener_->endpoint()},
                       .connection = connection.id,
                       .max_credits = kMaxGrantedCredits})
      .ok();
}

bool ScriptedEngine::OnOffer(Connection& connection, const Offer& offer) {
  {
    MutexLock lock(mu_);
    account_.offers.push_back(offer);
    connection.session = offer.session;
    connection.received.clear();
  }
  if (Misbehaves(EngineStep::kOffer, connection)) return true;
  {
    MutexLock lock(mu_);
    const bool reused = offer.manifest.run == live_.run && offer.manifest.number <= live_.number;
    if (reused || offer.plan_digest != connection.plan.digest) {
      static_cast<void>(connection.channel.Send(Abort{
          offer.session, Status::FailedPrecondition(reused ? "version_reused" : "plan_mismatch", "by the engine")}));
      return true;
    }
    if (script_.speaks_of_another_session) {
      const SessionId other{offer.session.value ^ 1};
      static_cast<void>(connection.channel.Send(Abort{other, Status::NotFound("unknown_session", "late")}));
    }
  }
  if (!connection.channel.Send(Accept{offer.session}).ok()) return false;
  while (connection.workers.size() < connection.plan.routes.size()) {
    const Route route = connection.plan.routes[connection.workers.size()];
    connection.workers.emplace_back("route", [this, &connection, route](std::stop_token) {
      if (BucketReceiver* receiver = AcceptRoute(connection, route)) ReceiveBuckets(connection, *receiver);
    });
  }
  return true;
}

BucketReceiver* ScriptedEngine::AcceptRoute(Connection& connection, Route route) {
  auto accepted = listener_->Accept(connection.id, route, Deadline::After(clock_, kLongTime));
  if (!accepted.ok()) return nullptr;
  MutexLock lock(mu_);
  if (connection.over) return nullptr;
  account_.credits.push_back((*accepted)->hello().credits);
  account_.frame_limits.push_back((*accepted)->hello().frame_bytes);
  connection.routes.push_back(std::move(*accepted));
  return connection.routes.back().get();
}

void ScriptedEngine::ReceiveBuckets(Connection& connection, BucketReceiver& route) {
  while (true) {
    const Result<ReceivedFrame> frame = route.Receive(Deadline::After(clock_, kLongTime));
    if (!frame.ok()) return;
    const std::optional<BucketAck> ack = TakeFrame(connection, frame->bytes);
    if (!ack || !route.Acknowledge(*frame, *ack).ok()) return;
  }
}

std::optional<BucketAck> ScriptedEngine::TakeFrame(Connection& connection, std::span<const std::byte> frame) {
  {
    MutexLock lock(mu_);
    ++account_.frames;
    account_.frame_bytes += static_cast<std::int64_t>(frame.size());
    changed_.NotifyAll();
  }
  if (Misbehaves(EngineStep::kBucket, connection)) return std::nullopt;
  MutexLock lock(mu_);
  const Result<BucketHeader> header = ParseBucketHeader(frame);
  if (!header.ok()) return BucketAck{.bucket = kNoBucket, .verdict = BucketVerdict::kDamaged};
  BucketAck ack{.bucket = header->bucket, .attempt = header->attempt};
  if (header->session != connection.session) {
    ack.verdict = BucketVerdict::kFenced;
    return ack;
  }
  if (script_.judge) ack.verdict = script_.judge(header->bucket, header->attempt);
  if (ack.verdict != BucketVerdict::kGood) return ack;
  if (script_.lose.contains(header->bucket) && (header->attempt == 0 || script_.lose_always)) return ack;
  if (!connection.received.insert(header->bucket).second) {
    ack.verdict = BucketVerdict::kDuplicate;
    return ack;
  }
  Place(connection.plan, connection.plan.buckets[header->bucket],
        frame.subspan(static_cast<std::size_t>(PayloadOffset(header->slice_count))));
  return ack;
}

void ScriptedEngine::Place(const Plan& plan, const Bucket& bucket, std::span<const std::byte> payload) {
  const auto rank = static_cast<std::size_t>(plan.routes[static_cast<std::size_t>(bucket.route)].engine_rank);
  for (const Slice& slice : bucket.slices) {
    const auto tensor = static_cast<std::size_t>(slice.engine_tensor);
    const LocalTensor& local = layout_.ranks[rank].tensors[tensor];
    const auto item = static_cast<std::size_t>(ItemBytes(local.dtype));
    for (std::int64_t e = 0; e < slice.engine_box.Elements(); ++e) {
      const auto to = static_cast<std::size_t>(PositionInTensor(slice.engine_box, local.shape, e));
      std::memcpy(&shadow_[rank][tensor][to * item],
                  &payload[static_cast<std::size_t>(slice.payload_offset) + static_cast<std::size_t>(e) * item], item);
    }
  }
}

bool ScriptedEngine::OnSeal(Connection& connection, const Seal& seal) {
  if (Misbehaves(EngineStep::kSeal, connection)) return true;
  MutexLock lock(mu_);
  Missing missing{.session = seal.session, .buckets = {}};
  for (std::uint32_t bucket = 0; bucket < connection.plan.buckets.size(); ++bucket) {
    if (!connection.received.contains(bucket)) missing.buckets.push_back(bucket);
  }
  if (!missing.buckets.empty()) return connection.channel.Send(missing).ok();
  account_.seals.push_back(seal.manifest);
  changed_.NotifyAll();
  return connection.channel.Send(Ready{.session = seal.session, .stage_ms = 3, .verify_ms = 2}).ok();
}

bool ScriptedEngine::OnFlip(Connection& connection, const Flip& flip) {
  if (Misbehaves(EngineStep::kFlip, connection)) return true;
  MutexLock lock(mu_);
  kept_memory_ = std::exchange(live_memory_, shadow_);
  kept_ = live_;
  const ManifestOffer& offered = account_.offers.back().manifest;
  live_ = {.run = offered.run, .number = offered.number, .digest = account_.seals.back().version_digest};
  connection.session = {};
  changed_.NotifyAll();
  return connection.channel.Send(Committed{flip.session, FlipReport{.version = live_, .step = 41, .kv = {}}}).ok();
}

bool ScriptedEngine::OnRollBack(Connection& connection, const RollBack& roll_back) {
  if (Misbehaves(EngineStep::kRollback, connection)) return true;
  MutexLock lock(mu_);
  if (live_ != roll_back.from || kept_.run.empty() || kept_.number != roll_back.to.value_or(kept_.number)) {
    return connection.channel.Send(Abort{{}, Status::FailedPrecondition("version_not_live", "by the engine")}).ok();
  }
  std::swap(live_memory_, kept_memory_);
  std::swap(live_, kept_);
  if (roll_back.refused) kept_ = {};
  account_.rollbacks.push_back(roll_back);
  changed_.NotifyAll();
  return connection.channel.Send(RolledBack{FlipReport{.version = live_, .step = 43, .kv = {}}}).ok();
}

}  // namespace bascule
