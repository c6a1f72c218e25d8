#include "bridge/transport/shm/sealed_arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace bascule {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

Status NoMemory(std::string_view what) {
  const bool no_descriptor = errno == EMFILE || errno == ENFILE;
  return Status::ResourceExhausted(no_descriptor ? "descriptors" : "frame_memory",
                                   fmt::format("{}: {}", what, std::strerror(errno)));
}

}  // namespace

Result<SealedArena> MakeSealedArena(std::int64_t frame_bytes, std::int32_t credits) {
  UniqueFd fd(memfd_create("bascule_arena", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return NoMemory("memfd_create");
  const std::int64_t bytes = FrameArena::MappedBytes(frame_bytes, credits);
  RETURN_IF_ERROR(FrameArena::CheckAvailable(bytes));
  int reserved = -1;
  do {
    reserved = fallocate(fd.get(), 0, 0, bytes);
  } while (reserved != 0 && errno == EINTR);
  if (reserved != 0) return NoMemory(fmt::format("reserving {} bytes", bytes));
  ASSIGN_OR_RETURN(FrameArena frames,
                   FrameArena::Shared(fd.get(), FrameArena::Access::kReadWrite, frame_bytes, credits));
  // Only now: FUTURE_WRITE forbids writable mappings that are not there yet.
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return NoMemory("sealing");
  return SealedArena{std::move(fd), std::move(frames)};
}

Result<FrameArena> MapSealedArena(const UniqueFd& fd, std::int64_t frame_bytes, std::int32_t credits) {
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    return Status::InvalidArgument("bad_arena", fmt::format("seals={:#x} want={:#x}", seals, kSeals));
  }
  struct stat found {};
  const std::int64_t want = FrameArena::MappedBytes(frame_bytes, credits);
  if (fstat(fd.get(), &found) != 0 || found.st_size != want) {
    return Status::InvalidArgument("bad_arena", fmt::format("size={} want={}", found.st_size, want));
  }
  return FrameArena::Shared(fd.get(), FrameArena::Access::kRead, frame_bytes, credits);
}

}  // namespace bascule
