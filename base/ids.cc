#include "base/ids.h"

#include <fmt/core.h>
#include <sys/random.h>

#include "base/status.h"

namespace bascule {
namespace {

std::uint64_t RandomNonZero() {
  std::uint64_t value = 0;
  while (value == 0) CHECK(getrandom(&value, sizeof value, 0) == sizeof value);
  return value;
}

}  // namespace

SessionId SessionId::Mint() { return SessionId{RandomNonZero()}; }
std::string SessionId::ToString() const { return fmt::format("{:016x}", value); }
InstanceId InstanceId::Mint() { return InstanceId{RandomNonZero()}; }
std::string InstanceId::ToString() const { return fmt::format("{:016x}", value); }

}  // namespace bascule
