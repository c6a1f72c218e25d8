// What processes of one host say over their sockets, and the addresses that they advertise: numbers that are accepted
// are within their bounds, and texts end where they should.
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "bridge/transport/cuda_ipc/messages.h"
#include "bridge/transport/nccl/messages.h"
#include "bridge/transport/shm/messages.h"
#include "engine_side/cache_daemon/messages.h"

namespace bascule {
namespace {

// As it comes from a socket: of its size, whatever is in it.
template <typename T>
T MessageOf(std::string_view bytes) {
  T message;
  std::memcpy(static_cast<void*>(&message), bytes.data(), std::min(bytes.size(), sizeof message));
  return message;
}

void Shm(std::string_view bytes) {
  if (const auto hello = FromShm(MessageOf<ShmHello>(bytes)); hello.ok()) {
    CHECK(CheckRouteHello(*hello).ok());
    CHECK(FromShm(ToShm(*hello)).ok());
  }
  const auto reply = MessageOf<ShmReply>(bytes);
  const Status status = FromShm(reply);
  CHECK(status.reason().size() <= reply.reason.size() && status.message().size() <= 2 * reply.message.size());
  if (const auto ack = FromShm(MessageOf<ShmAck>(bytes)); ack.ok()) {
    CHECK(*FromShm(ToShm(0, *ack)) == *ack);
  }
}

void CudaIpc(std::string_view bytes) {
  const auto hello = FromCudaIpc(MessageOf<CudaIpcHello>(bytes));
  CHECK(!hello.ok() || CheckRouteHello(*hello).ok());
  if (const auto address = ParseCudaIpcAddress(std::string(bytes)); address.ok()) {
    CHECK(ParseCudaIpcAddress(ToAddress(*address))->devices == address->devices);
  }
}

void Nccl(std::string_view bytes) {
  const auto frame = std::as_bytes(std::span(bytes));
  const std::int64_t frame_bytes = 4096;
  if (const auto words = ReadWords(frame, frame_bytes); words.ok()) {
    CHECK(words->payload_bytes <= static_cast<std::uint64_t>(frame_bytes));
    CHECK(words->payload_bytes == 0 || (words->rank >= 0 && words->rank < words->size && words->size <= kNcclRanksMax));
  }
  if (const auto address = ParseNcclAddress(std::string(bytes)); address.ok()) {
    CHECK(ParseNcclAddress(ToAddress(*address))->version == address->version);
  }
}

void CacheDaemon(std::string_view bytes) {
  (void)CheckHello(MessageOf<CacheHello>(bytes));
  (void)CheckWelcome(MessageOf<CacheWelcome>(bytes));
  const auto version = MessageOf<CacheVersion>(bytes);
  if (CheckVersion(version).ok()) {
    CHECK(version.rank_count >= 1 && version.manifest_bytes > 0 && version.manifest_bytes <= kMaxCacheManifestBytes);
  }
  if (const auto run = FromRunText(MessageOf<EngineReport>(bytes).live_run); run.ok()) {
    CHECK(run->size() < RunText().size() && *FromRunText(ToRunText(*run)) == *run);
  }
}

}  // namespace
}  // namespace bascule

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  bascule::Shm(bytes);
  bascule::CudaIpc(bytes);
  bascule::Nccl(bytes);
  bascule::CacheDaemon(bytes);
  return 0;
}
