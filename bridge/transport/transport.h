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
#include "bridge/bucket/box_view.h"
#include "bridge/bucket/bucket_format.h"
#include "bridge/plan/plan.h"

namespace bascule {

class Device;
class DeviceStream;

enum class TransportKind : std::uint8_t { kLoopback, kShm, kGrpc, kCudaIpc, kNccl };
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
  // loopback: a name; shm: a socket path; grpc: host:port; cuda_ipc: a device's UUID:socket path; nccl: a device's
  // UUID:version:carrier's kind and address
  std::string address;
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
inline constexpr std::int64_t kMaxRouteBytes = std::int64_t{4} << 30;  // credits x frame_bytes

// Every transport checks a hello with this at both ends, before a number of it sizes anything.
//
// InvalidArgument "bad_route"  a rank below 0, or frame_bytes, credits or their product out of bounds
Status CheckRouteHello(const RouteHello& hello);

// Sending end of a route. Thread-safety: confined to one sending thread, except Cancel.
class BucketSender {
 public:
  virtual ~BucketSender() = default;  // closes the route
  virtual std::int64_t frame_bytes() const = 0;
  virtual std::int32_t credits() const = 0;
  virtual bool wants_checksum() const = 0;  // wire transports do
  // A frame is free: Acquire may be called. Only NextAck gives credits back.
  virtual bool HasCredit() const = 0;
  // The memory of a free frame, 64-byte aligned, valid until Send. One at a time: until Send it is the same frame.
  virtual std::span<std::byte> Acquire() = 0;
  // Hands the acquired frame's first `bytes` over; does not wait for the receiver.
  //
  // Unavailable "peer_lost"
  virtual Status Send(std::size_t bytes) = 0;
  // Both ends are in this process: a frame need not hold its payload, but may name where its slices lie.
  virtual bool TakesViews() const { return false; }
  // As Send, of a frame of header and digests whose slices lie at `payload`, with their memory, which is let go with
  // the acknowledgement. Only where TakesViews.
  virtual Status SendViews(std::size_t bytes, std::vector<BoxView> payload);
  // A frame has a second part, as large again, in memory of a device: for payload that neither end's host touches.
  virtual bool HasDevicePayload() const { return false; }
  // That part of the acquired frame. What was read from it is done. Only where HasDevicePayload.
  virtual std::span<std::byte> AcquireDevicePayload();
  // Puts the acquired frame by, so that the device can fill several at once: it keeps its credit, another one may be
  // acquired, and the route stays until what is enqueued on `filling` until now is done. Gives its number. Errors of
  // the device.
  virtual Result<std::uint32_t> PutBy(DeviceStream& filling);
  // The frame put by under that number is the acquired one again. No other is acquired.
  virtual void TakeUp(std::uint32_t number);
  // As Send, with the first `payload_bytes` of the second part; the receiver gets the frame when what is enqueued on
  // `filled_on` until now is done. Errors of the device.
  virtual Status SendFilledOn(std::size_t bytes, std::size_t payload_bytes, DeviceStream& filled_on);
  // Waits for an acknowledgement, which also frees its frame. Those that came before the peer was lost come first.
  //
  // Unavailable "peer_lost"; DeadlineExceeded "deadline"; Cancelled "cancelled"
  // DataLoss "bad_ack"  the peer broke the transport's own rules; the route is over
  virtual Result<BucketAck> NextAck(Deadline deadline) = 0;
  // Wakes a waiting NextAck, which fails from now on. The peer is told by destruction only. Any thread.
  virtual void Cancel() = 0;
};

// Several routes of one sender over which one second part goes to several engine ranks in one move, each with a first
// part of its own. Every rank gets, and acknowledges, a frame of its route as if it had been sent there alone. Frames
// are sent in the order in which they were put by. Errors of the device, and of the link.
//
// Thread-safety: confined to the sending thread of its routes.
class BucketCast {
 public:
  virtual ~BucketCast() = default;
  // While every route has a free frame: the memory of the device for the second part. What was read from it is done.
  virtual std::span<std::byte> AcquireDevicePayload() = 0;
  // Takes the acquired frame of every route, and puts them by as BucketSender::PutBy does.
  virtual Result<std::uint32_t> PutBy(DeviceStream& filling) = 0;
  // The frames put by under that number, the oldest, are the acquired ones again.
  virtual void TakeUp(std::uint32_t number) = 0;
  // The first part of what goes on the `index`-th of its routes.
  virtual std::span<std::byte> Head(std::size_t index) = 0;
  // As BucketSender::SendFilledOn, on every route; each first part has `bytes`.
  virtual Status SendFilledOn(std::size_t bytes, std::size_t payload_bytes, DeviceStream& filled_on) = 0;
};

struct ReceivedFrame {
  std::span<const std::byte> bytes;  // valid until acknowledged; a producer may still write (shm): copy, then check
  std::uint64_t handle = 0;
  // Where the slices lie, one view each, of a frame that names its payload instead of holding it. Valid as `bytes`.
  std::span<const BoxView> payload = {};
  // The part of the frame that lies in device memory, at least as far as it is filled. What its sender enqueued is
  // done. Valid as `bytes`, for the device.
  std::span<const std::byte> device_payload = {};
};

// Where a frame has a part in device memory, all of its payload lies there, from the first byte on.
inline PayloadPlace PlaceOfPayload(const ReceivedFrame& frame) {
  return frame.payload.empty() && frame.device_payload.empty() ? PayloadPlace::kInFrame : PayloadPlace::kApart;
}

// Receiving end. Thread-safety: confined to one receiving thread, except Cancel.
class BucketReceiver {
 public:
  virtual ~BucketReceiver() = default;
  virtual const RouteHello& hello() const = 0;
  // Waits for a frame. Frames sent before the peer was lost may be lost with it.
  //
  // Unavailable "peer_lost"; DeadlineExceeded "deadline"; Cancelled "cancelled"
  // DataLoss "bad_frame"  the peer broke the transport's own rules; the route is over
  virtual Result<ReceivedFrame> Receive(Deadline deadline) = 0;
  // Gives the frame back, once; does not wait for the sender.
  //
  // Unavailable "peer_lost"; InvalidArgument "not_outstanding"  the frame was given back before
  virtual Status Acknowledge(const ReceivedFrame& frame, const BucketAck& ack) = 0;
  // As Acknowledge, where what is enqueued on `read_on` until now still reads `device_payload`: only when it is done
  // has the sender the frame back. Errors of the device.
  virtual Status AcknowledgeReadOn(const ReceivedFrame& frame, const BucketAck& ack, DeviceStream& read_on);
  // As BucketSender::Cancel, for Receive.
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
  // Waits until the sender of `route` of `connection` has called. Each route of a connection is handed out once.
  //
  // DeadlineExceeded "deadline"; Cancelled "cancelled" (not expected, Forget, or the listener goes)
  virtual Result<std::unique_ptr<BucketReceiver>> Accept(std::uint64_t connection, Route route, Deadline deadline) = 0;
};

// Sending side: opens routes of one kind. Thread-safety: thread-safe.
class TransportDialer {
 public:
  virtual ~TransportDialer() = default;
  virtual TransportKind kind() const = 0;
  // Whose memory the payload of its frames lies in: only who has the weights there can send. Null: the host's.
  virtual Device* device() const { return nullptr; }
  // True when `endpoint` can be reached from here by its nature (shm: same host, the socket is there).
  virtual bool CanReach(const TransportEndpoint& endpoint) const = 0;
  // Waits until the listener has taken the route; nobody need be in Accept.
  //
  // Unavailable "peer_unreachable"; DeadlineExceeded "deadline"; InvalidArgument "bad_route"
  // PermissionDenied "peer_credentials" | "unknown_connection"; AlreadyExists "route_taken"
  // ResourceExhausted "frame_memory"  the frames could not be had; "too_many_routes"
  virtual Result<std::unique_ptr<BucketSender>> Dial(const TransportEndpoint& endpoint, const RouteHello& hello,
                                                     Deadline deadline) = 0;

  // One move can carry the same payload to several engine ranks.
  virtual bool CanCast() const { return false; }
  // What does so for `routes`, two or more that this has dialed, to different engine ranks; they outlive it. Only where
  // CanCast. ResourceExhausted "device_memory"; errors of the device
  virtual Result<std::unique_ptr<BucketCast>> Cast(std::span<BucketSender* const> routes);

  // A session over `endpoint` ended so, at this end or the other. Where a link of the transport's own is to blame for
  // that, the endpoint is one to avoid for a while, if there is another way.
  virtual void NoteFailure(const TransportEndpoint& /*endpoint*/, const Status& /*why*/) {}
  virtual bool Avoids(const TransportEndpoint& /*endpoint*/) const { return false; }
};

}  // namespace bascule
