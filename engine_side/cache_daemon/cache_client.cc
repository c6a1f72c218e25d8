#include "engine_side/cache_daemon/cache_client.h"

#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "bridge/transport/shm/runtime_directory.h"
#include "engine_side/cache_daemon/frozen_memory.h"

namespace bascule {
namespace {

// What belongs to one version comes at once.
constexpr Duration kTogether = std::chrono::seconds(10);

template <typename Message>
Result<Message> ReadMessage(MessageSocket& socket, Deadline deadline, Clock& clock, UniqueFd* passed = nullptr) {
  Message message;
  RETURN_IF_ERROR(socket.Receive(std::as_writable_bytes(std::span(&message, 1)), deadline, clock, passed));
  return message;
}

bool IsAbsent(const std::string& path) {
  struct stat found {};
  return lstat(path.c_str(), &found) != 0 && errno == ENOENT;
}

}  // namespace

Result<std::vector<std::unique_ptr<DeviceBuffer>>> HandedOut::Map() const {
  std::vector<std::unique_ptr<DeviceBuffer>> memory;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    ASSIGN_OR_RETURN(auto buffer, MapFrozen(ranks[r], manifest.ranks[r].bytes));
    memory.push_back(std::move(buffer));
  }
  return memory;
}

Result<std::unique_ptr<CacheClient>> CacheClient::Connect(const std::string& path, std::optional<std::uint64_t> number,
                                                          Deadline deadline, Clock& clock) {
  RETURN_IF_ERROR(CheckSocketPath(path));
  if (IsAbsent(path)) return Status::NotFound("daemon_absent", fmt::format("{} does not exist", path));
  ASSIGN_OR_RETURN(MessageSocket socket, MessageSocket::Connect(path, deadline, clock));
  RETURN_IF_ERROR(socket.CheckPeer());
  std::unique_ptr<CacheClient> client(new CacheClient(std::move(socket), clock));
  RETURN_IF_ERROR(client->Greet(number, deadline));
  return client;
}

Status CacheClient::Greet(std::optional<std::uint64_t> number, Deadline deadline) {
  RETURN_IF_ERROR(
      socket_.Send(BytesOf(CacheHello{.number = number.value_or(0), .wants_number = number.has_value() ? 1U : 0U})));
  ASSIGN_OR_RETURN(const CacheWelcome welcome, ReadMessage<CacheWelcome>(socket_, deadline, clock_));
  RETURN_IF_ERROR(CheckWelcome(welcome));
  daemon_ = InstanceId{welcome.instance};
  phase_ = static_cast<CachePhase>(welcome.phase);
  return OkStatus();
}

Result<HandedOut> CacheClient::Next(Deadline deadline) {
  UniqueFd manifest;
  ASSIGN_OR_RETURN(const CacheVersion message, ReadMessage<CacheVersion>(socket_, deadline, clock_, &manifest));
  RETURN_IF_ERROR(CheckVersion(message));
  const Deadline together = Deadline::After(clock_, kTogether);
  HandedOut version{.sequence = message.sequence,
                    .change = static_cast<CacheChange>(message.change),
                    .version = {},
                    .manifest = {},
                    .ranks = {}};
  for (std::uint32_t r = 0; r < message.rank_count; ++r) {
    UniqueFd memory;
    ASSIGN_OR_RETURN(const CacheRank rank, ReadMessage<CacheRank>(socket_, together, clock_, &memory));
    if (rank.sequence != message.sequence || rank.rank != r) {
      return Status::DataLoss(
          "bad_message", fmt::format("rank {} of {}, want {} of {}", rank.rank, rank.sequence, r, message.sequence));
    }
    version.ranks.push_back(std::move(memory));
  }
  ASSIGN_OR_RETURN(const std::string text, ReadFrozenText(manifest, message.manifest_bytes));
  ASSIGN_OR_RETURN(version.manifest, ReadArtifactManifest(text));
  if (version.manifest.ranks.size() != version.ranks.size()) {
    return Status::DataLoss("bad_message", fmt::format("memory of {} ranks, the manifest has {}", version.ranks.size(),
                                                       version.manifest.ranks.size()));
  }
  ASSIGN_OR_RETURN(version.version.run, FromRunText(message.run));
  version.version.number = message.number;
  version.version.digest = version.manifest.version_digest;
  return version;
}

Status CacheClient::Report(std::uint64_t sequence, const Status& outcome, const std::optional<WeightVersion>& live) {
  const WeightVersion shown = live.value_or(WeightVersion{});
  return socket_.Send(BytesOf(EngineReport{
      .sequence = sequence, .live_number = shown.number, .live_run = ToRunText(shown.run), .outcome = ToShm(outcome)}));
}

}  // namespace bascule
