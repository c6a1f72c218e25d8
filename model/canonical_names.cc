#include <fmt/format.h>

#include <unordered_map>

#include "base/log.h"
#include "bridge/plan/nearest_name.h"
#include "model/engine_layout.h"
#include "model/family_check.h"
#include "model/name_resolver.h"
#include "model/rank_builder.h"

namespace bascule {
namespace {

// A stored tensor that is made of several logical ones: where each lies in it.
struct Spelled {
  std::int32_t logical;  // in the canonical layout
  Box stored_box, logical_box;
};

// Carries a layout over to canonical names, one stored tensor after the other.
class CanonicalLayoutBuilder {
 public:
  explicit CanonicalLayoutBuilder(const ModelTable& table) : table_(table), names_(table) {}

  Status Add(const TensorSpec& stored) {
    NameResolver::Resolved resolved = names_.Resolve(stored.name);
    if (resolved.spelling != nullptr) return AddSpelling(stored, *resolved.spelling);
    if (resolved.logical != nullptr && IsScaleInOtherShape(stored, *resolved.logical)) {
      whole_.push_back(kFill);
      spelled_.emplace_back();
      return AddScale(stored, *resolved.logical);
    }
    if (resolved.logical != nullptr) CheckShape(stored, resolved.logical->shape, resolved.logical->rule);
    spelled_.emplace_back();
    whole_.push_back(static_cast<std::int32_t>(tensors_.size()));
    return AddTensor({std::move(resolved.name), stored.dtype, stored.shape}, stored.name);
  }

  // The rows of one rank, whose logical tensors are the stored ones in the order in which they were added.
  std::vector<MapRow> RowsOf(const std::vector<MapRow>& stored) const {
    std::vector<MapRow> rows;
    rows.reserve(stored.size());
    for (const MapRow& row : stored) {
      if (row.logical == kFill || spelled_[static_cast<std::size_t>(row.logical)].empty()) {
        rows.push_back(row);
        if (row.logical != kFill) rows.back().logical = whole_[static_cast<std::size_t>(row.logical)];
        continue;
      }
      for (const Spelled& part : spelled_[static_cast<std::size_t>(row.logical)]) {
        const std::optional<Box> shared = Intersect(row.logical_box, part.stored_box);
        if (!shared) continue;
        rows.push_back({row.local, CorrespondingBox(*shared, row.logical_box, row.local_box), part.logical,
                        CorrespondingBox(*shared, part.stored_box, part.logical_box)});
      }
    }
    return rows;
  }

  Result<std::vector<TensorSpec>> TakeTensors() {
    if (wrong_shapes_.empty()) return std::move(tensors_);
    return Status::FailedPrecondition("shape_mismatch",
                                      fmt::format("{} tensors: {}", wrong_shapes_.size(), FirstOf(wrong_shapes_)));
  }

 private:
  bool CheckShape(const TensorSpec& stored, const Dims& shape, const std::string& rule) {
    if (stored.shape == shape) return true;
    wrong_shapes_.push_back(
        fmt::format("{}: stored {}, want {} = {}", stored.name, stored.shape.ToString(), shape.ToString(), rule));
    return false;
  }

  Status AddTensor(TensorSpec tensor, const std::string& stored_name) {
    const auto [first, is_new] = stored_of_.emplace(tensor.name, stored_name);
    if (!is_new) {
      return Status::InvalidArgument("name_collision",
                                     fmt::format("{} and {} are both {}", first->second, stored_name, tensor.name));
    }
    tensors_.push_back(std::move(tensor));
    return OkStatus();
  }

  // Scales are stored with and without dimensions of one element: [] and [1], [rows] and [rows, 1].
  static bool IsScaleInOtherShape(const TensorSpec& stored, const LogicalTensor& wanted) {
    return EndsAsScale(wanted.name) && stored.shape != wanted.shape &&
           SameElements(Box::Whole(stored.shape), Box::Whole(wanted.shape));
  }

