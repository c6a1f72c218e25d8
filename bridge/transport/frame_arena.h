// The memory of a route's frames: one mapping, prefaulted once and reused by every bucket, since the first touch of a
// fresh page costs more than ten times a warm write. Frames begin on page borders.
//
// Thread-safety: thread-compatible; the route says who may touch which frame.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"

namespace bascule {

class FrameArena {
 public:
  FrameArena() = default;  // no frames
  ~FrameArena();
  FrameArena(FrameArena&& other) noexcept;
  FrameArena& operator=(FrameArena&& other) noexcept;

  // The mapping's size for counts that passed CheckRouteHello.
  static std::int64_t MappedBytes(std::int64_t frame_bytes, std::int32_t credits);

  // Asked before memory is reserved: the kernel gives what it does not have, and then kills whom it likes.
  //
  // ResourceExhausted "frame_memory"  more than the machine has available now
  static Status CheckAvailable(std::int64_t bytes);

  // Private memory of this process. Where frames may go unused for good, pages come as they are touched.
  //
  // ResourceExhausted "frame_memory"
  enum class Pages { kNow, kWhenTouched };
  static Result<FrameArena> Anonymous(std::int64_t frame_bytes, std::int32_t credits, Pages pages = Pages::kNow);

  enum class Access { kRead, kReadWrite };
  // A file of MappedBytes, shared with whoever else maps it. `fd` stays the caller's.
  //
  // ResourceExhausted "frame_memory"
  static Result<FrameArena> Shared(int fd, Access access, std::int64_t frame_bytes, std::int32_t credits);

  // Frame `index` below the number of credits. Writing needs kReadWrite.
  std::span<std::byte> frame(std::uint64_t index) const;

 private:
  FrameArena(std::byte* base, std::size_t mapped_bytes, std::size_t frame_bytes)
      : base_(base), mapped_bytes_(mapped_bytes), frame_bytes_(frame_bytes) {}
  static Result<FrameArena> Map(int fd, int protection, int flags, std::int64_t frame_bytes, std::int32_t credits);

  std::byte* base_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  std::size_t frame_bytes_ = 0;
};

}  // namespace bascule
