#include "tests/support/fake_nccl/board.h"

#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <utility>

#include "base/mutex.h"

namespace bascule::fake_nccl {
namespace {

using fake_cuda::IpcName;
using fake_cuda::NameOf;
using fake_cuda::OpenNamed;
using fake_cuda::ReadName;
using fake_cuda::WriteName;

struct Held {
  Mutex mu;
  std::map<std::uint64_t, UniqueFd> boards GUARDED_BY(mu);  // by inode
  static Held& Get() {
    static auto* const held = new Held;
    return *held;
  }
};

}  // namespace

int Board::CountPresent() const {
  int present = 0;
  for (const std::atomic<int>& device : device_of) present += device != 0 ? 1 : 0;
  return present;
}

bool Board::TwoShareADevice() const {
  for (std::size_t a = 0; a < device_of.size(); ++a) {
    for (std::size_t b = a + 1; b < device_of.size(); ++b) {
      if (device_of[a] != 0 && device_of[a] == device_of[b]) return true;
    }
  }
  return false;
}

bool MakeBoard(ncclUniqueId* id) {
  UniqueFd fd(memfd_create("fake_nccl_board", MFD_CLOEXEC));
  if (!fd.valid() || ftruncate(fd.get(), sizeof(Board)) != 0) return false;
  const IpcName name = NameOf(fd.get(), /*device=*/0);
  WriteName(name, *id);
  Held& held = Held::Get();
  const MutexLock lock(held.mu);
  held.boards.insert_or_assign(name.inode, std::move(fd));
  return true;
}

void ReleaseBoard(const ncclUniqueId& id) {
  const IpcName name = ReadName(id);
  if (name.process != getpid()) return;
  Held& held = Held::Get();
  const MutexLock lock(held.mu);
  held.boards.erase(name.inode);
}

int CountBoards() {
  Held& held = Held::Get();
  const MutexLock lock(held.mu);
  return static_cast<int>(held.boards.size());
}

std::shared_ptr<Board> OpenBoard(const ncclUniqueId& id) {
  const UniqueFd fd = OpenNamed(ReadName(id));
  if (!fd.valid()) return nullptr;
  void* const memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return nullptr;
  return {static_cast<Board*>(memory), [](Board* board) { munmap(board, sizeof(Board)); }};
}

}  // namespace bascule::fake_nccl
