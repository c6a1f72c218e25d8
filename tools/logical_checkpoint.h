// A checkpoint or an artifact in logical names: what digest, verify, shard, publish and engine work on. A head that is
// the embedding again (the config ties them and the bytes are equal) is one tensor with it.
//
// Thread-safety: thread-safe once open.
#pragma once

#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "base/status.h"
#include "bridge/layout/layout.h"
#include "bridge/manifest/manifest.h"
#include "checkpoint/artifact.h"
#include "checkpoint/checkpoint.h"
#include "model/engine_layout.h"
#include "model/model_config.h"
#include "trainer_side/tensor_source.h"

namespace bascule {

enum class WantedDType { kKeep, kBf16, kF32 };

class LogicalCheckpoint {
 public:
  // A directory or a single file. Where there is no config.json, or it is of an architecture that no table describes,
  // tensors keep the names they are stored under.
  //
  // as Checkpoint::Open, Artifact::Open and CanonicalSenderLayout; InvalidArgument "bad_config"
  static Result<LogicalCheckpoint> Open(const std::string& path, const ReadOptions& read = {});
  static Result<LogicalCheckpoint> Open(const Directory& directory, const ReadOptions& read = {});

  // Quantises the linear weights of a checkpoint to FP8 in blocks: from now on it is the quantised one, its config.json
  // included. Norms, embeddings, routers, biases and the head stay as they are. See QuantizedSource for the memory.
  //
  // FailedPrecondition "already_quantized"; InvalidArgument "quantize_needs_bf16"  a weight is F32 and `wanted` is not
  // bf16, which rounds it first; what config() says; as QuantizedSource::Make
  Status QuantizeFp8Blocks(WantedDType wanted, const std::stop_token& stop);

  const std::string& path() const { return path_; }
  // What was read of it so far, and how.
  ReadSummary read_summary() const { return artifact_ ? artifact_->read_summary() : stored_->read_summary(); }
  // Null for a checkpoint.
  const Artifact* artifact() const { return artifact_.get(); }
  const std::string& config_json() const;
  // Why there is no config to run the model by.
  const Result<ModelConfig>& config() const { return config_; }
  // Architecture and sizes in one line; empty where they are not known.
  std::string model() const { return config_.ok() ? config_->Description() : ""; }
  const std::vector<TensorSpec>& tensors() const { return source().layout().tensors; }
  // Memory of these files: one sending rank that holds every tensor under the name that it is stored under, or, of an
  // artifact, one a rank file.
  const WeightSource& source() const { return *source_; }
  // Stored tensors that are in no logical one: derived buffers.
  const std::vector<std::string>& dropped() const { return dropped_; }

 private:
  LogicalCheckpoint(std::string path, std::unique_ptr<Checkpoint> stored, std::unique_ptr<Artifact> artifact,
                    Result<ModelConfig> config);
  static Result<LogicalCheckpoint> Of(std::unique_ptr<Artifact> artifact);
  static Result<LogicalCheckpoint> Of(std::unique_ptr<Checkpoint> stored);
  Status MapNames();

  std::string path_;
  std::unique_ptr<Checkpoint> stored_;  // of the two one is there
  std::unique_ptr<Artifact> artifact_;
  Result<ModelConfig> config_;
  std::unique_ptr<WeightSource> named_;  // a checkpoint's tensors under logical names
  std::unique_ptr<WeightSource> quantized_;
  std::string quantized_config_json_;
  const WeightSource* source_ = nullptr;
  std::vector<std::string> dropped_;
};

// The type of a stored tensor once it is in an engine of the wanted type: what no rule converts stays as it is, and so
// do the scales of quantised weights.
DType StorageDType(const TensorSpec& stored, WantedDType wanted);

// The same for every tensor by name, as MakeEngineLayout asks; one that is not there gets the type of the others.
DTypeOf EngineTypesOf(const LogicalCheckpoint& checkpoint, WantedDType wanted);

struct CheckpointDigest {
  std::vector<TensorSpec> tensors;  // as digested
  std::vector<TensorDigest> digests;
  Hash256 version_digest;
};

// `specs` are the checkpoint's tensors in the types to digest them in.
//
// DataLoss "artifact_altered"  an artifact's bytes are not those of its manifest: names the tensor
Result<CheckpointDigest> DigestCheckpoint(const LogicalCheckpoint& checkpoint, std::vector<TensorSpec> specs);

// What a source holds, as a trainer's tensors: the same memory, one trainer rank for each of its ranks. Borrows it.
Result<TensorSource> TensorSourceOf(const WeightSource& source);

}  // namespace bascule
