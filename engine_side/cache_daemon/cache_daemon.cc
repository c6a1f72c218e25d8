#include "engine_side/cache_daemon/cache_daemon.h"

#include <utility>

#include "base/log.h"
#include "engine_side/cache_daemon/frozen_memory.h"

namespace bascule {
namespace {

constexpr Duration kLook = std::chrono::milliseconds(50);  // between looks whether the daemon stops

class Daemon final : public CacheDaemon {
 public:
  Daemon(CacheDaemonOptions options, WeightReceiver& receiver)
      : options_(std::move(options)), receiver_(receiver), store_(options_.keep) {}

  ~Daemon() override {
    keeper_.RequestStop();
    keeper_.Join();
  }

  Status Start() {
    CacheSocketOptions socket{
        .path = options_.socket, .instance = instance_, .phase = [this] { return phase(); }, .clock = options_.clock};
    ASSIGN_OR_RETURN(socket_, CacheSocket::Create(std::move(socket), store_));
    if (!GivesHugePages()) {
      LogWarn("small_pages", "what=\"engines read mapped weights slowly\" try=\"echo advise > {}\"",
              "/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    }
    keeper_ = Worker("cache_keeper", [this](const std::stop_token& stop) { Keep(stop); });
    return OkStatus();
  }

  CacheDaemonStatus status() const override {
    CacheDaemonStatus status{.instance = instance_, .phase = phase(), .objects = {}, .engines = socket_->engines()};
    for (const auto& object : store_.All()) {
      status.objects.push_back({object->version, object->Bytes(), status.objects.empty()});
    }
    return status;
  }

 private:
  CachePhase phase() const {
    const ReceiverStatus status = receiver_.status();
    const std::optional<LiveObject> recorded = store_.Live();
    if (status.live && status.required) return CachePhase::kBehind;
    // Between a flip and its record what is on record is old already.
    if (status.live)
      return recorded && recorded->object->version == *status.live ? CachePhase::kHolding : CachePhase::kReceiving;
    return status.session ? CachePhase::kReceiving : CachePhase::kEmpty;
  }

  // Follows what is live in the receiver.
  void Keep(const std::stop_token& stop) {
    std::uint64_t seen = 0;
    while (!stop.stop_requested()) {
      const auto mark = receiver_.WaitForChange(seen, Deadline::After(*options_.clock, kLook));
      if (!mark.ok()) continue;
      seen = *mark;
      if (const Status status = Record(); !status.ok()) LogError("cache_not_recorded", "why=\"{}\"", status.ToString());
      socket_->Changed();
    }
  }

  // Puts the live version on record, unless it is.
  Status Record() {
    const WeightLease lease = receiver_.AcquireLive();
    if (lease.empty()) return OkStatus();
    const std::optional<LiveObject> last = store_.Live();
    if (last && last->object->version == lease.version()) return OkStatus();
    std::shared_ptr<const VersionObject> object = store_.Find(lease.version());
    if (object == nullptr) {
      ASSIGN_OR_RETURN(object, ObjectOf(lease));
    }
    store_.MakeLive(object, ChangeTo(lease.version()));
    LogInfo("cache_holds", "version={} digest={} bytes={}", object->version.ToString(), object->version.digest.ToHex(),
            object->Bytes());
    return OkStatus();
  }

  CacheChange ChangeTo(const WeightVersion& version) const {
    const std::vector<HistoryEntry> rows = receiver_.History();
    for (auto row = rows.rbegin(); row != rows.rend(); ++row) {
      if (!row->committed || row->version != version) continue;
      switch (row->kind) {
        case HistoryEntry::Kind::kInitial:
          return CacheChange::kHeld;
        case HistoryEntry::Kind::kRollback:
          return row->refused ? CacheChange::kRefused : CacheChange::kRollback;
        case HistoryEntry::Kind::kFull:
          return CacheChange::kFlip;
      }
    }
    return CacheChange::kFlip;
  }

  Result<std::shared_ptr<const VersionObject>> ObjectOf(const WeightLease& lease) const {
    auto object = std::make_shared<VersionObject>();
    object->version = lease.version();
    ArtifactManifest manifest = options_.model;
    manifest.digests = lease.held().totals;
    manifest.version_digest = manifest.source_digest = lease.version().digest;
    manifest.ranks.clear();
    for (std::size_t r = 0; r < manifest.layout.ranks.size(); ++r) {
      ASSIGN_OR_RETURN(UniqueFd memory, DuplicateOf(lease.shared_fd(static_cast<int>(r))));
      object->ranks.push_back(std::move(memory));
      object->rank_bytes.push_back(WeightSlots::RankBytes(manifest.layout.ranks[r]));
      manifest.ranks.push_back(
          {.file = fmt::format("rank-{}", r), .bytes = object->rank_bytes.back(), .content = ContentOf(lease, r)});
    }
    const std::string text = WriteArtifactManifest(manifest);
    object->manifest_bytes = std::ssize(text);
    ASSIGN_OR_RETURN(object->manifest, FrozenText(text));
    return std::shared_ptr<const VersionObject>(std::move(object));
  }

  Hash256 ContentOf(const WeightLease& lease, std::size_t rank) const {
    const DigestsByRank& received = lease.held().received;
    if (received.empty()) return {};  // adopted unseen: nobody has looked
    return VersionDigestOf(options_.model.layout.tensors, received[rank]);
  }

  const CacheDaemonOptions options_;
  const InstanceId instance_ = InstanceId::Mint();
  WeightReceiver& receiver_;
  VersionStore store_;
  std::unique_ptr<CacheSocket> socket_;
  Worker keeper_;
};

}  // namespace

Result<std::unique_ptr<CacheDaemon>> CacheDaemon::Create(CacheDaemonOptions options, WeightReceiver& receiver) {
  if (options.keep < 1) return Status::InvalidArgument("bad_options", fmt::format("keep={} least=1", options.keep));
  options.model.layout = receiver.layout();
  options.model.stored = PlainLayout(receiver.layout().tensors);
  auto daemon = std::make_unique<Daemon>(std::move(options), receiver);
  RETURN_IF_ERROR(daemon->Start());
  return std::unique_ptr<CacheDaemon>(std::move(daemon));
}

}  // namespace bascule
