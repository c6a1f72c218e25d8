// What lies in the fake's IPC handles: a descriptor of a living process, which whoever may look at that process opens
// through /proc. Nothing with a name is left behind by a process that is killed.
//
// Thread-safety: thread-safe.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/unique_fd.h"

namespace bascule::fake_cuda {

struct IpcName {
  std::uint64_t magic = 0;
  std::int32_t process = 0;
  std::int32_t fd = -1;
  std::uint64_t inode = 0;  // a descriptor's number is used again
  std::int32_t device = 0;
  std::int32_t unused = 0;
};

IpcName NameOf(int fd, int device);
// None when it is no such handle, or what it names is gone.
UniqueFd OpenNamed(const IpcName& name);

template <typename Handle>
void WriteName(const IpcName& name, Handle& handle) {
  static_assert(sizeof(Handle) >= sizeof(IpcName));
  std::memset(&handle, 0, sizeof handle);
  std::memcpy(&handle, &name, sizeof name);
}
template <typename Handle>
IpcName ReadName(const Handle& handle) {
  IpcName name;
  std::memcpy(static_cast<void*>(&name), &handle, sizeof name);
  return name;
}

}  // namespace bascule::fake_cuda
