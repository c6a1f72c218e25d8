// A directory of a benchmark's own (mode 0700), removed with everything in it.
//
// Thread-safety: thread-compatible.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "base/status.h"

namespace bascule {

class TempDirectory {
 public:
  TempDirectory() : path_((std::filesystem::temp_directory_path() / "bascule-bench-XXXXXX").string()) {
    CHECK(mkdtemp(path_.data()) != nullptr);
  }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;
  ~TempDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace bascule
