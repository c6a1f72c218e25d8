#include "kernels/delta.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "kernels/box_runs_internal.h"
#include "kernels/digest_internal.h"

namespace bascule {
namespace {

constexpr std::size_t kWordBytes = sizeof(std::uint64_t);
constexpr std::size_t kLineBytes = 64;

std::uint64_t LoadWord(const std::byte* from, std::size_t size) {
  std::uint64_t word = 0;
  std::memcpy(&word, from, size);
  return word;
}

// Most lines are equal: eight words at once tell.
bool LinesDiffer(const std::byte* base, const std::byte* next) {
  std::uint64_t difference = 0;
  for (std::size_t at = 0; at < kLineBytes; at += kWordBytes) {
    difference |= LoadWord(base + at, kWordBytes) ^ LoadWord(next + at, kWordBytes);
  }
  return difference != 0;
}

// Calls found(byte offset) for each of the items in [at, at + size), size <= 8, that differ.
template <typename Found>
void ForEachDifferentItem(std::size_t item, const std::byte* base, const std::byte* next, std::size_t at,
                          std::size_t size, Found&& found) {
  std::uint64_t difference = LoadWord(base + at, size) ^ LoadWord(next + at, size);
  while (difference != 0) {
    const std::size_t first = static_cast<std::size_t>(std::countr_zero(difference)) / (8 * item);
    found(at + first * item);
    if (item == kWordBytes) return;
    difference &= ~(((std::uint64_t{1} << 8 * item) - 1) << 8 * item * first);
  }
}

// Where the elements of a box lie, asked for in rising order: a division is needed only from one run to the next.
class ElementOffsets {
 public:
  using Runs = BoxRuns<2>;
  ElementOffsets(const BoxShape& shape, const BoxPlace& memory, const BoxPlace& logical)
      : runs_(shape, {memory, logical}) {}

  // In elements, in the memory and in the logical tensor.
  Runs::Offsets Of(std::int64_t position) {
    if (position >= run_end_) Find(position / runs_.run_elements());
    const std::int64_t within = position - (run_end_ - runs_.run_elements());
    return {run_[0] + within * runs_.run_stride(0), run_[1] + within * runs_.run_stride(1)};
  }

 private:
  void Find(std::int64_t run) {
    run_end_ = (run + 1) * runs_.run_elements();
    run_ = {runs_.first(0), runs_.first(1)};
    for (std::size_t d = runs_.outer_dims(); d > 0; --d) {
      const std::int64_t at = run % runs_.outer_count(d - 1);
      for (std::size_t p = 0; p < run_.size(); ++p) run_[p] += at * runs_.outer_stride(d - 1, p);
      run /= runs_.outer_count(d - 1);
    }
  }

  const Runs runs_;
  Runs::Offsets run_{};
  std::int64_t run_end_ = 0;
};

bool KnownItem(int item_bytes) { return item_bytes == 1 || item_bytes == 2 || item_bytes == 4 || item_bytes == 8; }

}  // namespace

std::int64_t ExtractChangesOnHost(int item_bytes, std::span<const std::byte> base, std::span<const std::byte> next,
                                  std::span<std::uint32_t> positions, std::span<std::byte> items) {
  const auto item = static_cast<std::size_t>(item_bytes);
  CHECK(KnownItem(item_bytes) && base.size() == next.size() && next.size() % item == 0);
  CHECK(items.size() == positions.size() * item && next.size() / item <= std::size_t{1} << 32);
  std::size_t count = 0;
  const auto found = [&](std::size_t at) {
    if (count < positions.size()) {
      positions[count] = static_cast<std::uint32_t>(at / item);
      std::memcpy(items.data() + count * item, next.data() + at, item);
    }
    ++count;
  };
  for (std::size_t line = 0; line < next.size(); line += kLineBytes) {
    const std::size_t end = std::min(line + kLineBytes, next.size());
    if (end == line + kLineBytes && !LinesDiffer(base.data() + line, next.data() + line)) continue;
    for (std::size_t at = line; at < end; at += kWordBytes) {
      ForEachDifferentItem(item, base.data(), next.data(), at, std::min(kWordBytes, end - at), found);
    }
  }
  return static_cast<std::int64_t>(count);
}

Status CheckChanges(std::span<const std::uint32_t> positions, std::int64_t elements) {
  for (std::size_t i = 1; i < positions.size(); ++i) {
    if (positions[i] <= positions[i - 1]) {
      return Status::InvalidArgument(
          "change_order", fmt::format("change {} is at {}, the one before at {}", i, positions[i], positions[i - 1]));
    }
  }
  if (!positions.empty() && std::cmp_greater_equal(positions.back(), elements)) {
    return Status::InvalidArgument("change_outside",
                                   fmt::format("a change at {} of {} elements", positions.back(), elements));
  }
  return OkStatus();
}

void ScatterOnHost(const BoxShape& shape, int item_bytes, const BoxChanges& changes, std::byte* target_base,
                   const BoxPlace& target, std::span<std::byte> replaced) {
  const auto item = static_cast<std::size_t>(item_bytes);
  CHECK(changes.items.size() == changes.positions.size() * item && replaced.size() == changes.items.size());
  ElementOffsets offsets(shape, target, target);
  for (std::size_t i = 0; i < changes.positions.size(); ++i) {
    std::byte* const at = target_base + offsets.Of(changes.positions[i])[0] * item_bytes;
    std::memcpy(replaced.data() + i * item, at, item);
    std::memcpy(at, changes.items.data() + i * item, item);
  }
}

TensorDigest DigestOfChangesOnHost(const DigestKey& key, const BoxShape& shape, int item_bytes,
                                   const BoxChanges& changes, const std::byte* base, const BoxPlace& memory,
                                   const BoxPlace& logical) {
  const auto item = static_cast<std::size_t>(item_bytes);
  CHECK(changes.items.size() == changes.positions.size() * item);
  ElementOffsets offsets(shape, memory, logical);
  digest_internal::RunningDigest after(key), before(key);
  for (std::size_t i = 0; i < changes.positions.size(); ++i) {
    const auto [in_memory, in_tensor] = offsets.Of(changes.positions[i]);
    after.Add(in_tensor * item_bytes, changes.items.subspan(i * item, item));
    before.Add(in_tensor * item_bytes, {base + in_memory * item_bytes, item});
  }
  return after.Total() - before.Total();
}

}  // namespace bascule
