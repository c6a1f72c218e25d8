#include "tests/support/fake_cuda/ipc.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

namespace bascule::fake_cuda {
namespace {

constexpr std::uint64_t kMagic = 0x63706975635f7562;

std::uint64_t InodeOf(int fd) {
  struct stat found {};
  return fstat(fd, &found) == 0 ? found.st_ino : 0;
}

}  // namespace

IpcName NameOf(int fd, int device) {
  return {.magic = kMagic, .process = getpid(), .fd = fd, .inode = InodeOf(fd), .device = device};
}

UniqueFd OpenNamed(const IpcName& name) {
  if (name.magic != kMagic) return UniqueFd();
  UniqueFd fd(open(fmt::format("/proc/{}/fd/{}", name.process, name.fd).c_str(), O_RDWR | O_CLOEXEC));
  return fd.valid() && InodeOf(fd.get()) == name.inode ? std::move(fd) : UniqueFd();
}

}  // namespace bascule::fake_cuda
