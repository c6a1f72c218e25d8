// What both processes of this example agree on: one logical tensor of 64 MiB in bf16.
#pragma once

#include <chrono>

#include "bridge/layout/layout.h"

inline bascule::TensorSpec ExampleTensor(bascule::DType dtype) {
  return {"model.layers.0.mlp.down_proj.weight", dtype, {8192, 4096}};
}
