// attention.h on a device, with the host's bits: one thread block for each problem, which a batch has one of for every
// query position and KV head.
//
// The order of attention.h lets no two blocks share a problem, so it takes a batch to fill a device: a single long
// sequence uses as many multiprocessors as it has KV heads. Queries, keys and values are finite.
//
// Thread-safety: thread-safe. Each enqueues on `stream` and returns; what the problems point to stays as it is until
// `stream` passes this point. Errors of the device (device/device.h).
#pragma once

#include <cstdint>

#include "base/status.h"
#include "device/stream.h"
#include "kernels/attention.h"

namespace bascule {

// A key and a value to be stored at a position of the cache.
struct KvStore {
  KvHeadView cache;
  std::int64_t position = 0;
  const float* key = nullptr;
  const float* value = nullptr;
};

// `stores` and `problems` lie in device memory, and so does all that they point to. No two stores are of one place.
Status StoreKvOnDevice(const KvStore* stores, std::int64_t count, StreamHandle stream);
// Each problem has a scratch of its own.
Status AttentionOnDevice(const AttentionProblem* problems, std::int64_t count, StreamHandle stream);

}  // namespace bascule

// Roofline, per position and KV head: 4 * head_size bytes of keys and of values read, once for every four query heads;
// of scratch 16 bytes written and read a few times, which stay in the second-level cache.
