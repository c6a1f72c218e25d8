// A publisher's journal from anywhere, and with a hash that is right: a decision that is read says the same when it is
// written again.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/sha256.h"
#include "trainer_side/decision_text_internal.h"

namespace bascule {
namespace {

void Read(std::string_view text) {
  const auto decision = ParseDecision(text);
  if (!decision.ok()) return;
  const auto again = ParseDecision(DecisionText(*decision));
  CHECK(again.ok() && again->version == decision->version);
  CHECK(again->replicas == decision->replicas && again->live == decision->live);
  CHECK(again->taken_back == decision->taken_back);
}

}  // namespace
}  // namespace bascule

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  bascule::Read(text);
  bascule::Read(std::string(text) + "end " + bascule::Sha256Of(text).ToHex() + "\n");
  return 0;
}
