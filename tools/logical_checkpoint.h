// A checkpoint in logical names: what digest, verify, publish and engine work on. A head that is the embedding again
// (the config ties them and the bytes are equal) is one tensor with it.
//
// Thread-safety: thread-safe once open.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "bridge/layout/layout.h"
#include "bridge/manifest/manifest.h"
#include "checkpoint/checkpoint.h"
#include "model/model_config.h"
#include "trainer_side/tensor_source.h"

namespace bascule {

enum class WantedDType { kKeep, kBf16, kF32 };

class LogicalCheckpoint {
 public:
  // A directory or a single file. Where there is no config.json, or it is of an architecture that the engine does not
  // know, tensors keep the names they are stored under.
  //
  // as Checkpoint::Open and CanonicalSenderLayout; InvalidArgument "bad_config"
  static Result<LogicalCheckpoint> Open(const std::string& path, const ReadOptions& read = {});

  const std::string& path() const { return stored_->path(); }
  // Why there is no config to run the model by.
  const Result<ModelConfig>& config() const { return config_; }
  // Architecture and sizes in one line; empty where they are not known.
  std::string model() const { return config_.ok() ? config_->Description() : ""; }
  const std::vector<TensorSpec>& tensors() const { return source_.layout().tensors; }
  // One sending rank that holds every tensor whole; memory of this checkpoint.
  const TensorSource& source() const { return source_; }
  // What was read of it so far, and how.
  ReadSummary read_summary() const { return stored_->read_summary(); }

 private:
  LogicalCheckpoint(std::unique_ptr<Checkpoint> stored, Result<ModelConfig> config);
  Status AddTensors();
  // True for what is not a tensor of its own: the head of a tied model that equals the embedding, derived buffers.
  Result<bool> IsDropped(const Layout& canonical, const MapRow& row, const std::vector<std::string>& ignored) const;

  std::unique_ptr<Checkpoint> stored_;
  Result<ModelConfig> config_;
  TensorSource source_;
};

// The type of a stored tensor once it is in an engine of the wanted type: what no rule converts stays as it is.
DType StorageDType(DType stored, WantedDType wanted);

struct CheckpointDigest {
  std::vector<TensorSpec> tensors;  // as digested
  std::vector<TensorDigest> digests;
  Hash256 version_digest;
};

// `specs` are the checkpoint's tensors in the types to digest them in.
Result<CheckpointDigest> DigestCheckpoint(const LogicalCheckpoint& checkpoint, std::vector<TensorSpec> specs);

}  // namespace bascule
