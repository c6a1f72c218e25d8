// Layout files from anywhere: what is read is a layout that holds, and reads the same when it is written again.
#include <cstdint>
#include <string_view>

#include "bridge/layout/layout.h"
#include "checkpoint/layout_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto layout = bascule::ReadLayout({reinterpret_cast<const char*>(data), size}, "file");
  if (!layout.ok()) {
    CHECK(layout.status().message().starts_with("file"));
    return 0;
  }
  CHECK(bascule::CheckLayout(*layout).ok());
  CHECK(*bascule::ReadLayout(bascule::WriteLayout(*layout), "file") == *layout);
  return 0;
}
