#include "tests/support/temp_directory.h"

#include <cstdlib>
#include <filesystem>

#include "base/status.h"

namespace bascule {

TempDirectory::TempDirectory() : path_("/tmp/bascule_test_XXXXXX") { CHECK(mkdtemp(path_.data()) != nullptr); }

TempDirectory::~TempDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace bascule
