#include "checkpoint/read_strategy.h"

#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <span>

namespace bascule {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"auto", "mmap", "read", "direct"};

struct FileSystem {
  std::uint64_t type;
  std::string_view name;
};

// File systems that are not in linux/magic.h come with their number.
constexpr std::array kInMemory = {FileSystem{TMPFS_MAGIC, "tmpfs"}, FileSystem{RAMFS_MAGIC, "ramfs"},
                                  FileSystem{HUGETLBFS_MAGIC, "hugetlbfs"}};
constexpr std::array kNetwork = {
    FileSystem{NFS_SUPER_MAGIC, "nfs"},   FileSystem{SMB_SUPER_MAGIC, "smb"},   FileSystem{0xfe534d42, "smb2"},
    FileSystem{CIFS_SUPER_MAGIC, "cifs"}, FileSystem{CEPH_SUPER_MAGIC, "ceph"}, FileSystem{V9FS_MAGIC, "9p"},
    FileSystem{FUSE_SUPER_MAGIC, "fuse"}, FileSystem{0x0bd00bd0, "lustre"},     FileSystem{0x19830326, "beegfs"},
    FileSystem{0x47504653, "gpfs"},       FileSystem{AFS_SUPER_MAGIC, "afs"}};

std::string_view NameIn(std::span<const FileSystem> systems, std::uint64_t type) {
  const auto found =
      std::find_if(systems.begin(), systems.end(), [&](const FileSystem& system) { return system.type == type; });
  return found == systems.end() ? "" : found->name;
}

// MemAvailable of /proc/meminfo: free memory and what the page cache can give up.
std::int64_t AvailableMemory() {
  std::ifstream lines("/proc/meminfo");
  std::string key;
  std::int64_t kib = 0;
  while (lines >> key >> kib) {
    if (key == "MemAvailable:") return kib << 10;
    lines.ignore(256, '\n');
  }
  return 0;
}

double Gib(std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

}  // namespace

Status CheckNotStopped(const ReadOptions& options) {
  return options.stop.stop_requested() ? Status::Cancelled("cancelled", "stopped while files were read") : OkStatus();
}

std::string_view ReadStrategyName(ReadStrategy strategy) { return kNames.at(static_cast<std::size_t>(strategy)); }

Result<ReadStrategy> ParseReadStrategy(std::string_view name) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found != kNames.end()) return static_cast<ReadStrategy>(found - kNames.begin());
  return Status::InvalidArgument("unknown_read_strategy", fmt::format("got=\"{}\" want=mmap|read|direct|auto", name));
}

StorageFacts FactsOf(int fd, std::int64_t file_bytes) {
  struct statfs system {};
  const bool known = fstatfs(fd, &system) == 0;
  // The kernel's type is a 32-bit number, which some libraries sign-extend.
  return {.file_system = known ? static_cast<std::uint32_t>(system.f_type) : 0,
          .file_bytes = file_bytes,
          .free_bytes = AvailableMemory()};
}

bool IsRemote(const StorageFacts& facts) { return !NameIn(kNetwork, facts.file_system).empty(); }

StrategyChoice ChooseStrategy(ReadStrategy wanted, const StorageFacts& facts) {
  if (wanted == ReadStrategy::kMmap && !facts.can_map) {
    return {ReadStrategy::kRead, "the file system maps no files"};
  }
  if (wanted != ReadStrategy::kAuto) return {wanted, "asked for"};
  if (const std::string_view name = NameIn(kInMemory, facts.file_system); !name.empty() && facts.can_map) {
    return {ReadStrategy::kMmap, fmt::format("{} is memory already", name)};
  }
  if (const std::string_view name = NameIn(kNetwork, facts.file_system); !name.empty()) {
    return {ReadStrategy::kRead, fmt::format("{} is a network file system", name)};
  }
  if (facts.free_bytes > 0 && facts.file_bytes > facts.free_bytes / 2) {
    return {ReadStrategy::kDirect, fmt::format("{:.1f} GiB of files would crowd {:.1f} GiB of free memory",
                                               Gib(facts.file_bytes), Gib(facts.free_bytes))};
  }
  return {ReadStrategy::kRead,
          fmt::format("a local file system (type {:#x}), and the files fit into free memory", facts.file_system)};
}

}  // namespace bascule
