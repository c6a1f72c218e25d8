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
#include "checkpoint/safetensors.h"

namespace bascule {

class Checkpoint final : public WeightSource {
 public:
  // Reads headers only. An index and the files it lists agree both ways: names, and which file has which; a listed file
  // that is missing is named. Files that the index does not list take no part.
  //
  // NotFound "checkpoint_not_found" | "no_safetensors"; DataLoss "bad_index" | "duplicate_tensor"; else as
  // SafetensorsFile
  static Result<std::unique_ptr<Checkpoint>> Open(const std::string& path);

  const std::string& path() const { return path_; }
  // The text of config.json; empty for a single file.
  const std::string& config_json() const { return config_json_; }
  // Every stored tensor, under the names of the file, sorted by name.
  const std::vector<TensorSpec>& tensors() const { return layout_.tensors; }
  std::span<const std::byte> Data(int tensor) const;

  const Layout& layout() const override { return layout_; }
  const std::byte* Base(int sender_rank, int tensor) const override;
  void Release(std::span<const std::byte> memory) const override { SafetensorsFile::Release(memory); }

 private:
  Checkpoint() = default;
  std::string path_;
  std::string config_json_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  Layout layout_;
  std::vector<std::span<const std::byte>> data_;
};

}  // namespace bascule
