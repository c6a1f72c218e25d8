// Which safetensors files a checkpoint is made of, opened and compared with their index.
//
// Thread-safety: thread-safe (a pure function on files).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/directory.h"
#include "checkpoint/read_strategy.h"
#include "checkpoint/safetensors.h"

namespace bascule {

using CheckpointFiles = std::vector<std::unique_ptr<SafetensorsFile>>;

// Errors: see Checkpoint::Open
Result<CheckpointFiles> OpenCheckpointFiles(const Directory& directory, const ReadOptions& read);
Result<CheckpointFiles> OpenCheckpointFile(const std::string& path, const ReadOptions& read);

}  // namespace bascule
