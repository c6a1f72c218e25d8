// What the two ends of an nccl route say to each other: everything but the words here is said by the carrier, a route
// of another transport.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "bridge/transport/transport.h"
#include "device/communicator.h"

namespace bascule {

// All ranks of a communicator are joined with the same numbers, so those of device/communicator.h belong to the
// version.
inline constexpr std::uint64_t kNcclMagic = 0x6c63636e'00000003;  // "nccl", version 3

// Sender -> receiver, before the first part of every frame. Each names the communicator that moves its second part, and
// the receiver's rank in it, so neither needs an exchange of its own.
struct NcclWords {
  std::uint64_t magic = kNcclMagic;
  std::uint64_t payload_bytes = 0;  // of the second part; 0: the frame has none, and what follows means nothing
  CommunicatorId communicator;
  std::int32_t rank = 1;  // 0 is the sender's
  std::int32_t size = 2;
  std::array<std::byte, 40> unused{};
};
// Whole lines of a cache, so that what follows is aligned as frames are.
inline constexpr std::int64_t kNcclWordsBytes = sizeof(NcclWords);
static_assert(kNcclWordsBytes == 192);
inline constexpr std::int32_t kNcclRanksMax = 1024;  // of one communicator

std::span<std::byte> WriteWords(const NcclWords& words, std::span<std::byte> frame);  // the rest of `frame`
// DataLoss "bad_frame"  it is too short, of another version, or its numbers are no frame's
Result<NcclWords> ReadWords(std::span<const std::byte> frame, std::int64_t frame_bytes);

// An endpoint's address: the devices of the engine ranks, since NCCL refuses two ranks on one; NCCL's version, which
// must be the same at both ends; and where the carrier takes routes.
struct NcclAddress {
  std::vector<DeviceUuid> devices;
  std::string version;  // "2.28.9"
  TransportEndpoint carrier;
};
std::string ToAddress(const NcclAddress& address);  // "GPU-8932f937-...+GPU-7a01...:2.28.9:grpc:host:5000"
// InvalidArgument "bad_address"
Result<NcclAddress> ParseNcclAddress(const std::string& text);

}  // namespace bascule
