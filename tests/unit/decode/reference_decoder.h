// The mathematics of the decoder in its plainest form, in double precision: the whole sequence anew for every token, no
// cache, no batch, logical tensors. It shares no code with the product.
#pragma once

#include <cstdint>
#include <vector>

#include "model/model_config.h"
#include "tests/unit/decode/tiny_model.h"

namespace bascule {

// Log softmax of the logits that follow `tokens`.
std::vector<double> ReferenceLogprobs(const ModelConfig& config, const LogicalWeights& weights,
                                      const std::vector<std::int32_t>& tokens);

}  // namespace bascule
