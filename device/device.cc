#include "device/device.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/hex.h"

namespace bascule {

std::string DeviceUuid::ToString() const {
  std::string text = "GPU";
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", bytes[i]);
  }
  return text;
}

Result<DeviceUuid> ParseDeviceUuid(std::string_view text) {
  std::string digits;
  for (const char c : text.substr(std::min<std::size_t>(text.size(), 4))) {
    if (c != '-') digits += c;
  }
  DeviceUuid uuid;
  const Result<std::vector<std::byte>> bytes = BytesOfHex(digits);
  if (bytes.ok() && bytes->size() == uuid.bytes.size()) {
    std::memcpy(uuid.bytes.data(), bytes->data(), uuid.bytes.size());
    if (uuid.ToString() == text) return uuid;
  }
  return Status::InvalidArgument("bad_device_uuid", fmt::format("'{}' is not like {}", text, DeviceUuid{}.ToString()));
}

}  // namespace bascule
