#include <algorithm>

#include "base/log.h"
#include "checkpoint/checkpoint_reader_internal.h"

namespace bascule {
namespace {

// What a device or a server is asked for: large requests, several at once. What this machine's kernel can read ahead is
// copied by who wants it, a piece at a time that stays in the cache of its core: handing it from thread to thread costs
// more than the copy.
ReadAhead AheadOf(ReadStrategy strategy, bool remote) {
  if (strategy == ReadStrategy::kDirect) return {.requests = 4, .waiting = 8, .chunk_bytes = 2 << 20};
  if (remote) return {.requests = 2, .waiting = 2, .chunk_bytes = 4 << 20};
  // A copy from a mapping is made around the cache, the more of it the better.
  const std::int64_t part_bytes = strategy == ReadStrategy::kMmap ? 0 : 512 << 10;
  return {.requests = 0, .waiting = 8, .chunk_bytes = 1 << 20, .part_bytes = part_bytes};
}

StorageFacts FactsOfAll(const std::vector<std::unique_ptr<SafetensorsFile>>& files) {
  std::int64_t bytes = 0;
  for (const auto& file : files) bytes += file->opened().bytes;
  StorageFacts facts = files.empty() ? StorageFacts{} : FactsOf(files.front()->opened().fd.get(), bytes);
  facts.can_map = std::all_of(files.begin(), files.end(), [](const auto& file) { return file->can_map(); });
  return facts;
}

}  // namespace

Result<std::unique_ptr<CheckpointReader>> CheckpointReader::Create(
    const std::vector<std::unique_ptr<SafetensorsFile>>& files, const ReadOptions& options) {
  std::unique_ptr<CheckpointReader> reader(new CheckpointReader(files, options));
  RETURN_IF_ERROR(reader->OpenFiles(files));
  return reader;
}

CheckpointReader::CheckpointReader(const std::vector<std::unique_ptr<SafetensorsFile>>& files,
                                   const ReadOptions& options)
    : options_(options) {
  const StorageFacts facts = FactsOfAll(files);
  choice_ = ChooseStrategy(options.strategy, facts);
  remote_ = IsRemote(facts);
  for (std::size_t f = 0; f < files.size(); ++f) {
    const auto begin = reinterpret_cast<std::uintptr_t>(files[f]->mapping().data());
    places_.push_back({begin, begin + files[f]->mapping().size(), static_cast<int>(f)});
  }
  std::sort(places_.begin(), places_.end(), [](const Place& a, const Place& b) { return a.begin < b.begin; });
}

Status CheckpointReader::OpenFiles(const std::vector<std::unique_ptr<SafetensorsFile>>& files) {
  for (const auto& file : files) {
    switch (choice_.strategy) {
      case ReadStrategy::kMmap:
        files_.push_back(MappedFile(file->opened(), file->path(), file->mapping().data()));
        break;
      case ReadStrategy::kDirect: {
        auto direct = DirectFile(file->opened(), file->path());
        if (!direct.ok() && options_.strategy == ReadStrategy::kAuto) {
          choice_ = {ReadStrategy::kRead, direct.status().message()};
          files_.clear();
          return OpenFiles(files);
        }
        RETURN_IF_ERROR(direct.status());
        files_.push_back(*std::move(direct));
        break;
      }
      default:
        files_.push_back(BufferedFile(file->opened(), file->path()));
    }
  }
  return OkStatus();
}

FileBox CheckpointReader::FileBoxOf(const SourceBox& box) const {
  FileBox of{.item_bytes = box.item_bytes, .shape = box.shape, .place = box.place};
  const auto address = reinterpret_cast<std::uintptr_t>(box.base);
  const auto behind = std::upper_bound(places_.begin(), places_.end(), address,
                                       [](std::uintptr_t at, const Place& place) { return at < place.begin; });
  if (behind == places_.begin()) {
    CHECK(of.Bytes() == 0);
    return of;
  }
  const Place& place = *std::prev(behind);
  CHECK(of.Bytes() == 0 || address < place.end);
  of.file = place.file;
  of.base_offset = static_cast<std::int64_t>(address - place.begin);
  return of;
}

ReadSummary CheckpointReader::Summary() const {
  return {.strategy = choice_.strategy,
          .reason = choice_.reason,
          .logical_bytes = counts_.logical_bytes,
          .read_bytes = counts_.read_bytes,
          .calls = counts_.calls};
}

std::unique_ptr<BoxReader> CheckpointReader::Read(const std::vector<SourceBox>& boxes) const {
  if (!logged_.exchange(true) && !files_.empty()) {
    LogInfo("checkpoint_read", "file={} files={} strategy={} why=\"{}\"", files_.front()->path(), files_.size(),
            ReadStrategyName(choice_.strategy), choice_.reason);
  }
  std::vector<const ByteFile*> files;
  for (const auto& file : files_) files.push_back(file.get());
  std::vector<FileBox> file_boxes;
  for (const SourceBox& box : boxes) file_boxes.push_back(FileBoxOf(box));
  return ReadFiles(std::move(files), std::move(file_boxes), AheadOf(choice_.strategy, remote_), options_, counts_);
}

}  // namespace bascule
