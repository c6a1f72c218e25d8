#include "bridge/transport/nccl/messages.h"

#include <cstring>

namespace bascule {
namespace {

// What comes before the next `mark`; `text` is what comes after it.
Result<std::string> TakeWord(std::string& text, char mark = ':') {
  const std::size_t colon = text.find(mark);
  if (colon == std::string::npos) return Status::InvalidArgument("bad_address", fmt::format("'{}' ends early", text));
  std::string word = text.substr(0, colon);
  text.erase(0, colon + 1);
  return word;
}

}  // namespace

std::span<std::byte> WriteWords(const NcclWords& words, std::span<std::byte> frame) {
  std::memcpy(frame.data(), &words, sizeof words);
  return frame.subspan(sizeof words);
}

Result<NcclWords> ReadWords(std::span<const std::byte> frame, std::int64_t frame_bytes) {
  NcclWords words;
  if (frame.size() < sizeof words) {
    return Status::DataLoss("bad_frame",
                            fmt::format("{} bytes, at least {} come before a frame", frame.size(), sizeof words));
  }
  std::memcpy(static_cast<void*>(&words), frame.data(), sizeof words);
  if (words.magic != kNcclMagic) {
    return Status::DataLoss("bad_frame", fmt::format("nccl protocol {:#x} want {:#x}", words.magic, kNcclMagic));
  }
  if (words.payload_bytes > static_cast<std::uint64_t>(frame_bytes)) {
    return Status::DataLoss("bad_frame", fmt::format("payload_bytes={} of {}", words.payload_bytes, frame_bytes));
  }
  if (words.payload_bytes > 0 && (words.rank < 1 || words.rank >= words.size || words.size > kNcclRanksMax)) {
    return Status::DataLoss("bad_frame", fmt::format("rank={} of {}", words.rank, words.size));
  }
  return words;
}

std::string ToAddress(const NcclAddress& address) {
  std::string devices;
  for (const DeviceUuid& device : address.devices) devices += (devices.empty() ? "" : "+") + device.ToString();
  return fmt::format("{}:{}:{}:{}", devices, address.version, TransportName(address.carrier.kind),
                     address.carrier.address);
}

Result<NcclAddress> ParseNcclAddress(const std::string& text) {
  NcclAddress address;
  std::string rest = text;
  ASSIGN_OR_RETURN(std::string devices, TakeWord(rest));
  for (devices += '+'; !devices.empty();) {
    ASSIGN_OR_RETURN(const std::string device, TakeWord(devices, '+'));
    ASSIGN_OR_RETURN(const DeviceUuid uuid, ParseDeviceUuid(device));
    address.devices.push_back(uuid);
  }
  ASSIGN_OR_RETURN(address.version, TakeWord(rest));
  ASSIGN_OR_RETURN(const std::string carrier, TakeWord(rest));
  ASSIGN_OR_RETURN(address.carrier.kind, ParseTransport(carrier));
  address.carrier.address = rest;
  return address;
}

}  // namespace bascule
