// A directory of its own for a test (mode 0700), removed with everything in it. Its name is `prefix` and six letters.
#pragma once

#include <string>
#include <string_view>

namespace bascule {

class TempDirectory {
 public:
  TempDirectory() : TempDirectory("/tmp/bascule_test_") {}
  explicit TempDirectory(const std::string& prefix);
  ~TempDirectory();
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;
  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }
  // Writes a file and returns its path.
  std::string Write(const std::string& name, std::string_view bytes) const;

 private:
  std::string path_;
};

}  // namespace bascule
