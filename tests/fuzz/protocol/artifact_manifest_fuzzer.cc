// manifest.json of an artifact from anywhere, and with a hash that is right: whatever is accepted names files of its
// own directory only, and reads the same when it is written again.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/sha256.h"
#include "bridge/layout/layout.h"
#include "checkpoint/artifact_manifest.h"

namespace bascule {
namespace {

void Read(std::string_view text) {
  const auto manifest = ReadArtifactManifest(text);
  if (!manifest.ok()) return;
  CHECK(CheckLayout(manifest->layout).ok() && CheckLayout(manifest->stored).ok());
  CHECK(manifest->ranks.size() == manifest->layout.ranks.size());
  for (const ArtifactRank& rank : manifest->ranks) {
    CHECK(!rank.file.empty() && rank.file != "." && rank.file != "..");
    CHECK(std::none_of(rank.file.begin(), rank.file.end(), [](char c) { return c == '/' || c == '\0'; }));
  }
  CHECK(*ReadArtifactManifest(WriteArtifactManifest(*manifest)) == *manifest);
}

}  // namespace
}  // namespace bascule

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  bascule::Read(text);
  bascule::Read(std::string(text) + ",\"sha256\":\"" + bascule::Sha256Of(text).ToHex() + "\"}\n");
  return 0;
}
