// What a cache daemon and an engine say over their socket. Both are on one host: native byte order, fixed sizes.
//
//   engine                                   daemon
//   CacheHello                       ->
//                                    <-      CacheWelcome
//                                    <-      CacheVersion with the frozen manifest, then a CacheRank with the frozen
//                                            memory of each engine rank: when there is a version, and at every change
//   EngineReport                      ->      what became of it; the next version comes after that
//
// Thread-safety: thread-compatible (values).
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/ids.h"
#include "base/status.h"
#include "bridge/manifest/manifest.h"
#include "bridge/transport/shm/messages.h"

namespace bascule {

inline constexpr std::uint32_t kCacheMagic = 0x63687362;  // "bshc"
inline constexpr std::uint32_t kCacheProtocol = 2;
inline constexpr std::int64_t kMaxCacheManifestBytes = std::int64_t{1} << 28;

using RunText = std::array<char, 264>;  // kMaxRunBytes, and a zero at the end

struct CacheHello {
  std::uint32_t magic = kCacheMagic;
  std::uint32_t protocol = kCacheProtocol;
  std::uint64_t number = 0;        // of the version that is wanted
  std::uint64_t wants_number = 0;  // 0: whatever is live, now and later
};

// What a daemon has: said so that a wait can be explained.
enum class CachePhase : std::uint32_t {
  kEmpty,      // nothing, and nothing comes
  kReceiving,  // nothing yet, and a version comes
  kHolding,    // a verified version
  kBehind,     // an older version than its fleet has committed: not handed out
};
std::string_view CachePhaseName(CachePhase phase);  // "empty"

struct CacheWelcome {
  ShmReply outcome;  // OK, or why the daemon hangs up
  std::uint32_t protocol = kCacheProtocol;
  std::uint32_t phase = 0;     // CachePhase
  std::uint64_t instance = 0;  // of the daemon: another one after each start
};

// How the version became live.
enum class CacheChange : std::uint32_t {
  kHeld,
  kFlip,
  kRollback,
  kRefused,  // a rollback, from a version that is not to be kept
};

struct CacheVersion {
  std::uint64_t sequence = 0;  // of changes of what is live in the daemon
  std::uint64_t number = 0;
  std::int64_t manifest_bytes = 0;
  std::uint32_t rank_count = 0;
  std::uint32_t change = 0;  // CacheChange
  RunText run{};
};

struct CacheRank {
  std::uint64_t sequence = 0;
  std::uint64_t rank = 0;
  std::int64_t bytes = 0;
};

struct EngineReport {
  std::uint64_t sequence = 0;
  std::uint64_t live_number = 0;
  RunText live_run{};  // empty while nothing is live
  ShmReply outcome;
};

RunText ToRunText(const std::string& run);
// DataLoss "bad_message"  it does not end
Result<std::string> FromRunText(const RunText& text);

// FailedPrecondition "cache_protocol"  it is no hello, or of another protocol: both
Status CheckHello(const CacheHello& hello);
// DataLoss "bad_message"; FailedPrecondition "cache_protocol"; what the daemon refused for
Status CheckWelcome(const CacheWelcome& welcome);
// DataLoss "bad_message"  numbers out of bounds
Status CheckVersion(const CacheVersion& version);

}  // namespace bascule
