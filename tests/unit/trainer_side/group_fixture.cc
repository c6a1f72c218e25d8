#include "tests/unit/trainer_side/group_fixture.h"

namespace bascule {

TensorSource PartOf(const TensorSource& whole, int rank) {
  TensorSource part(/*trainer_ranks=*/1);
  const RankLayout& held = whole.layout().ranks[static_cast<std::size_t>(rank)];
  for (const MapRow& row : held.rows) {
    CHECK(part.Add(0, {.tensor = whole.layout().tensors[static_cast<std::size_t>(row.logical)],
                       .box = row.logical_box,
                       .data = whole.Base(rank, row.local),
                       .stride = held.tensors[static_cast<std::size_t>(row.local)].stride})
              .ok());
  }
  return part;
}

}  // namespace bascule
