#include "checkpoint/directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>

#include "checkpoint/file_internal.h"

namespace bascule {
namespace {

namespace fs = std::filesystem;

// A path of a peer, for messages: short, and without what a terminal would act on.
std::string Shown(std::string_view path) {
  constexpr std::size_t kShownBytes = 200;
  std::string shown(path.substr(0, kShownBytes));
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return path.size() > kShownBytes ? shown + "..." : shown;
}

Status NotAllowed(std::string_view path) {
  return Status::PermissionDenied(
      "path_not_allowed",
      fmt::format("{}: is no readable directory beneath a root that the engine allows (--allow-root)", Shown(path)));
}

}  // namespace

Result<std::shared_ptr<const AllowedRoot>> AllowedRoot::Open(const std::string& path) {
  std::error_code error;
  const std::string canonical = fs::canonical(path, error).string();
  if (error) return Status::NotFound("directory_not_found", fmt::format("{}: {}", path, error.message()));
  UniqueFd fd(open(canonical.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid())
    return Status::PermissionDenied("file_not_readable", fmt::format("{}: {}", path, std::strerror(errno)));
  return std::shared_ptr<const AllowedRoot>(new AllowedRoot(canonical, std::move(fd)));
}

std::string AllowedRoot::RelativeOf(std::string_view path) const {
  if (!path.starts_with('/')) return std::string(path);
  if (path == path_) return ".";
  const std::string prefix = path_.ends_with('/') ? path_ : path_ + "/";
  if (!path.starts_with(prefix)) return "";
  const std::size_t first = path.find_first_not_of('/', prefix.size());
  return first == std::string_view::npos ? "." : std::string(path.substr(first));
}

int AllowedRoot::OpenBeneath(const std::string& relative, int flags) const {
  // A null byte would end the path early.
  if (relative.empty() || relative.find('\0') != std::string::npos) return -EINVAL;
  open_how how{};
  how.flags = static_cast<std::uint64_t>(flags | O_CLOEXEC);
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  for (;;) {
    const long fd = syscall(SYS_openat2, fd_.get(), relative.c_str(), &how, sizeof(how));
    if (fd >= 0) return static_cast<int>(fd);
    if (errno != EINTR && errno != EAGAIN) return -errno;  // EAGAIN: a rename came between
  }
}

Directory Directory::At(std::string path) { return Directory(std::move(path)); }

Result<Directory> Directory::Beneath(const std::vector<std::shared_ptr<const AllowedRoot>>& roots,
                                     std::string_view path) {
  for (const auto& root : roots) {
    const std::string relative = root->RelativeOf(path);
    const UniqueFd fd(root->OpenBeneath(relative, O_RDONLY | O_DIRECTORY));
    if (fd.get() < 0) continue;
    Directory directory((fs::path(root->path()) / relative).string());
    directory.root_ = root;
    directory.relative_ = relative;
    return directory;
  }
  return NotAllowed(path);
}

std::string Directory::PathOf(std::string_view name) const { return (fs::path(path_) / name).string(); }

bool Directory::Has(std::string_view name) const {
  if (is_confined()) return Open(name).ok();
  std::error_code error;
  return fs::exists(PathOf(name), error);
}

std::vector<std::string> Directory::Names() const {
  const int fd = root_ == nullptr ? open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)
                                  : root_->OpenBeneath(relative_, O_RDONLY | O_DIRECTORY);
  std::vector<std::string> names;
  if (fd < 0) return names;
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(fdopendir(fd), closedir);
  if (listing == nullptr) {
    close(fd);
    return names;
  }
  while (const dirent* entry = readdir(listing.get())) names.emplace_back(entry->d_name);
  std::sort(names.begin(), names.end());
  return names;
}

Result<OpenFile> Directory::Open(std::string_view name) const {
  const std::string path = PathOf(name);
  if (root_ == nullptr) return OpenRegularFile(path);
  // Without O_NONBLOCK a FIFO would wait for its writer.
  UniqueFd fd(root_->OpenBeneath((fs::path(relative_) / name).string(), O_RDONLY | O_NONBLOCK));
  if (fd.get() >= 0) {
    if (auto file = RegularFileOf(std::move(fd), path); file.ok()) return file;
  }
  return Status::NotFound("file_not_found", path + ": no such file beneath the allowed root");
}

Result<std::string> Directory::ReadText(std::string_view name, std::int64_t bytes_max) const {
  ASSIGN_OR_RETURN(const OpenFile file, Open(name));
  return ReadTextFile(file, PathOf(name), bytes_max);
}

}  // namespace bascule
