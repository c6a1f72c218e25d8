#include "bridge/transport/shm/messages.h"

#include <algorithm>
#include <string_view>

#include "base/checked_math.h"

namespace bascule {
namespace {

template <std::size_t N>
void CopyText(std::string_view text, std::array<char, N>& target) {
  std::ranges::copy(text.substr(0, N - 1), target.begin());
}

template <std::size_t N>
std::string_view TextOf(const std::array<char, N>& source) {
  return {source.begin(), std::ranges::find(source, '\0')};
}

}  // namespace

ShmHello ToShm(const RouteHello& hello) {
  return ShmHello{.connection = hello.connection,
                  .sender_rank = hello.route.sender_rank,
                  .engine_rank = hello.route.engine_rank,
                  .frame_bytes = hello.frame_bytes,
                  .credits = hello.credits};
}

Result<RouteHello> FromShm(const ShmHello& hello) {
  if (hello.magic != kShmMagic || hello.version != kShmVersion) {
    return Status::InvalidArgument("bad_route", fmt::format("shm protocol magic={:#x} version={} want={}", hello.magic,
                                                            hello.version, kShmVersion));
  }
  const std::optional<std::int32_t> credits = CheckedCast<std::int32_t>(hello.credits);
  const RouteHello route{.connection = hello.connection,
                         .route = {hello.sender_rank, hello.engine_rank},
                         .frame_bytes = hello.frame_bytes,
                         .credits = credits.value_or(0)};
  RETURN_IF_ERROR(CheckRouteHello(route));
  return route;
}

ShmReply ToShm(const Status& status) {
  ShmReply reply;
  reply.code = static_cast<std::uint32_t>(status.code());
  CopyText(status.reason(), reply.reason);
  CopyText(status.message(), reply.message);
  return reply;
}

Status FromShm(const ShmReply& reply) {
  if (reply.magic != kShmMagic || reply.code > static_cast<std::uint32_t>(StatusCode::kInternal)) {
    return Status::DataLoss("bad_message", fmt::format("magic={:#x} code={}", reply.magic, reply.code));
  }
  const auto code = static_cast<StatusCode>(reply.code);
  if (code == StatusCode::kOk) return OkStatus();
  return Status(code, TextOf(reply.reason), std::string(TextOf(reply.message)));
}

ShmAck ToShm(std::uint64_t index, const BucketAck& ack) {
  return ShmAck{.index = static_cast<std::uint32_t>(index),
                .bucket = ack.bucket,
                .attempt = ack.attempt,
                .verdict = static_cast<std::uint32_t>(ack.verdict)};
}

Result<BucketAck> FromShm(const ShmAck& ack) {
  if (ack.verdict > static_cast<std::uint32_t>(BucketVerdict::kFenced)) {
    return Status::DataLoss("bad_ack", fmt::format("verdict={}", ack.verdict));
  }
  return BucketAck{ack.bucket, ack.attempt, static_cast<BucketVerdict>(ack.verdict)};
}

}  // namespace bascule
