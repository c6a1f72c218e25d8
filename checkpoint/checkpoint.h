// A checkpoint as Hugging Face publishes it: a directory with config.json and *.safetensors (model.safetensors, or
// shards with model.safetensors.index.json), or a single .safetensors file where no config is needed. Can be sent as it
// lies: it is a WeightSource with one rank.
//
// Thread-safety: thread-safe once open.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "bridge/send/weight_source.h"
#include "checkpoint/directory.h"
#include "checkpoint/read_strategy.h"
#include "checkpoint/safetensors.h"

namespace bascule {

class CheckpointReader;

class Checkpoint final : public WeightSource {
 public:
  // Reads headers only. An index and the files it lists agree both ways: every listed file is there, each name in the
  // file that the index gives, no name in two; another total_size is a warning. Files that the index does not list take
  // no part. No file lies outside the directory, but for the blobs of the Hugging Face cache that a snapshot links to.
  //
  // NotFound "checkpoint_not_found" | "no_safetensors"
  // DataLoss "bad_index"            not the JSON of an index
  //          "shard_missing"        names the listed files that are not there and counts the tensors they would hold
  //          "tensor_not_in_shard"  not in the file that the index gives
  //          "tensor_not_in_index"  in a listed file, but not listed
  //          "duplicate_tensor"     in two files
  //          "outside_directory"    a path or a link that leads out
  //          "ambiguous_files"      which of several files are meant cannot be told
  // else as SafetensorsFile
  //
  // FailedPrecondition "direct_unsupported"  `read` asks for what the file system does not do
  static Result<std::unique_ptr<Checkpoint>> Open(const std::string& path, const ReadOptions& read = {});
  static Result<std::unique_ptr<Checkpoint>> Open(const Directory& directory, const ReadOptions& read = {});
  ~Checkpoint() override;

  const std::string& path() const { return path_; }
  const std::vector<std::unique_ptr<SafetensorsFile>>& files() const { return files_; }
  // The text of config.json; empty for a single file.
  const std::string& config_json() const { return config_json_; }
  // Every stored tensor, under the names of the file, sorted by name.
  const std::vector<TensorSpec>& tensors() const { return layout_.tensors; }
  std::span<const std::byte> Data(int tensor) const;
  // Whether two tensors hold the same bytes; they are read. Errors: see BoxReader::Next
  Result<bool> SameBytes(int a, int b) const;

  const Layout& layout() const override { return layout_; }
  const std::byte* Base(int sender_rank, int tensor) const override;
  // By the strategy of Open: nothing but what the boxes need is read.
  std::unique_ptr<BoxReader> Read(std::vector<SourceBox> boxes) const override;
  ReadSummary read_summary() const;
  void Release(std::span<const std::byte> memory) const override { SafetensorsFile::Release(memory); }

 private:
  Checkpoint();
  Status Finish(const ReadOptions& read);
  std::string path_;
  std::string config_json_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  Layout layout_;
  std::vector<std::span<const std::byte>> data_;
  std::unique_ptr<CheckpointReader> reader_;
};

}  // namespace bascule
