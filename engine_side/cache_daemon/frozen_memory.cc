#include "engine_side/cache_daemon/frozen_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "bridge/transport/frame_arena.h"

namespace bascule {
namespace {

constexpr int kSealAttempts = 10;
constexpr int kSeals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

Status NoMemory(std::size_t bytes, std::string_view what) {
  return Status::ResourceExhausted(
      "device_memory", fmt::format("device=host shared bytes={}: {}: {}", bytes, what, std::strerror(errno)));
}

// A mapping with one owner. An empty one is never mapped.
class Mapping {
 public:
  explicit Mapping(std::size_t size) : size_(size) {}
  ~Mapping() {
    if (data_ != nullptr) munmap(data_, size_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  // In place of what was mapped before, at the same address. Pages that are there meet no fault later.
  enum class Pages { kThere, kToCome };
  bool Map(int fd, int protection, Pages pages = Pages::kThere) {
    if (size_ == 0) return true;
    const int flags = MAP_SHARED | (pages == Pages::kThere ? MAP_POPULATE : 0) | (data_ != nullptr ? MAP_FIXED : 0);
    void* const address = mmap(data_, size_, protection, flags, fd, 0);
    if (address == MAP_FAILED) return false;
    data_ = static_cast<std::byte*>(address);
    return true;
  }
  std::span<std::byte> bytes() const { return {data_, size_}; }

 private:
  std::byte* data_ = nullptr;
  const std::size_t size_;
};

class FreezableBuffer final : public DeviceBuffer {
 public:
  explicit FreezableBuffer(std::size_t size) : mapping_(size) {}

  Status Allocate() {
    fd_ = UniqueFd(memfd_create("bascule_weights", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    const auto size = static_cast<std::int64_t>(bytes().size());
    if (!fd_.valid()) return NoMemory(bytes().size(), "memfd_create");
    if (const Status room = FrameArena::CheckAvailable(size); !room.ok()) {
      return Status::ResourceExhausted("device_memory", fmt::format("device=host shared {}", room.message()));
    }
    if (ftruncate(fd_.get(), size) != 0) return NoMemory(bytes().size(), "sizing");
    if (!mapping_.Map(fd_.get(), PROT_READ | PROT_WRITE, Mapping::Pages::kToCome)) {
      return NoMemory(bytes().size(), "mapping");
    }
    return Reserve() ? OkStatus() : NoMemory(bytes().size(), "reserving");
  }

  std::span<std::byte> bytes() override { return mapping_.bytes(); }
  std::span<const std::byte> bytes() const override { return mapping_.bytes(); }
  bool writable() const override { return writable_; }
  int shared_fd() const override { return frozen_ ? fd_.get() : -1; }

  // The seal against writing is refused as long as anything is mapped that could be made writable: the mapping is
  // exchanged for one through a descriptor that cannot write.
  Status Freeze() override {
    if (frozen_) return OkStatus();
    UniqueFd read_only(open(fmt::format("/proc/self/fd/{}", fd_.get()).c_str(), O_RDONLY | O_CLOEXEC));
    if (!read_only.valid()) return NoMemory(bytes().size(), "opening read-only");
    writable_ = false;
    if (!mapping_.Map(read_only.get(), PROT_READ)) return NoMemory(bytes().size(), "mapping read-only");
    if (!Seal()) return NoMemory(bytes().size(), "sealing");
    fd_ = std::move(read_only);
    frozen_ = true;
    return OkStatus();
  }

 private:
  // The kernel refuses while it holds pages itself, on their way from one of its lists to another, and waits a moment
  // for them before it does.
  bool Seal() const {
    int sealed = -1;
    for (int attempt = 0; attempt < kSealAttempts && (sealed = fcntl(fd_.get(), F_ADD_SEALS, kSeals)) != 0; ++attempt) {
      if (errno != EBUSY) return false;
    }
    return sealed == 0;
  }

  // Gives every page its memory now; huge ones where the kernel has been told to give them to shared memory.
  bool Reserve() {
    const std::span<std::byte> all = bytes();
    if (all.empty()) return true;
    static_cast<void>(madvise(all.data(), all.size(), MADV_HUGEPAGE));  // only a hint
    int failed = -1;
#ifdef MADV_POPULATE_WRITE
    while ((failed = madvise(all.data(), all.size(), MADV_POPULATE_WRITE)) != 0 && errno == EINTR) continue;
    if (failed == 0 || errno != EINVAL) return failed == 0;  // EINVAL: a kernel before 5.14
#endif
    while ((failed = fallocate(fd_.get(), 0, 0, std::ssize(all))) != 0 && errno == EINTR) continue;
    return failed == 0;
  }

  Mapping mapping_;
  UniqueFd fd_;
  bool writable_ = true;
  bool frozen_ = false;
};

class FreezableHostMemory final : public DeviceMemory {
 public:
  Result<std::unique_ptr<DeviceBuffer>> Allocate(std::size_t size) override {
    auto buffer = std::make_unique<FreezableBuffer>(size);
    RETURN_IF_ERROR(buffer->Allocate());
    return std::unique_ptr<DeviceBuffer>(std::move(buffer));
  }
  std::string_view name() const override { return "host"; }
};

class MappedBuffer final : public DeviceBuffer {
 public:
  explicit MappedBuffer(std::size_t size) : mapping_(size) {}

  Status Map(const UniqueFd& fd) {
    return mapping_.Map(fd.get(), PROT_READ) ? OkStatus() : NoMemory(bytes().size(), "mapping a peer's");
  }
  std::span<std::byte> bytes() override { return mapping_.bytes(); }
  std::span<const std::byte> bytes() const override { return mapping_.bytes(); }
  bool writable() const override { return false; }

 private:
  Mapping mapping_;
};

}  // namespace

DeviceMemory& FreezableMemory() {
  static FreezableHostMemory memory;
  return memory;
}

Result<std::unique_ptr<DeviceBuffer>> MapFrozen(const UniqueFd& fd, std::int64_t bytes) {
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    return Status::InvalidArgument("bad_object", fmt::format("seals={:#x} want={:#x}", seals, kSeals));
  }
  struct stat found {};
  if (fstat(fd.get(), &found) != 0 || found.st_size != bytes) {
    return Status::InvalidArgument("bad_object", fmt::format("size={} want={}", found.st_size, bytes));
  }
  auto buffer = std::make_unique<MappedBuffer>(static_cast<std::size_t>(bytes));
  RETURN_IF_ERROR(buffer->Map(fd));
  return std::unique_ptr<DeviceBuffer>(std::move(buffer));
}

Result<UniqueFd> FrozenText(std::string_view text) {
  FreezableBuffer buffer(text.size());
  RETURN_IF_ERROR(buffer.Allocate());
  std::ranges::copy(std::as_bytes(std::span(text)), buffer.bytes().begin());
  RETURN_IF_ERROR(buffer.Freeze());
  return DuplicateOf(buffer.shared_fd());
}

Result<std::string> ReadFrozenText(const UniqueFd& fd, std::int64_t bytes) {
  ASSIGN_OR_RETURN(const auto buffer, MapFrozen(fd, bytes));
  const std::span<const std::byte> text = std::as_const(*buffer).bytes();
  return std::string(reinterpret_cast<const char*>(text.data()), text.size());
}

bool GivesHugePages() {
  std::ifstream setting("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  const std::string text(std::istreambuf_iterator<char>(setting), {});
  return text.find('[') != std::string::npos && text.find("[never]") == std::string::npos &&
         text.find("[deny]") == std::string::npos;
}

Result<UniqueFd> DuplicateOf(int fd) {
  UniqueFd copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return Status::ResourceExhausted("descriptors", std::strerror(errno));
  return copy;
}

}  // namespace bascule
