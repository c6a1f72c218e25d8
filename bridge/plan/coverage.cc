#include <fmt/format.h>

#include "bridge/plan/box_cover_internal.h"
#include "bridge/plan/box_index_internal.h"
#include "bridge/plan/planner.h"

namespace bascule {
namespace {

Status NotCovered(std::string message) { return Status::FailedPrecondition("not_covered", std::move(message)); }

Status StatusOf(const CoverBreach& breach, std::string_view where, std::string_view verb) {
  const bool hole = breach.kind == CoverBreach::Kind::kHole;
  return Status::FailedPrecondition(
      hole ? "not_covered" : "covered_twice",
      fmt::format("{} box={} is {} {}", where, breach.box.ToString(), verb, hole ? "by nothing" : "more than once"));
}

// What writes one engine tensor, and its rows to look a slice up in.
struct TensorCover {
  std::vector<Box> written;
  std::vector<const MapRow*> rows;
  std::optional<BoxIndex> row_index;
};

// The engine side of one proof: collects what slices write, then looks for breaches.
class CoverageProof {
 public:
  CoverageProof(const Plan& plan, const Layout& engine) : plan_(plan), engine_(engine), counted_(plan.tensors.size()) {
    for (const RankLayout& rank : engine.ranks) ranks_.push_back(CoversOf(rank, plan));
  }

  Status AddSlices() {
    for (std::size_t b = 0; b < plan_.buckets.size(); ++b) {
      const Bucket& bucket = plan_.buckets[b];
      for (std::size_t s = 0; s < bucket.slices.size(); ++s) {
        if (AddSlice(bucket, bucket.slices[s])) continue;
        return NotCovered(fmt::format("bucket={} slice={} fits no row of the engine's layout", b, s));
      }
    }
    return OkStatus();
  }

  Status FindBreaches() const {
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      for (std::size_t t = 0; t < ranks_[r].size(); ++t) {
        const LocalTensor& tensor = engine_.ranks[r].tensors[t];
        const std::optional<CoverBreach> breach = FindBreach(Box::Whole(tensor.shape), ranks_[r][t].written);
        if (breach) return StatusOf(*breach, fmt::format("engine rank={} tensor={}", r, tensor.name), "written");
      }
    }
    for (std::size_t t = 0; t < counted_.size(); ++t) {
      if (IsCarried(plan_, static_cast<std::int32_t>(t))) continue;
      const TensorSpec& tensor = plan_.tensors[t];
      const std::optional<CoverBreach> breach = FindBreach(Box::Whole(tensor.shape), counted_[t]);
      if (breach)
        return StatusOf(*breach, fmt::format("logical tensor={} over all engine ranks", tensor.name), "counted");
    }
    return OkStatus();
  }

 private:
  // What is carried over comes from the same place of the live version, row by row: no slice may be written there.
  static std::vector<TensorCover> CoversOf(const RankLayout& rank, const Plan& plan) {
    std::vector<TensorCover> covers(rank.tensors.size());
    for (const MapRow& row : rank.rows) {
      TensorCover& cover = covers[static_cast<std::size_t>(row.local)];
      if (row.local_box.Empty()) continue;
      if (row.logical == kFill || IsCarried(plan, row.logical)) {
        cover.written.push_back(row.local_box);
      } else {
        cover.rows.push_back(&row);
      }
    }
    for (TensorCover& cover : covers) {
      std::vector<Box> boxes;
      for (const MapRow* row : cover.rows) boxes.push_back(row->local_box);
      cover.row_index.emplace(std::move(boxes));
    }
    return covers;
  }

  // False when the slice does not say what some row of its engine rank says.
  bool AddSlice(const Bucket& bucket, const Slice& slice) {
    const auto route = static_cast<std::size_t>(bucket.route);
    if (bucket.route < 0 || route >= plan_.routes.size()) return false;
    const auto rank = static_cast<std::size_t>(plan_.routes[route].engine_rank);
    const auto tensor = static_cast<std::size_t>(slice.engine_tensor);
    if (plan_.routes[route].engine_rank < 0 || rank >= ranks_.size()) return false;
    if (slice.engine_tensor < 0 || tensor >= ranks_[rank].size()) return false;
    TensorCover& cover = ranks_[rank][tensor];
    if (!FollowsARow(slice, engine_.ranks[rank].tensors[tensor], cover)) return false;
    cover.written.push_back(slice.engine_box);
    if (slice.counts) counted_[static_cast<std::size_t>(slice.tensor)].push_back(slice.logical_box);
    return true;
  }

  static bool FollowsARow(const Slice& slice, const LocalTensor& tensor, const TensorCover& cover) {
    if (!FitsIn(slice.engine_box, tensor.shape) || slice.engine_box.Empty()) return false;
    for (const std::int32_t index : cover.row_index->Overlapping(slice.engine_box)) {
      const MapRow& row = *cover.rows[static_cast<std::size_t>(index)];
      if (row.logical == slice.tensor && Contains(row.local_box, slice.engine_box) &&
          CorrespondingBox(slice.engine_box, row.local_box, row.logical_box) == slice.logical_box) {
        return true;
      }
    }
    return false;
  }

  const Plan& plan_;
  const Layout& engine_;
  std::vector<std::vector<TensorCover>> ranks_;
  std::vector<std::vector<Box>> counted_;  // per logical tensor
};

}  // namespace

Status ProveCoverage(const Plan& plan, const Layout& engine) {
  if (plan.tensors != engine.tensors) return NotCovered("the plan is for other tensors than the engine's");
  CoverageProof proof(plan, engine);
  RETURN_IF_ERROR(proof.AddSlices());
  return proof.FindBreaches();
}

}  // namespace bascule
