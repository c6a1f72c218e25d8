#include "engine_side/cache_daemon/messages.h"

#include <algorithm>

namespace bascule {
namespace {

constexpr std::uint32_t kMaxRanks = 4096;

}  // namespace

std::string_view CachePhaseName(CachePhase phase) {
  switch (phase) {
    case CachePhase::kEmpty:
      return "empty";
    case CachePhase::kReceiving:
      return "receiving";
    case CachePhase::kHolding:
      return "holding";
    case CachePhase::kBehind:
      return "behind";
  }
  return "unknown";
}

RunText ToRunText(const std::string& run) {
  RunText text{};
  std::ranges::copy(std::string_view(run).substr(0, text.size() - 1), text.begin());
  return text;
}

Result<std::string> FromRunText(const RunText& text) {
  const auto end = std::ranges::find(text, '\0');
  if (end == text.end() || end - text.begin() > static_cast<std::ptrdiff_t>(kMaxRunBytes)) {
    return Status::DataLoss("bad_message", "a run's name does not end");
  }
  return std::string(text.begin(), end);
}

Status CheckHello(const CacheHello& hello) {
  if (hello.magic == kCacheMagic && hello.protocol == kCacheProtocol && hello.wants_number <= 1) return OkStatus();
  return Status::FailedPrecondition("cache_protocol", fmt::format("magic={:#x} protocol={} want={:#x}, {}", hello.magic,
                                                                  hello.protocol, kCacheMagic, kCacheProtocol));
}

Status CheckWelcome(const CacheWelcome& welcome) {
  RETURN_IF_ERROR(FromShm(welcome.outcome));
  if (welcome.protocol != kCacheProtocol) {
    return Status::FailedPrecondition(
        "cache_protocol", fmt::format("the daemon speaks {}, the engine {}", welcome.protocol, kCacheProtocol));
  }
  if (welcome.phase <= static_cast<std::uint32_t>(CachePhase::kBehind)) return OkStatus();
  return Status::DataLoss("bad_message", fmt::format("phase={}", welcome.phase));
}

Status CheckVersion(const CacheVersion& version) {
  const bool good = version.rank_count >= 1 && version.rank_count <= kMaxRanks && version.manifest_bytes > 0 &&
                    version.manifest_bytes <= kMaxCacheManifestBytes &&
                    version.change <= static_cast<std::uint32_t>(CacheChange::kRefused);
  if (good) return FromRunText(version.run).status();
  return Status::DataLoss("bad_message", fmt::format("ranks={} manifest_bytes={} change={}", version.rank_count,
                                                     version.manifest_bytes, version.change));
}

}  // namespace bascule
