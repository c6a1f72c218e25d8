// Stage: flip (verify -> [flip] -> decode)
//
// Exchanges the bytes of two memories block by block under a journal that says, at every moment, where the bytes of
// both are: a copy that fails leaves nothing that Undo cannot bring back. The block under way is saved aside first, so
// its bytes exist twice until both sides have theirs.
//
// Cost: each memory is read and written once (the saved block stays in the cache).
//
// Thread-safety: confined to one thread; Run and Undo use threads of their own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace bascule {

// How blocks are copied: memcpy, or a device's copy. Thread-safe, unless it says otherwise.
class BlockCopier {
 public:
  virtual ~BlockCopier() = default;
  // Of equal sizes, apart. It is done when this returns, or later: copies are done in the order of the calls. After an
  // error `to` holds anything.
  virtual Status Copy(std::span<std::byte> to, std::span<const std::byte> from) = 0;
  // Waits until all copies are done.
  virtual Status Finish() { return OkStatus(); }
};

BlockCopier& HostBlockCopier();

class BlockExchange {
 public:
  struct Pair {
    std::span<std::byte> a, b;  // of equal sizes
  };
  static constexpr std::size_t kBlockBytes = 256 << 10;  // with its saved copy, within a core's second-level cache

  // What one thread exchanges by one copier, in blocks as large as `saved`, where the block under way is saved. All is
  // borrowed; the copier need not be thread-safe.
  struct Share {
    std::vector<Pair> memory;
    BlockCopier* copier = nullptr;
    std::span<std::byte> saved;
  };

  // Host memory, in blocks of kBlockBytes. Borrows the memory and `copier`. Two lanes: one core alone does not use the
  // memory's bandwidth.
  BlockExchange(std::span<const Pair> memory, BlockCopier& copier, int lanes = 2);
  BlockExchange(std::span<const std::vector<Pair>> memory, BlockCopier& copier);
  // Any memory.
  explicit BlockExchange(std::span<const Share> shares);
  BlockExchange(BlockExchange&&) = default;

  // Begins a journal and exchanges everything. The first error of a copier; other lanes then stop at their next block.
  // The journal is of copies in their order, so it holds also while a copier has yet to do them.
  Status Run();
  // Takes back what the journal says was exchanged, the last first. After an error of a copier neither memory is whole.
  Status Undo();

 private:
  // Where the bytes of the block under way are, beside those in `saved`.
  enum class Phase {
    kUntouched,  // a and b as they were before this block
    kSaved,      // a's bytes are in `saved`; a is being overwritten with b's
    kWritten,    // a has b's bytes; b is being overwritten with the saved ones
  };
  // Blocks of one thread, and its journal.
  struct Lane {
    std::vector<Pair> blocks;
    BlockCopier* copier = nullptr;
    std::span<std::byte> saved;
    std::size_t done = 0;  // blocks that are exchanged
    Phase phase = Phase::kUntouched;
  };

  template <typename Work>
  Status OnEveryLane(const Work& work);
  static Status RunLane(Lane& lane, const std::atomic<bool>& failed);
  static Status ExchangeBlock(const Pair& block, Lane& lane);
  static Status UndoLane(Lane& lane);
  static Status UndoBlockUnderWay(Lane& lane);

  std::vector<std::vector<std::byte>> saved_;  // of host memory
  std::vector<Lane> lanes_;
};

}  // namespace bascule
