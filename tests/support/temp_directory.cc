#include "tests/support/temp_directory.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/status.h"

namespace bascule {

TempDirectory::TempDirectory(const std::string& prefix) : path_(prefix + "XXXXXX") {
  CHECK(mkdtemp(path_.data()) != nullptr);
}

TempDirectory::~TempDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TempDirectory::Write(const std::string& name, std::string_view bytes) const {
  std::ofstream file(File(name), std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  CHECK(file.good());
  return File(name);
}

}  // namespace bascule
