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

// The same for the rows of a decode step, whose requests' page tables lie one behind the other: (row, KV head) by (row,
// KV head), each of which is one problem.
struct PagedRows {
  float* pool = nullptr;
  std::int64_t page_floats = 0;
  std::int64_t page_tokens = 0;
  std::int64_t key_offset = 0;    // in a page, of the first KV head
  std::int64_t value_offset = 0;  // likewise
  std::int64_t head_floats = 0;   // from one KV head to the next
  std::int64_t head_size = 0;
  std::int64_t kv_heads = 0;
  const std::int32_t* page_tables = nullptr;
  const std::int32_t* first_page = nullptr;  // of each row: where its request's table begins
  const std::int32_t* positions = nullptr;   // of each row; negative: nothing is done for the row
};

// Keys and values of row r begin at element r * row_stride, a KV head behind the other. No two rows have one place.
Status StoreKvRowsOnDevice(const PagedRows& cache, const float* keys, const float* values, std::int64_t row_stride,
                           std::int64_t rows, StreamHandle stream);

struct AttentionRows {
  PagedRows cache;
  std::int64_t heads = 0;        // query heads of one KV head
  const float* query = nullptr;  // of row r: from element r * query_stride, kv_heads * heads * head_size
  std::int64_t query_stride = 0;
  float scale = 0;
  float* out = nullptr;  // likewise
  std::int64_t out_stride = 0;
  float* scratch = nullptr;         // of problem p: from element (p - first) * scratch_floats
  std::int64_t scratch_floats = 0;  // AttentionScratch of the last row's position + 1, or more
};
// Problems [first, first + count) of rows * kv_heads. Row r attends to positions [0, positions[r]].
Status AttentionRowsOnDevice(const AttentionRows& rows, std::int64_t first, std::int64_t count, StreamHandle stream);

}  // namespace bascule

// Roofline, per position and KV head: 4 * head_size bytes of keys and of values read, once for every four query heads;
// of scratch 16 bytes written and read a few times, which stay in the second-level cache.
