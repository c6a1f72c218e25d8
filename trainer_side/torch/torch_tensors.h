// Stage: layout ([layout] -> plan -> bucket -> transport)
//
// What one trainer rank holds in torch tensors, and what that is of the logical tensors: a shard with the placements of
// a device mesh (DTensor, FSDP2, tensor parallelism), or the shard of a flat parameter (FSDP, ZeRO). Nothing is copied:
// the bridge reads the tensors' own memory, strided views as they lie, and converts as it packs.
//
//   TorchTensors tensors;
//   tensors.AddShard({"model.norm.weight", {64}, /*mesh=*/{2}, /*rank=*/1, {Placement::Shard(0)}}, norm);
//   TensorSource source(/*trainer_ranks=*/1);
//   tensors.AddTo(source, 0);
//   auto publisher = WeightPublisher::Create(options, std::move(source));
//   for (;;) {
//     ... optimizer.step() ...
//     tensors.CheckInPlace();   // the memory is where it was
//     publisher->Publish({});
//   }
//
// Memory. A source that was added to shares the tensors' storage, as torch's handles do, so that no version is read
// from memory that torch has given to something else, even when the trainer drops its tensors before `packed`. Publish
// reads what lies there, so masters have to change in place, as torch's optimizers do; `param.data = other` points the
// trainer elsewhere and leaves the bridge with the old weights. CheckInPlace notices.
//
// Types. Those that DType has are read as they are; the engine's type goes on the wire, and the planner refuses by name
// what it cannot convert. Tensors may require gradients. What has no plain elements in host memory is refused here.
//
// This header includes none of torch's: it costs nothing to whoever has them, and nothing of torch leaks. torch's
// logging defines a CHECK of its own, so include Bascule's headers before torch's.
//
// Thread-safety: thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "trainer_side/layouts/mesh_layout.h"
#include "trainer_side/tensor_source.h"

namespace at {
class Tensor;
}  // namespace at

namespace bascule {

// A rank's shard of a tensor on a device mesh; see trainer_side/layouts/mesh_layout.h. Without a mesh, the whole.
struct ShardPlacement {
  std::string name;  // logical
  Dims shape;        // of the whole
  std::vector<int> mesh = {};
  int rank = 0;                            // row-major in the mesh
  std::vector<Placement> placements = {};  // one per mesh dimension
};

// A rank's shard of a flat parameter; see trainer_side/layouts/flat_parameter_layout.h.
struct FlatPlacement {
  struct Part {
    std::string name;  // logical
    Dims shape;        // of the whole
  };
  std::string unit;         // for messages: "model.layers.0._fsdp_wrapped_module._flat_param"
  std::vector<Part> parts;  // in the order of concatenation
  std::int64_t alignment = 1;
  int ranks = 1;  // that share the flat parameter
  int rank = 0;   // among them
};

class TorchTensors {
 public:
  TorchTensors();
  ~TorchTensors();
  TorchTensors(TorchTensors&&) noexcept;
  TorchTensors& operator=(TorchTensors&&) noexcept;

  // `local` is what this rank holds: a tensor of the shard's shape, with any strides and any storage offset. Where the
  // shard is empty, any tensor without elements will do, also an undefined one. A refused tensor leaves nothing.
  //
  // InvalidArgument "bad_shard"           `local` has another shape: both; or is undefined
  // InvalidArgument "not_in_host_memory"  on another device, or without storage (meta): names the device
  // InvalidArgument "not_strided"         sparse, or of another layout without strides: names it
  // InvalidArgument "lazy_view"           conjugate or negative view: its elements are not those in memory; resolve it
  // InvalidArgument "unsupported_dtype"   complex, quantised
  // as ShardOfRank, with the tensor's name
  Status AddShard(const ShardPlacement& placement, const at::Tensor& local);
  // `shard` has one dimension, contiguous, with the padding that the cut gives it.
  //
  // as AddShard; as FlatParameterLayout
  Status AddFlat(const FlatPlacement& placement, const at::Tensor& shard);

  // Adds all of them to `source` as those of one of its trainer ranks. The source keeps their storage.
  //
  // as TensorSource::Add
  Status AddTo(TensorSource& source, int trainer_rank) const;

  // Every tensor still has its elements where they were when it was added.
  //
  // FailedPrecondition "tensor_moved"  names the tensor: update it in place, or describe the tensors anew
  Status CheckInPlace() const;

 private:
  struct Held;
  std::unique_ptr<Held> held_;
};

}  // namespace bascule
