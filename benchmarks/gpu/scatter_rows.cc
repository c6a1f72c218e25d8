#include <algorithm>
#include <random>

#include "benchmarks/gpu/changes.h"
#include "benchmarks/gpu/rows.h"

namespace bascule {
namespace {

constexpr std::int64_t kBoxElements = 1 << 24;
// Of a change, as the device moves them: its position, its element, the sector that it lies in read and written, and
// the element that was there.
constexpr double kChangeBytes = 4 + 2 + 32 + 32 + 2;

// Repeats what the first `have` bytes hold over all of `memory`.
Status Repeat(const GpuRun& run, std::span<std::byte> memory, std::size_t have) {
  while (have < memory.size()) {
    const std::size_t more = std::min(have, memory.size() - have);
    RETURN_IF_ERROR(run.stream().Copy(memory.subspan(have, more), memory.first(more)));
    have += more;
  }
  return run.Await();
}

// Rising positions in a box.
std::vector<std::uint32_t> Positions(std::int64_t elements, double density) {
  std::mt19937 random(7);
  const auto below = static_cast<std::uint32_t>(density * 4294967296.0);
  std::vector<std::uint32_t> positions;
  for (std::int64_t at = 0; at < elements; ++at) {
    if (random() < below) positions.push_back(static_cast<std::uint32_t>(at));
  }
  if (positions.empty()) positions.push_back(0);
  return positions;
}

}  // namespace

Result<SlotChanges> SlotChanges::Make(const GpuRun& run, std::span<std::byte> slot, double density) {
  const auto slot_elements = static_cast<std::int64_t>(slot.size()) / 2;
  const std::int64_t box = std::min(kBoxElements, slot_elements);
  const std::int64_t boxes = slot_elements / box;
  const std::vector<std::uint32_t> positions = Positions(box, density);
  const auto each = static_cast<std::int64_t>(positions.size());
  BoxMoveTable table;
  std::vector<std::int64_t> offsets;
  const BoxPlace line{0, {1}};
  for (std::int64_t b = 0; b < boxes; ++b) {
    RETURN_IF_ERROR(table.Add({.shape = {1, {box}},
                               .item_bytes = 2,
                               .source_bytes = b * box * 2,
                               .source = line,
                               .target_bytes = b * box * 2,
                               .target = line,
                               .logical = line}));
  }
  for (std::int64_t b = 0; b <= boxes; ++b) offsets.push_back(b * each);
  for (std::int64_t b = 0; b < boxes; ++b) offsets.push_back(b * each * 2);
  SlotChanges changes;
  ASSIGN_OR_RETURN(changes.table_, run.Upload(table));
  ASSIGN_OR_RETURN(changes.offsets_, run.Allocate(static_cast<std::int64_t>(offsets.size() * 8)));
  RETURN_IF_ERROR(run.CopyIn(changes.offsets_->bytes(), std::as_bytes(std::span(offsets))));
  ASSIGN_OR_RETURN(changes.positions_, run.Allocate(boxes * each * 4));
  RETURN_IF_ERROR(
      run.CopyIn(changes.positions_->bytes().first(positions.size() * 4), std::as_bytes(std::span(positions))));
  RETURN_IF_ERROR(Repeat(run, changes.positions_->bytes(), positions.size() * 4));
  ASSIGN_OR_RETURN(changes.items_, run.Noise(std::max<std::int64_t>(boxes * each * 2, 8)));
  ASSIGN_OR_RETURN(changes.replaced_, run.Allocate(std::max<std::int64_t>(boxes * each * 2, 8)));
  ASSIGN_OR_RETURN(changes.digests_, run.Allocate(boxes * static_cast<std::int64_t>(sizeof(TensorDigest))));
  const auto* const first = reinterpret_cast<const std::int64_t*>(changes.offsets_->bytes().data());
  changes.batch_ = {.entries = reinterpret_cast<const MoveEntry*>(changes.table_.memory->bytes().data()),
                    .entry_count = boxes,
                    .first_change = first,
                    .first_item = first + boxes + 1,
                    .positions = reinterpret_cast<const std::uint32_t*>(changes.positions_->bytes().data()),
                    .items = changes.items_->bytes().data(),
                    .replaced = changes.replaced_->bytes().data(),
                    .changes = boxes * each,
                    .target_base = reinterpret_cast<std::uint64_t>(slot.data()),
                    .digests = reinterpret_cast<TensorDigest*>(changes.digests_->bytes().data())};
  return changes;
}

Status ScatterRows(GpuRun& run) {
  ASSIGN_OR_RETURN(const auto slot, run.Noise(run.scale().model_bytes));
  ASSIGN_OR_RETURN(const double bandwidth, run.CopyBandwidth());
  for (const auto& [name, density] : {std::pair("0.1", 0.001), {"1", 0.01}, {"3", 0.03}, {"10", 0.1}}) {
    ASSIGN_OR_RETURN(const SlotChanges changes, SlotChanges::Make(run, slot->bytes(), density));
    ASSIGN_OR_RETURN(const double seconds,
                     run.SecondsOf([&] { return run.kernels().scatter(changes.batch(), run.stream().handle()); }));
    // Changes that share a sector move it once.
    const double bytes =
        std::min(kChangeBytes * static_cast<double>(changes.count()),
                 8 * static_cast<double>(changes.count()) + 2 * static_cast<double>(slot->bytes().size()));
    run.Row(fmt::format("gpu_scatter_{}pct", name), seconds * 1e3, "ms", bytes / bandwidth * 1e3,
            "the bytes of its changes, at the bandwidth of a device copy");
  }
  return OkStatus();
}

}  // namespace bascule
