// Which safetensors files a checkpoint is made of, opened and compared with their index.
//
// Thread-safety: thread-safe (a pure function on files).
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "base/status.h"
#include "checkpoint/safetensors.h"

namespace bascule {

using CheckpointFiles = std::vector<std::unique_ptr<SafetensorsFile>>;

// `path` is a directory or one file. Errors: see Checkpoint::Open
Result<CheckpointFiles> OpenCheckpointFiles(const std::filesystem::path& path);

}  // namespace bascule
