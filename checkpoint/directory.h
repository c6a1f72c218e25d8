// Where the files of a checkpoint or an artifact are opened: a directory that this process's own user named, or one
// beneath an allowed root, which somebody else named.
//
// Thread-safety: thread-safe.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace bascule {

struct OpenFile;

// A tree that may be read on behalf of a peer. Nothing outside it is opened, looked at or told of: every path is
// resolved by the kernel beneath the root's descriptor (openat2), "..", absolute links and links that lead out
// included, also when somebody exchanges a component meanwhile.
class AllowedRoot {
 public:
  // NotFound "directory_not_found"; PermissionDenied "file_not_readable"
  static Result<std::shared_ptr<const AllowedRoot>> Open(const std::string& path);
  AllowedRoot(const AllowedRoot&) = delete;
  AllowedRoot& operator=(const AllowedRoot&) = delete;

  const std::string& path() const { return path_; }
  // `path` relative to the root: as it is, or without the root's own path in front. Empty when it is absolute
  // otherwise.
  std::string RelativeOf(std::string_view path) const;
  // open(2) with `flags` of what lies at `relative`; below zero: the error number, negated.
  int OpenBeneath(const std::string& relative, int flags) const;

 private:
  AllowedRoot(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  const std::string path_;
  const UniqueFd fd_;
};

class Directory {
 public:
  // Any directory; nothing is checked before a file is opened.
  static Directory At(std::string path);
  // One beneath one of `roots`. Whatever stands against it, the answer is the same.
  //
  // PermissionDenied "path_not_allowed"
  static Result<Directory> Beneath(const std::vector<std::shared_ptr<const AllowedRoot>>& roots, std::string_view path);

  // For messages.
  const std::string& path() const { return path_; }
  std::string PathOf(std::string_view name) const;
  bool is_confined() const { return root_ != nullptr; }

  // A regular file of the name is there, and may be read.
  bool Has(std::string_view name) const;
  std::vector<std::string> Names() const;  // sorted; empty where they cannot be listed
  // As OpenRegularFile. A file outside the root is not found.
  Result<OpenFile> Open(std::string_view name) const;
  // As ReadTextFile.
  Result<std::string> ReadText(std::string_view name, std::int64_t bytes_max) const;

 private:
  explicit Directory(std::string path) : path_(std::move(path)) {}
  std::string path_;
  std::shared_ptr<const AllowedRoot> root_;  // shared with whoever else reads beneath it; null: not confined
  std::string relative_;                     // to the root
};

}  // namespace bascule
