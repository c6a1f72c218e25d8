// Moves, and the groups that they go in.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <bit>
#include <cstring>
#include <utility>
#include <vector>

#include "base/status.h"
#include "tests/support/fake_cuda/library_seam.h"
#include "tests/support/fake_nccl/calls_internal.h"
#include "tests/support/fake_nccl/operation.h"

using namespace bascule::fake_nccl;

namespace {

enum class MoveKind : std::uint32_t { kMessage, kBroadcast, kSum };

// What this thread's group asks of one communicator on one stream.
struct Part {
  std::shared_ptr<Communicator> communicator;
  cudaStream_t stream;
  std::shared_ptr<Operation> operation;
};
thread_local int group_depth = 0;
thread_local std::vector<Part> group;

// The part that a move belongs to. Null: the communicator cannot be used, or `memory` is not its device's (NCCL asks
// that too where NCCL_CHECK_POINTERS is set).
Operation* PartFor(ncclComm_t handle, cudaStream_t stream, const void* memory, int peer, ncclResult_t breaks) {
  const std::shared_ptr<Communicator> communicator = Find(handle);
  if (communicator == nullptr || !communicator->IsUsable() || peer < 0 || peer >= communicator->size()) return nullptr;
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, memory) != cudaSuccess || attributes.type != cudaMemoryTypeDevice ||
      attributes.device != communicator->device().ordinal) {
    return nullptr;
  }
  if (breaks != ncclSuccess) communicator->Break(breaks);
  for (const Part& part : group) {
    if (part.communicator == communicator && part.stream == stream) return part.operation.get();
  }
  group.push_back({communicator, stream, std::make_shared<Operation>(communicator)});
  return group.back().operation.get();
}

std::size_t SizeOf(ncclDataType_t type) {
  switch (type) {
    case ncclUint8:
      return 1;
    case ncclBfloat16:
      return 2;
    case ncclFloat32:
      return 4;
    default:
      return 0;
  }
}

Tag TagOf(MoveKind kind, std::size_t count, ncclDataType_t type) {
  return {.kind = static_cast<std::uint32_t>(kind),
          .type = static_cast<std::uint32_t>(type),
          .bytes = count * SizeOf(type)};
}

float ToFloat(const std::byte* at, ncclDataType_t type) {
  if (type == ncclFloat32) {
    float value = 0;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  std::uint16_t half = 0;
  std::memcpy(&half, at, sizeof half);
  return std::bit_cast<float>(std::uint32_t{half} << 16);
}

void Store(float value, ncclDataType_t type, std::byte* at) {
  if (type == ncclFloat32) {
    std::memcpy(at, &value, sizeof value);
    return;
  }
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto half = static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  std::memcpy(at, &half, sizeof half);
}

// The ranks' values, one after another in the ranks' order, so that every rank has the same bits; rounded after each.
void Sum(const std::vector<std::vector<std::byte>>& others, std::size_t rank, const void* own, void* result,
         std::size_t count, ncclDataType_t type) {
  const std::size_t size = SizeOf(type);
  for (std::size_t i = 0; i < count; ++i) {
    float sum = 0;
    for (std::size_t r = 0; r <= others.size(); ++r) {
      const std::byte* const from =
          r == rank ? static_cast<const std::byte*>(own) : others[r < rank ? r : r - 1].data();
      const float value = ToFloat(from + i * size, type);
      std::byte rounded[4];
      Store(r == 0 ? value : sum + value, type, rounded);
      sum = ToFloat(rounded, type);
    }
    Store(sum, type, static_cast<std::byte*>(result) + i * size);
  }
}

ncclResult_t Enqueue(const std::vector<Part>& parts) {
  ncclResult_t answer = ncclSuccess;
  for (const Part& part : parts) {
    const bascule::fake_cuda::Work work{.ready = [operation = part.operation] { return operation->MayStep(); },
                                        .run = [operation = part.operation] { operation->Step(); },
                                        .done = [operation = part.operation] { return operation->IsDone(); }};
    const bool now = part.communicator->EnqueueNowOrLater(
        [stream = part.stream, work] { CHECK(bascule_fake_cuda_enqueue_work(stream, work) == cudaSuccess); });
    if (!now) answer = ncclInProgress;
  }
  return answer;
}

// A move outside of a group is a group.
ncclResult_t EndMove() { return group_depth == 0 ? Enqueue(std::exchange(group, {})) : ncclSuccess; }

}  // namespace

