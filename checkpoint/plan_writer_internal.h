// Carries out a plan into files: what each rank of a layout holds becomes one safetensors file. The same for an
// artifact (many files, an engine's names) and for the way back (one file, the source's names).
//
// Memory: one block a thread, whatever the model's size. Every file is written from its first byte to its last, each
// byte once; fill rows are zeros.
//
// Thread-safety: confined to the caller's thread; uses a few threads of its own meanwhile.
#pragma once

#include <cstdint>
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "base/status.h"
#include "bridge/layout/layout.h"
#include "bridge/plan/plan.h"
#include "bridge/send/weight_source.h"
#include "checkpoint/artifact.h"
#include "checkpoint/output_directory_internal.h"

namespace bascule {

struct WrittenFiles {
  NameSets names;
  std::vector<std::int64_t> file_bytes;                 // per rank
  std::vector<TensorDigest> totals;                     // per logical tensor of the target
  std::vector<std::vector<TensorDigest>> held_by_rank;  // per rank: of what it holds of each, replicas included
};

// Writes `target`'s ranks to files[rank] of `out`. `ignore` as in PlanOptions.
//
// as MakePlan; as OutputDirectory::CreateFile; Cancelled "cancelled" (`control.stop`)
Result<WrittenFiles> WritePlanned(const WeightSource& source, const Layout& target,
                                  const std::vector<std::string>& ignore, const std::vector<std::string>& files,
                                  const OutputDirectory& out, const WriteControl& control);

}  // namespace bascule
