// Memory that another process of this host may map: a memfd without a name. Its maker fills it and freezes it; from
// then on the kernel refuses every write and every change of size to everybody, the maker too, so that what was proven
// of the bytes stays true for whoever maps them, whatever becomes of the maker.
//
// The memory goes when the last descriptor and mapping do, also after kill -9: there is nothing to clean up.
//
// Thread-safety: thread-safe functions; buffers are thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/unique_fd.h"
#include "device/buffer.h"

namespace bascule {

// Buffers of it can be frozen and shared. Its Allocate reserves all pages: a shortage is an error and not a signal.
// Lives for the whole program.
DeviceMemory& FreezableMemory();

// Has the kernel been told to give huge pages to shared memory? Without them mapping and reading take several times as
// long.
bool GivesHugePages();

// Maps a peer's frozen memory, read-only, after it has been looked at.
//
// InvalidArgument "bad_object"  its seals or its size are not as they should be; ResourceExhausted "device_memory"
Result<std::unique_ptr<DeviceBuffer>> MapFrozen(const UniqueFd& fd, std::int64_t bytes);

// A text as frozen memory, and back. ReadFrozenText errors are those of MapFrozen.
Result<UniqueFd> FrozenText(std::string_view text);
Result<std::string> ReadFrozenText(const UniqueFd& fd, std::int64_t bytes);

// Another descriptor of the same memory.
//
// ResourceExhausted "descriptors"
Result<UniqueFd> DuplicateOf(int fd);

}  // namespace bascule