extern "C" {

ncclResult_t ncclGroupStart() {
  FAKE_NCCL_CALL();
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group_depth == 0) return ncclInvalidUsage;
  if (--group_depth > 0) return ncclSuccess;
  std::vector<Part> asked;
  std::swap(group, asked);  // also where a fault is ordered for this call
  FAKE_NCCL_CALL();
  return Enqueue(asked);
}

ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t type, int peer, ncclComm_t handle,
                      cudaStream_t stream) {
  FAKE_NCCL_CALL();
  Operation* const operation = PartFor(handle, stream, from, peer, breaks);
  if (operation == nullptr) return ncclInvalidArgument;
  operation->Send(peer, from, TagOf(MoveKind::kMessage, count, type));
  Sent::Get().bytes += count * SizeOf(type);
  if (lost) operation->Lose();
  return EndMove();
}

ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t type, int peer, ncclComm_t handle,
                      cudaStream_t stream) {
  FAKE_NCCL_CALL();
  Operation* const operation = PartFor(handle, stream, to, peer, breaks);
  if (operation == nullptr) return ncclInvalidArgument;
  operation->Receive(peer, to, TagOf(MoveKind::kMessage, count, type));
  if (lost) operation->Lose();
  return EndMove();
}

ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t count, ncclDataType_t type, int root,
                           ncclComm_t handle, cudaStream_t stream) {
  FAKE_NCCL_CALL();
  if (from != to) return ncclInvalidArgument;  // only in place
  Operation* const operation = PartFor(handle, stream, to, root, breaks);
  if (operation == nullptr) return ncclInvalidArgument;
  const std::shared_ptr<Communicator> communicator = Find(handle);
  const Tag tag = TagOf(MoveKind::kBroadcast, count, type);
  if (communicator->rank() == root) {
    ++Sent::Get().broadcasts;
    Sent::Get().bytes += tag.bytes;
  }
  // In a ring, as NCCL does: each rank waits for the one before it and for the next.
  const int size = communicator->size();
  const int next = (communicator->rank() + 1) % size;
  if (communicator->rank() != root) operation->Receive((communicator->rank() + size - 1) % size, to, tag);
  if (next != root) operation->Forward(next, from, tag);
  if (lost) operation->Lose();
  return EndMove();
}

ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t reduction,
                           ncclComm_t handle, cudaStream_t stream) {
  FAKE_NCCL_CALL();
  if (reduction != ncclSum || SizeOf(type) < 2) return ncclInvalidArgument;
  // One reduction is one operation: its messages are summed up by themselves.
  Operation* const operation = PartFor(handle, stream, to, /*peer=*/0, breaks);
  if (operation == nullptr || operation->has_finish()) return ncclInvalidArgument;
  const std::shared_ptr<Communicator> communicator = Find(handle);
  const Tag tag = TagOf(MoveKind::kSum, count, type);
  for (int peer = 0; peer < communicator->size(); ++peer) {
    if (peer == communicator->rank()) continue;
    operation->Send(peer, from, tag);
    operation->ReceiveFor(peer, tag);
  }
  const auto rank = static_cast<std::size_t>(communicator->rank());
  operation->Finish(
      [=](const std::vector<std::vector<std::byte>>& others) { Sum(others, rank, from, to, count, type); });
  if (lost) operation->Lose();
  return EndMove();
}

}  // extern "C"