  Status AddScale(const TensorSpec& stored, const LogicalTensor& wanted) {
    spelled_.back().push_back(
        {static_cast<std::int32_t>(tensors_.size()), Box::Whole(stored.shape), Box::Whole(wanted.shape)});
    return AddTensor({wanted.name, stored.dtype, wanted.shape}, stored.name);
  }

  // A spelling is an engine tensor of a single rank: the same code says what lies where in it.
  Status AddSpelling(const TensorSpec& stored, const TableTensor& spelling) {
    whole_.push_back(kFill);
    std::vector<Spelled>& parts = spelled_.emplace_back();
    const LogicalTensor& first = table_.logical[static_cast<std::size_t>(spelling.blocks.front().logical)];
    if (IsScaleInOtherShape(stored, first)) return AddScale(stored, first);
    if (logical_specs_.empty()) {
      for (const LogicalTensor& logical : table_.logical) logical_specs_.push_back({logical.name, {}, logical.shape});
    }
    RankBuilder builder(logical_specs_, {}, /*expert_parallel=*/false);
    RETURN_IF_ERROR(builder.Add(spelling).status());
    const RankLayout rank = builder.Take();
    if (!CheckShape(stored, rank.tensors.front().shape, RuleOfSpelling(spelling))) return OkStatus();
    for (const MapRow& row : rank.rows) {
      const TensorSpec& logical = logical_specs_[static_cast<std::size_t>(row.logical)];
      parts.push_back({static_cast<std::int32_t>(tensors_.size()), row.local_box, row.logical_box});
      RETURN_IF_ERROR(AddTensor({logical.name, stored.dtype, logical.shape}, stored.name));
    }
    return OkStatus();
  }

  std::string RuleOfSpelling(const TableTensor& spelling) const {
    std::string rule;
    for (const Block& block : spelling.blocks) {
      rule += (rule.empty() ? "" : " over ") + table_.logical[static_cast<std::size_t>(block.logical)].rule;
    }
    return spelling.expert_count == 0 ? rule : fmt::format("{} experts of {}", spelling.expert_count, rule);
  }

  const ModelTable& table_;
  NameResolver names_;
  std::vector<TensorSpec> logical_specs_;  // of the table, once a spelling needs them
  std::vector<TensorSpec> tensors_;
  std::vector<std::int32_t> whole_;            // per stored tensor: the canonical one
  std::vector<std::vector<Spelled>> spelled_;  // per stored tensor: its parts, where it is several
  std::unordered_map<std::string, std::string> stored_of_;
  std::vector<std::string> wrong_shapes_;
};

}  // namespace

Result<Layout> CanonicalSenderLayout(const ModelConfig& config, const Layout& stored,
                                     std::vector<std::string>* ignore) {
  ASSIGN_OR_RETURN(const ModelTable table, MakeModelTable(config));
  CanonicalLayoutBuilder builder(table);
  for (const TensorSpec& tensor : stored.tensors) RETURN_IF_ERROR(builder.Add(tensor));
  Layout canonical;
  ASSIGN_OR_RETURN(canonical.tensors, builder.TakeTensors());
  for (const RankLayout& rank : stored.ranks) {
    canonical.ranks.push_back({.tensors = rank.tensors, .rows = builder.RowsOf(rank.rows)});
  }
  for (const TensorSpec& tensor : canonical.tensors) {
    if ((config.tied_head && tensor.name == kHeadName) || IsDerivedBuffer(tensor.name)) ignore->push_back(tensor.name);
  }
  RETURN_IF_ERROR(CheckFamilies(config, table, canonical.tensors));
  if (const std::vector<std::string> unused = UnusedPatterns(config, table); !unused.empty()) {
    LogWarn("quantization_ignores_nothing", "patterns=\"{}\"", fmt::join(unused, ", "));
  }
  return canonical;
}

}  // namespace bascule
