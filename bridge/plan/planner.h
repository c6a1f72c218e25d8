// Stage: plan (layout -> [plan] -> bucket -> transport)
//
// Makes a plan from two layouts: pure, deterministic, no I/O. Before a byte moves it proves, per engine rank, that
// every element of every engine tensor is written exactly once, declared fill, or carried over from the version that
// the engine has (where the plan has a scope), and over all that every logical tensor the sender has in scope is
// consumed or ignored.
//
// Thread-safety: thread-safe (a pure function).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "bridge/plan/plan.h"

namespace bascule {

struct PlanOptions {
  std::int64_t bucket_bytes = 2 << 20;  // most payload bytes in a bucket; at least 4096, a multiple of 64
  std::vector<std::string> ignore;      // patterns of logical names the engine need not know: '*' matches any text
  // Above 0: tensors are taken in windows (WindowsOf), one after another, and no bucket has parts of two.
  std::int64_t window_bytes = 0;
  // Patterns of logical names, '*' as above: only these tensors are sent, and all of them have to be. What the sender
  // has outside takes no part; the engine carries its own over. Empty: everything is sent.
  std::vector<std::string> scope = {};
  // What several engine ranks need comes from one sending rank, in buckets of its own, which are twins (twins.h): for
  // transports that carry them in one move. Else each rank's comes with its other slices.
  bool twins = false;
  friend bool operator==(const PlanOptions&, const PlanOptions&) = default;
};

// Where several sending ranks hold the same box one is chosen so that bytes per sender balance; but where both layouts
// are equal (an artifact, a peer) each engine rank takes everything from the sending rank of its number, and nothing is
// shared. Buckets follow
// the engine's tensor order, alternating between routes. A slice larger than a bucket is cut.
//
// Messages list the first 20 names or tensors and the total; a name comes with the nearest one of the other side.
//
// InvalidArgument    "bad_layout"         CheckLayout of either side, or options out of range
// FailedPrecondition "tensor_missing"     the engine needs names, in scope, that no sender has
// FailedPrecondition "tensor_unexpected"  the sender has names nobody knows
// FailedPrecondition "shape_mismatch"     same name, other shape: both shapes
// FailedPrecondition "dtype_mismatch"     no conversion from the sender's type to the engine's: both types
// FailedPrecondition "ignore_matches_nothing"  a pattern matches no name that the engine does not know
// FailedPrecondition "scope_matches_nothing"   a pattern matches no name of either side
// FailedPrecondition "not_covered"        an engine element no row writes, a sender hole, or a logical element that
//                                         no engine rank takes: tensor, rank, box
// FailedPrecondition "covered_twice"      an engine element that two rows write: tensor, rank, box
Result<Plan> MakePlan(const Layout& sender, const Layout& engine, const PlanOptions& options);

// The window of each of `tensors`, which are sent in this order: neighbours share one while they have at most
// `window_bytes` together. 0: all in one.
std::vector<std::int32_t> WindowsOf(const std::vector<TensorSpec>& tensors, std::int64_t window_bytes);

// The tensors of which buckets have parts: all but those that are carried over.
std::vector<TensorSpec> SentTensors(const Plan& plan);

// The four sets alone, also where they do not let a plan be made.
NameSets CompareNames(const std::vector<TensorSpec>& sender, const std::vector<TensorSpec>& engine,
                      const std::vector<std::string>& ignore);

// The proof alone, for a plan from elsewhere (and for tests that damage one): every slice says what some row of
// `engine` (which passes CheckLayout) says, every engine element is written exactly once, carried over or declared
// fill, and every logical element that is sent counts exactly once.
//
// FailedPrecondition "not_covered" | "covered_twice"
Status ProveCoverage(const Plan& plan, const Layout& engine);

}  // namespace bascule
