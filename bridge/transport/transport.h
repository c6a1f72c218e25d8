// Stage: transport (bucket -> [transport] -> staging)
//
// Moves frames over routes, one sending rank to one engine rank; knows bytes, never tensors. A route has a fixed number
// of frames, its credits: a sender fills a free frame, sends it, and has it back when the receiver has acknowledged it.
// So credits x frame_bytes bounds the memory of a route, and an unacknowledged bucket can always be sent again.
// Routes are opened once per connection and reused by every session on it. All transports pass tests/contract.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "bridge/plan/plan.h"

namespace bascule {

enum class TransportKind : std::uint8_t { kLoopback, kShm, kGrpc };
std::string_view TransportName(TransportKind kind);  // "shm"
// InvalidArgument "unknown_transport"
Result<TransportKind> ParseTransport(std::string_view name);

// What became of a frame. Every sent frame is acknowledged once, in any order.
enum class BucketVerdict : std::uint8_t {
  kGood,       // verified and placed
  kDuplicate,  // seen before; dropped
  kDamaged,    // checksum, digest or header: send it again
  kFenced,     // of a session that is over; dropped
};

// In an acknowledgement of a frame whose header could not be read: kDamaged, and the seal will name what is missing.
inline constexpr std::uint32_t kNoBucket = 0xffffffff;

struct BucketAck {
  std::uint32_t bucket = 0;
  std::uint32_t attempt = 0;
  BucketVerdict verdict = BucketVerdict::kGood;
  friend bool operator==(const BucketAck&, const BucketAck&) = default;
};

// Where a listener can be reached and what makes a route belong to a connection.
struct TransportEndpoint {
  TransportKind kind = TransportKind::kLoopback;
  std::string address;  // loopback: a name; shm: a socket path; grpc: host:port
  friend bool operator==(const TransportEndpoint&, const TransportEndpoint&) = default;
};

// The first thing a sender says on a new route.
struct RouteHello {
  std::uint64_t connection = 0;  // random, minted by the receiver in its HelloReply: a route without it is refused
  Route route;
  std::int64_t frame_bytes = 0;  // capacity of one frame
  std::int32_t credits = 0;      // frames
  friend bool operator==(const RouteHello&, const RouteHello&) = default;
};

inline constexpr std::int64_t kMaxFrameBytes = std::int64_t{256} << 20;
inline constexpr std::int32_t kMaxCredits = 256;

// Sending end of a route. Thread-safety: confined to one sending thread, except Cancel.
class BucketSender {
 public:
  virtual ~BucketSender() = default;  // closes the route
  virtual std::int64_t frame_bytes() const = 0;
  virtual std::int32_t credits() const = 0;
  virtual bool wants_checksum() const = 0;  // wire transports do
  // A frame is free: Acquire will not fail for want of one.
  virtual bool HasCredit() const = 0;
  // The memory of a free frame, 64-byte aligned, valid until Send. One at a time.
  virtual std::span<std::byte> Acquire() = 0;
  // Hands the acquired frame's first `bytes` over; does not wait for the receiver.
  //
  // Unavailable "peer_lost"
  virtual Status Send(std::size_t bytes) = 0;
  // Waits for an acknowledgement, which also frees its frame.
  //
  // Unavailable "peer_lost"; DeadlineExceeded "deadline"; Cancelled "cancelled"
  virtual Result<BucketAck> NextAck(Deadline deadline) = 0;
  // Wakes a waiting NextAck, which then fails. Any thread.
  virtual void Cancel() = 0;
};

struct ReceivedFrame {
  std::span<const std::byte> bytes;  // valid until acknowledged; a producer may still write (shm): copy, then check
  std::uint64_t handle = 0;
};

// Receiving end. Thread-safety: confined to one receiving thread, except Cancel.
class BucketReceiver {
 public:
  virtual ~BucketReceiver() = default;
  virtual const RouteHello& hello() const = 0;
  // Unavailable "peer_lost"; DeadlineExceeded "deadline"; Cancelled "cancelled"
  // DataLoss "bad_frame"  the peer broke the transport's own rules; the route is over
  virtual Result<ReceivedFrame> Receive(Deadline deadline) = 0;
  virtual Status Acknowledge(const ReceivedFrame& frame, const BucketAck& ack) = 0;
  virtual void Cancel() = 0;
};

// Engine side: accepts routes of one kind. Thread-safety: thread-safe.
class TransportListener {
 public:
  virtual ~TransportListener() = default;
  virtual TransportEndpoint endpoint() const = 0;
  // From now on routes of `connection` are taken; others are refused. Forget drops those not yet accepted.
  virtual void Expect(std::uint64_t connection) = 0;
  virtual void Forget(std::uint64_t connection) = 0;
  // Waits until the sender of `route` of `connection` has called. Each route is handed out once.
  //
  // DeadlineExceeded "deadline"; Cancelled "cancelled" (Forget or destruction)
  virtual Result<std::unique_ptr<BucketReceiver>> Accept(std::uint64_t connection, Route route, Deadline deadline) = 0;
};

// Sending side: opens routes of one kind. Thread-safety: thread-safe.
class TransportDialer {
 public:
  virtual ~TransportDialer() = default;
  virtual TransportKind kind() const = 0;
  // True when `endpoint` can be reached from here by its nature (shm: same host, the socket is there).
  virtual bool CanReach(const TransportEndpoint& endpoint) const = 0;
  // Unavailable "peer_unreachable"; DeadlineExceeded "deadline"; PermissionDenied "peer_credentials"
  // ResourceExhausted "shared_memory"  the arena could not be had
  virtual Result<std::unique_ptr<BucketSender>> Dial(const TransportEndpoint& endpoint, const RouteHello& hello,
                                                     Deadline deadline) = 0;
};

}  // namespace bascule
