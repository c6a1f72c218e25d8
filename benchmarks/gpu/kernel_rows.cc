#include "benchmarks/gpu/rows.h"
#include "kernels/delta_device.h"
#include "kernels/pack.h"

namespace bascule {
namespace {

constexpr std::int64_t kColumns = 8192;  // elements of a row; half of them is what a tensor-parallel rank takes
constexpr DigestKey kKey{{1, 2, 3, 4}};

struct Memory {
  std::unique_ptr<DeviceBuffer> big;    // twice the kernel's bytes
  std::unique_ptr<DeviceBuffer> small;  // as many
  std::unique_ptr<DeviceBuffer> digest;
  const std::byte* from() const { return big->bytes().data(); }
  std::byte* whole() const { return big->bytes().data(); }
  std::byte* compact() const { return small->bytes().data(); }
  TensorDigest* sum() const { return reinterpret_cast<TensorDigest*>(digest->bytes().data()); }
};

Result<DeviceTable> TableOf(GpuRun& run, const BoxMove& move) {
  BoxMoveTable table;
  RETURN_IF_ERROR(table.Add(move));
  return run.Upload(table);
}

Status MoveRows(GpuRun& run, const Memory& memory) {
  const std::int64_t bytes = run.scale().kernel_bytes;
  const BoxShape half{2, {bytes / kColumns, kColumns / 2}};  // of bf16: as many bytes as elements in a row
  const BoxPlace in_matrix{kColumns / 2, {kColumns, 1}};
  const BoxShape whole{1, {bytes / 2}};
  const BoxPlace line{0, {1}};
  const BoxShape singles{1, {bytes / 2}};
  ASSIGN_OR_RETURN(const DeviceTable pack, TableOf(run, {.shape = half,
                                                         .item_bytes = 2,
                                                         .source = in_matrix,
                                                         .target = CompactPlace(half),
                                                         .logical = in_matrix,
                                                         .key = kKey}));
  ASSIGN_OR_RETURN(const DeviceTable unpack, TableOf(run, {.shape = half,
                                                           .item_bytes = 2,
                                                           .source = CompactPlace(half),
                                                           .target = in_matrix,
                                                           .logical = in_matrix,
                                                           .key = kKey}));
  ASSIGN_OR_RETURN(
      const DeviceTable line_table,
      TableOf(run, {.shape = whole, .item_bytes = 2, .source = line, .target = line, .logical = line, .key = kKey}));
  ASSIGN_OR_RETURN(const DeviceTable convert, TableOf(run, {.shape = singles,
                                                            .item_bytes = 4,
                                                            .conversion = Conversion::kF32ToBf16,
                                                            .source = line,
                                                            .target = line,
                                                            .logical = line,
                                                            .key = kKey}));
  const DeviceKernels& kernels = run.kernels();
  const StreamHandle stream = run.stream().handle();
  const auto n = static_cast<double>(bytes);
  RETURN_IF_ERROR(run.KernelRow("gpu_move_rows", 2 * n, [&] {
    return kernels.move_boxes(line_table.Batch(memory.from(), memory.compact()), stream);
  }));
  RETURN_IF_ERROR(run.KernelRow("gpu_pack_columns", 2 * n, [&] {
    return kernels.move_boxes(pack.Batch(memory.from(), memory.compact()), stream);
  }));
  RETURN_IF_ERROR(run.KernelRow("gpu_unpack_columns", 2 * n, [&] {
    return kernels.move_boxes(unpack.Batch(memory.compact(), memory.whole()), stream);
  }));
  RETURN_IF_ERROR(run.KernelRow("gpu_pack_digest", 2 * n, [&] {
    return kernels.move_and_digest_boxes(pack.Batch(memory.from(), memory.compact(), memory.sum()), stream);
  }));
  RETURN_IF_ERROR(run.KernelRow("gpu_unpack_digest", 2 * n, [&] {
    return kernels.move_and_digest_boxes(unpack.Batch(memory.compact(), memory.whole(), memory.sum()), stream);
  }));
  RETURN_IF_ERROR(run.KernelRow("gpu_pack_f32_to_bf16_digest", 3 * n, [&] {
    return kernels.move_and_digest_boxes(convert.Batch(memory.from(), memory.compact(), memory.sum()), stream);
  }));
  return run.KernelRow("gpu_digest", n, [&] {
    return kernels.digest_boxes(line_table.Batch(memory.compact(), nullptr, memory.sum()), stream);
  });
}

Status ConversionRows(GpuRun& run, const Memory& memory) {
  const std::int64_t bytes = run.scale().kernel_bytes;
  const DeviceKernels& kernels = run.kernels();
  const StreamHandle stream = run.stream().handle();
  const auto n = static_cast<double>(bytes);
  RETURN_IF_ERROR(run.KernelRow("gpu_cast_f32_to_bf16", 3 * n, [&] {
    return kernels.cast_f32_to_bf16(memory.from(), memory.compact(), bytes / 2, stream);
  }));
  const std::int64_t rows = bytes / 2 / kColumns;  // of bf16
  ASSIGN_OR_RETURN(const auto scales, run.Allocate((rows / 128 + 1) * (kColumns / 128) * 4));
  ASSIGN_OR_RETURN(const auto first, run.Allocate(8));
  return run.KernelRow("gpu_quantize_fp8", 1.5 * n, [&] {
    return kernels.quantize_fp8_blocks(rows, kColumns, memory.from(), memory.compact(),
                                       reinterpret_cast<float*>(scales->bytes().data()),
                                       reinterpret_cast<std::int64_t*>(first->bytes().data()), stream);
  });
}

// Two equal versions: what a delta costs where nothing changed, and nearly so where one element in a hundred did.
Status CompareRow(GpuRun& run, const Memory& memory) {
  const std::int64_t bytes = run.scale().kernel_bytes;
  const std::int64_t blocks = CompareBlocks(bytes / 2);
  ASSIGN_OR_RETURN(const auto changed, run.Allocate(blocks * 512));
  ASSIGN_OR_RETURN(const auto sums, run.Allocate((blocks + 1) * 8));
  ASSIGN_OR_RETURN(const auto positions, run.Allocate(1 << 20));
  ASSIGN_OR_RETURN(const auto items, run.Allocate(1 << 20));
  RETURN_IF_ERROR(run.stream().Copy(memory.small->bytes(), memory.big->bytes().first(memory.small->bytes().size())));
  const CompareBatch batch{.base = memory.from(),
                           .next = memory.compact(),
                           .count = bytes / 2,
                           .item_bytes = 2,
                           .changed = reinterpret_cast<std::uint16_t*>(changed->bytes().data()),
                           .first_change = reinterpret_cast<std::int64_t*>(sums->bytes().data()),
                           .positions = reinterpret_cast<std::uint32_t*>(positions->bytes().data()),
                           .items = items->bytes().data(),
                           .capacity = 1 << 18};
  return run.KernelRow("gpu_compare", 2 * static_cast<double>(bytes),
                       [&] { return run.kernels().extract_changes(batch, run.stream().handle()); });
}

}  // namespace

Status KernelRows(GpuRun& run) {
  Memory memory;
  ASSIGN_OR_RETURN(memory.big, run.Noise(2 * run.scale().kernel_bytes));
  ASSIGN_OR_RETURN(memory.small, run.Allocate(run.scale().kernel_bytes));
  ASSIGN_OR_RETURN(memory.digest, run.Allocate(sizeof(TensorDigest)));
  RETURN_IF_ERROR(MoveRows(run, memory));
  RETURN_IF_ERROR(ConversionRows(run, memory));
  return CompareRow(run, memory);
}

}  // namespace bascule
