// One of each session message, in the order of the variant, with something in every field.
#pragma once

#include <vector>

#include "bridge/session/messages.h"

namespace bascule {

Hash256 SampleHash(int seed);
// Two tensors, of which one is a scalar, padding, a stride, and a rank that holds nothing.
Layout SampleLayout();
std::vector<SessionMessage> OneMessageOfEach();

}  // namespace bascule
