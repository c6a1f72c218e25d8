// What the processes of a trainer hold, as one layout.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <span>

#include "base/status.h"
#include "bridge/layout/layout.h"

namespace bascule {

// Each part has one rank and passes CheckLayout; part r becomes rank r. Logical tensors come in the order in which the
// parts first name them.
//
// InvalidArgument "bad_layout"  two parts differ in the type or shape of a tensor: names it and both trainer ranks
Result<Layout> MergeLayouts(std::span<const Layout* const> parts);

// What `rank` of `layout` has, as a layout of its own: one rank, and the logical tensors that it has something of.
Layout PartOf(const Layout& layout, int rank);

// `layout` says of its rank `rank` what `part` says of its only one, whatever else it has.
bool ShowsPart(const Layout& layout, int rank, const Layout& part);

}  // namespace bascule
