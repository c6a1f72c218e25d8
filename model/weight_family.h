// A quantised weight with its scales and zero points is one family: complete or refused. What members a scheme has, how
// their shapes follow from the weight's, and which modules of a model have which scheme.
//
// Thread-safety: thread-compatible (values).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "bridge/layout/dtype.h"
#include "model/extent.h"
#include "model/module_patterns.h"
#include "model/quantization.h"

namespace bascule {

enum class MemberShape : std::uint8_t {
  kMatrix,       // [rows, columns], each divided by what an element stands for
  kRows,         // [rows]
  kOne,          // [1]: one number for the whole weight
  kWeightShape,  // [2]: the weight's own rows and columns
};

// A tensor of a linear module. `rows` and `columns`: how many of the weight's one element stands for; 0: all.
struct FamilyMember {
  std::string_view ending;  // "weight_scale"
  MemberShape shape = MemberShape::kMatrix;
  std::int64_t rows = 1;
  std::int64_t columns = 1;
  std::span<const DType> dtypes = {};  // what it may be stored as, whatever the rest of the model is

  std::vector<Extent> ShapeOf(const Extent& weight_rows, const Extent& weight_columns) const;
  // Whether a cut of the weight's rows (columns) cuts this member too; else every rank holds all of it.
  bool HasRows() const { return shape == MemberShape::kRows || (shape == MemberShape::kMatrix && rows != 0); }
  bool HasColumns() const { return shape == MemberShape::kMatrix && columns != 0; }
};

// The members of a plain linear, of one with this scheme, and the bias that either may have. The weight is first.
std::vector<FamilyMember> PlainMembers();
std::vector<FamilyMember> MembersOf(const WeightScheme& scheme);
FamilyMember BiasMember();

// What a tensor that is no member of a quantised family may be stored as.
std::span<const DType> PlainDTypes();

// Whether a tensor's name ends as a scale or zero point of any scheme does.
bool EndsAsScale(std::string_view name);

// Which modules of a model are quantised, and how.
class WeightSchemes {
 public:
  // InvalidArgument "bad_config"  as ModulePatterns
  static Result<WeightSchemes> Make(const Quantization& quantization);

  // The scheme that the modules of one engine tensor share; nothing where they are plain. A pattern may name the
  // modules or the engine's fusion of them.
  //
  // InvalidArgument "partly_quantized"  some are quantised, and some are not or otherwise: names two of them
  Result<std::optional<WeightScheme>> Of(std::string_view engine_name, std::span<const std::string> modules) const;

  // Why a module is plain: "ignored by \"lm_head\"".
  std::string WhyPlain(std::string_view module) const;

 private:
  struct Group {
    bool all_linears = false;
    ModulePatterns targets;
    WeightScheme scheme;
  };
  const WeightScheme* OfModule(std::string_view engine_name, std::string_view module) const;

  std::string method_;
  ModulePatterns ignored_;
  std::vector<Group> groups_;
};

}  // namespace bascule
