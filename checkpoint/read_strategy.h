// How the bytes of a checkpoint come from disk to memory.
//
//   mmap    the file is mapped and copied from: best where its pages are memory already (tmpfs, page cache)
//   read    large sequential reads through the page cache: best on network mounts, where a mapping asks page by page
//   direct  reads past the page cache (O_DIRECT), several in flight: best for files that would not fit into it
//   auto    one of these, by file system, size and free memory; the log says which and why
//
// Thread-safety: thread-compatible (values); the functions are thread-safe.
#pragma once

#include <cstdint>
#include <stop_token>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"

namespace bascule {

enum class ReadStrategy : std::uint8_t { kAuto, kMmap, kRead, kDirect };
std::string_view ReadStrategyName(ReadStrategy strategy);  // "mmap"
// InvalidArgument "unknown_read_strategy"
Result<ReadStrategy> ParseReadStrategy(std::string_view name);

// How files are opened and read.
struct ReadOptions {
  ReadStrategy strategy = ReadStrategy::kAuto;
  bool drop_cache = false;  // what was read leaves the page cache behind it
  // The files are taken as they lie, whatever model.safetensors.index.json says; and bytes behind a file's last tensor
  // are passed over. Both are warnings then.
  bool ignore_index = false;
  bool lenient_trailing = false;
  Clock* clock = &Clock::Real();
  std::stop_token stop = {};  // ends whatever opens or reads files with these options: Cancelled "cancelled"
};

// Cancelled "cancelled"  `options.stop` was requested
Status CheckNotStopped(const ReadOptions& options);

// What was read of a checkpoint so far.
struct ReadSummary {
  ReadStrategy strategy = ReadStrategy::kRead;
  std::string reason;              // why this strategy
  std::int64_t logical_bytes = 0;  // that the boxes asked for hold
  std::int64_t read_bytes = 0;     // asked of the files, whole blocks where they want such
  std::int64_t calls = 0;
};

// What a choice rests on.
struct StorageFacts {
  std::uint64_t file_system = 0;  // statfs type
  std::int64_t file_bytes = 0;    // of all files together
  std::int64_t free_bytes = 0;    // of memory, page cache that can be given up included
  bool can_map = true;
};

struct StrategyChoice {
  ReadStrategy strategy = ReadStrategy::kRead;  // never kAuto
  std::string reason;
};

// Of a file that is open as `fd`. What cannot be found out is 0.
StorageFacts FactsOf(int fd, std::int64_t file_bytes);
// Every request goes to another machine.
bool IsRemote(const StorageFacts& facts);
// What is wanted, unless that is auto, or mmap where files cannot be mapped.
StrategyChoice ChooseStrategy(ReadStrategy wanted, const StorageFacts& facts);

}  // namespace bascule
