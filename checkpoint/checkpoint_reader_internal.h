// Reads what lies at the addresses of safetensors files by a strategy, chosen once for all of them.
//
// Thread-safety: thread-safe.
#pragma once

#include <memory>
#include <vector>

#include "base/status.h"
#include "bridge/send/box_reader.h"
#include "checkpoint/byte_file_internal.h"
#include "checkpoint/file_box_reader_internal.h"
#include "checkpoint/read_strategy.h"
#include "checkpoint/safetensors.h"

namespace bascule {

class CheckpointReader {
 public:
  // Borrows the files. Logs the strategy and why with the first Read.
  //
  // FailedPrecondition "direct_unsupported"
  static Result<std::unique_ptr<CheckpointReader>> Create(const std::vector<std::unique_ptr<SafetensorsFile>>& files,
                                                          const ReadOptions& options);

  // Boxes at addresses of the files; the empty ones may be anywhere.
  std::unique_ptr<BoxReader> Read(const std::vector<SourceBox>& boxes) const;
  ReadSummary Summary() const;

 private:
  // Where a file's bytes have their addresses.
  struct Place {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    int file = 0;
  };
  CheckpointReader(const std::vector<std::unique_ptr<SafetensorsFile>>& files, const ReadOptions& options);
  Status OpenFiles(const std::vector<std::unique_ptr<SafetensorsFile>>& files);
  FileBox FileBoxOf(const SourceBox& box) const;

  const ReadOptions options_;
  StrategyChoice choice_;
  bool remote_ = false;        // the files are on another machine
  std::vector<Place> places_;  // by address
  std::vector<std::unique_ptr<ByteFile>> files_;
  mutable ReadCounts counts_;
  mutable std::atomic<bool> logged_ = false;
};

}  // namespace bascule
