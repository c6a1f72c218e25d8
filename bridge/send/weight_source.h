// Whoever holds a version can send it: a trainer, a checkpoint on disk, a daemon, a peer. A source gives each sending
// rank's memory, in the terms of its layout.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bridge/layout/layout.h"
#include "bridge/send/box_reader.h"
#include "kernels/digest.h"

namespace bascule {

class WeightDevice;

// Thread-safety: Base is thread-safe; the memory does not change while a publish reads it.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual const Layout& layout() const = 0;
  // This process has that rank's memory; the others' is read and sent by processes of their own.
  virtual bool Holds(int sender_rank) const {
    static_cast<void>(sender_rank);
    return true;
  }
  // Address of element 0 of local tensor `tensor` of `sender_rank`; its strides are in the layout.
  virtual const std::byte* Base(int sender_rank, int tensor) const = 0;
  // The device in whose memory all of it lies: only its kernels may follow what Base gives. Null: the host's memory.
  virtual WeightDevice* device() const { return nullptr; }
  // Reads boxes of local tensors, in this order. The reader borrows the source.
  virtual std::unique_ptr<BoxReader> Read(std::vector<SourceBox> boxes) const { return ReadMemory(std::move(boxes)); }
  // Advice: whoever reads has `memory`, a part of a local tensor, behind it. A source that maps files lets go of the
  // pages; they come back when they are read again.
  virtual void Release(std::span<const std::byte> memory) const { static_cast<void>(memory); }

  // Of a source that has its bytes from other processes while they are read:
  //
  // The digest of `tensor`, in its wire type, that those who hold it have made of it; known once all of it was read.
  virtual std::optional<TensorDigest> HoldersDigest(const TensorSpec& tensor) const {
    static_cast<void>(tensor);
    return std::nullopt;
  }
  // "trainer rank 2": who is waited for now. Empty: nobody.
  virtual std::string WaitsFor() const { return ""; }
  // Whoever reads gives up: reads that wait end, and later ones fail, with Cancelled "cancelled". Any thread.
  virtual void StopReading() const {}
};

}  // namespace bascule
