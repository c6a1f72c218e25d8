#include "trainer_side/layouts/plain_layout.h"

#include <fmt/format.h>

namespace bascule {

Result<Layout> ReplicatedLayout(const std::vector<TensorSpec>& tensors, int ranks) {
  if (ranks < 1) return Status::InvalidArgument("bad_trainer_layout", fmt::format("ranks={}", ranks));
  Layout layout = PlainLayout(tensors);
  layout.ranks.resize(static_cast<std::size_t>(ranks), layout.ranks.front());
  RETURN_IF_ERROR(CheckLayout(layout));
  return layout;
}

}  // namespace bascule
