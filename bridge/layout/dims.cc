#include "bridge/layout/dims.h"

#include <fmt/format.h>

namespace bascule {

std::string Dims::ToString() const { return fmt::format("[{}]", fmt::join(begin(), end(), ", ")); }

}  // namespace bascule
