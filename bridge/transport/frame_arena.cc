#include "bridge/transport/frame_arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include "base/checked_math.h"

namespace bascule {
namespace {

constexpr std::int64_t kFrameAlignment = 4096;

// What the kernel believes it can give without swapping; everything where it does not say.
std::int64_t AvailableBytes() {
  std::ifstream meminfo("/proc/meminfo");
  for (std::string name, unit; meminfo >> name; std::getline(meminfo, unit)) {
    std::int64_t kib = 0;
    if (name == "MemAvailable:" && meminfo >> kib) return kib * 1024;
  }
  return std::numeric_limits<std::int64_t>::max();
}

}  // namespace

FrameArena::~FrameArena() {
  if (base_ != nullptr) munmap(base_, mapped_bytes_);
}

FrameArena::FrameArena(FrameArena&& other) noexcept { *this = std::move(other); }

FrameArena& FrameArena::operator=(FrameArena&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  std::swap(frame_bytes_, other.frame_bytes_);
  return *this;
}

std::int64_t FrameArena::MappedBytes(std::int64_t frame_bytes, std::int32_t credits) {
  return RoundUp(frame_bytes, kFrameAlignment) * credits;
}

Status FrameArena::CheckAvailable(std::int64_t bytes) {
  const std::int64_t available = AvailableBytes();
  if (bytes <= available) return OkStatus();
  return Status::ResourceExhausted("frame_memory", fmt::format("want={} bytes available={}", bytes, available));
}

Result<FrameArena> FrameArena::Anonymous(std::int64_t frame_bytes, std::int32_t credits, Pages pages) {
  RETURN_IF_ERROR(CheckAvailable(MappedBytes(frame_bytes, credits)));
  return Map(-1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (pages == Pages::kNow ? MAP_POPULATE : 0),
             frame_bytes, credits);
}

Result<FrameArena> FrameArena::Shared(int fd, Access access, std::int64_t frame_bytes, std::int32_t credits) {
  const int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  return Map(fd, protection, MAP_SHARED | MAP_POPULATE, frame_bytes, credits);
}

Result<FrameArena> FrameArena::Map(int fd, int protection, int flags, std::int64_t frame_bytes, std::int32_t credits) {
  const auto bytes = static_cast<std::size_t>(MappedBytes(frame_bytes, credits));
  void* const base = mmap(nullptr, bytes, protection, flags, fd, 0);
  if (base == MAP_FAILED) {
    return Status::ResourceExhausted("frame_memory", fmt::format("mapping {} bytes: {}", bytes, std::strerror(errno)));
  }
  return FrameArena(static_cast<std::byte*>(base), bytes, static_cast<std::size_t>(frame_bytes));
}

std::span<std::byte> FrameArena::frame(std::uint64_t index) const {
  const auto stride = static_cast<std::size_t>(RoundUp(static_cast<std::int64_t>(frame_bytes_), kFrameAlignment));
  CHECK(index < mapped_bytes_ / stride);
  return {base_ + index * stride, frame_bytes_};
}

}  // namespace bascule
