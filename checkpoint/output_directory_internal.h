// A directory that appears whole or not at all: its files are written under a temporary name beside it, flushed to disk
// and renamed in one step. What a killed writer leaves behind never bears the final name, and the next writer to the
// same name removes it.
//
// Thread-safety: confined to its owner.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "checkpoint/file_internal.h"

namespace bascule {

class OutputDirectory {
 public:
  // Nothing lies at `path` yet, or an empty directory.
  //
  // AlreadyExists "output_exists"; else as CreateFile
  static Result<std::unique_ptr<OutputDirectory>> Create(const std::string& path);
  ~OutputDirectory();  // removes everything, unless committed
  OutputDirectory(const OutputDirectory&) = delete;
  OutputDirectory& operator=(const OutputDirectory&) = delete;

  // A new file to write to; its owner flushes it. NotFound "directory_not_found"; PermissionDenied "file_not_writable";
  // ResourceExhausted "disk_full"; Unavailable "write_failed"
  Result<UniqueFd> CreateFile(const std::string& name) const;
  // A whole file, flushed. Errors as CreateFile.
  Status WriteFile(const std::string& name, std::string_view content) const;
  // The directory gets its name, for good. AlreadyExists "output_exists"; else as CreateFile
  Status Commit();

  std::string PathOf(const std::string& name) const { return staging_ + "/" + name; }

 private:
  OutputDirectory(std::string path, std::string staging, UniqueFd directory)
      : path_(std::move(path)), staging_(std::move(staging)), directory_(std::move(directory)) {}

  const std::string path_;
  const std::string staging_;
  const UniqueFd directory_;  // locked: this writer is alive
  bool committed_ = false;
};

}  // namespace bascule
