// What the two ends of an shm route say over their socket. Both are on one host: native byte order, fixed sizes.
#pragma once

#include <array>
#include <cstdint>

#include "base/status.h"
#include "bridge/transport/transport.h"

namespace bascule {

inline constexpr std::uint32_t kShmMagic = 0x6d687362;  // "bshm"
inline constexpr std::uint32_t kShmVersion = 1;

// Sender -> listener, first, with the sealed memfd.
struct ShmHello {
  std::uint32_t magic = kShmMagic;
  std::uint32_t version = kShmVersion;
  std::uint64_t connection = 0;
  std::int32_t sender_rank = 0;
  std::int32_t engine_rank = 0;
  std::int64_t frame_bytes = 0;
  std::int64_t credits = 0;
};

// Listener -> sender, the answer.
struct ShmReply {
  std::uint32_t magic = kShmMagic;
  std::uint32_t code = 0;           // StatusCode; kOk: the route is open
  std::array<char, 32> reason{};    // ends with a zero
  std::array<char, 216> message{};  // likewise
};

// Sender -> receiver: these bytes of this frame of the arena are filled.
struct ShmFrame {
  std::uint64_t index = 0;
  std::uint64_t bytes = 0;
};

// Receiver -> sender: the frame is yours again.
struct ShmAck {
  std::uint32_t index = 0;
  std::uint32_t bucket = 0;
  std::uint32_t attempt = 0;
  std::uint32_t verdict = 0;  // BucketVerdict
};

ShmHello ToShm(const RouteHello& hello);
// InvalidArgument "bad_route"  another protocol, or numbers that CheckRouteHello refuses
Result<RouteHello> FromShm(const ShmHello& hello);

ShmReply ToShm(const Status& status);
// The status that the listener sent; DataLoss "bad_message" when it is none.
Status FromShm(const ShmReply& reply);

ShmAck ToShm(std::uint64_t index, const BucketAck& ack);
// DataLoss "bad_ack"
Result<BucketAck> FromShm(const ShmAck& ack);

}  // namespace bascule
