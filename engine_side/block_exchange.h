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

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace bascule {

// How blocks are copied: memcpy, or a device's copy. Thread-safe.
class BlockCopier {
 public:
  virtual ~BlockCopier() = default;
  // Of equal sizes, apart. After an error `to` holds anything.
  virtual Status Copy(std::span<std::byte> to, std::span<const std::byte> from) = 0;
};

BlockCopier& HostBlockCopier();

class BlockExchange {
 public:
  struct Pair {
    std::span<std::byte> a, b;  // of equal sizes
  };
  static constexpr std::size_t kBlockBytes = 256 << 10;  // with its saved copy, within a core's second-level cache

  // Borrows the memory and `copier`. Two lanes: one core alone does not use the memory's bandwidth.
  BlockExchange(std::span<const Pair> memory, BlockCopier& copier, int lanes = 2);

  // Begins a journal and exchanges everything. The first error of the copier; other lanes then stop at their next
  // block.
  Status Run();
  // Takes back what the journal says was exchanged, the last first. After an error of the copier neither memory is
  // whole.
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
    std::size_t begin = 0, end = 0;  // of blocks_
    std::size_t done = 0;            // blocks from `begin` on that are exchanged
    Phase phase = Phase::kUntouched;
    std::vector<std::byte> saved;
  };

  template <typename Work>
  Status OnEveryLane(const Work& work);
  Status ExchangeBlock(const Pair& block, Lane& lane) const;
  Status UndoBlockUnderWay(Lane& lane) const;
  Status UndoLane(Lane& lane) const;

  BlockCopier& copier_;
  std::vector<Pair> blocks_;
  std::vector<Lane> lanes_;
};

}  // namespace bascule
