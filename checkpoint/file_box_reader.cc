#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <stop_token>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "base/worker.h"
#include "checkpoint/file_box_reader_internal.h"
#include "kernels/pack.h"

namespace bascule {
namespace {

constexpr std::int64_t kPageBytes = 4096;
constexpr Duration kProgressInterval = std::chrono::seconds(5);
// What memory of chunks is kept for the next reader: a process that loads one version after another reads into pages
// that it has.
constexpr std::size_t kIdleBytesMax = std::size_t{8} << 20;
// A device that gives nothing for so long is stuck.
constexpr Duration kStallMax = std::chrono::minutes(2);

// Memory of a chunk, used again for the next.
class AlignedMemory {
 public:
  ~AlignedMemory() { Free(); }
  AlignedMemory() = default;
  AlignedMemory(const AlignedMemory&) = delete;
  AlignedMemory& operator=(const AlignedMemory&) = delete;

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::span<std::byte> Of(std::int64_t bytes) {
    const auto wanted = static_cast<std::size_t>(bytes);
    if (wanted > size_) {
      Free();
      data_ = static_cast<std::byte*>(::operator new (wanted, std::align_val_t{kPageBytes}));
      size_ = wanted;
    }
    return {data_, wanted};
  }

 private:
  void Free() {
    if (data_ != nullptr) ::operator delete (data_, std::align_val_t{kPageBytes});
    data_ = nullptr;
    size_ = 0;
  }
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Memory of chunks that nobody reads any more, for the next ones of any reader. Shared with the views given out, which
// may outlive all of them.
class MemoryPool : public std::enable_shared_from_this<MemoryPool> {
 public:
  static const std::shared_ptr<MemoryPool>& OfProcess() {
    static const std::shared_ptr<MemoryPool> pool = std::make_shared<MemoryPool>();
    return pool;
  }

  std::shared_ptr<AlignedMemory> Take() EXCLUDES(mu_) {
    std::unique_ptr<AlignedMemory> memory;
    {
      MutexLock lock(mu_);
      if (!idle_.empty()) {
        memory = std::move(idle_.back());
        idle_.pop_back();
        idle_bytes_ -= memory->size();
      }
    }
    if (memory == nullptr) memory = std::make_unique<AlignedMemory>();
    return {memory.release(), [pool = shared_from_this()](AlignedMemory* done) { pool->Put(done); }};
  }

 private:
  void Put(AlignedMemory* done) EXCLUDES(mu_) {
    std::unique_ptr<AlignedMemory> memory(done);
    MutexLock lock(mu_);
    if (idle_bytes_ + memory->size() > kIdleBytesMax) return;
    idle_bytes_ += memory->size();
    idle_.push_back(std::move(memory));
  }

  Mutex mu_;
  std::vector<std::unique_ptr<AlignedMemory>> idle_ GUARDED_BY(mu_);
  std::size_t idle_bytes_ GUARDED_BY(mu_) = 0;
};

// Logs how far a long read is.
class Progress {
 public:
  Progress(Clock& clock, std::int64_t total_bytes)
      : clock_(clock), start_(clock.Now()), last_(start_), total_bytes_(total_bytes) {}

  void Add(std::int64_t bytes) {
    done_bytes_ += bytes;
    const TimePoint now = clock_.Now();
    if (now - last_ < kProgressInterval || done_bytes_ >= total_bytes_) return;
    last_ = now;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    const double rate = static_cast<double>(done_bytes_) / seconds;
    LogInfo("checkpoint_progress", "bytes={} of={} mb_per_s={:.0f} seconds_left={:.0f}", done_bytes_, total_bytes_,
            rate / 1e6, static_cast<double>(total_bytes_ - done_bytes_) / rate);
  }

 private:
  Clock& clock_;
  const TimePoint start_;
  TimePoint last_;
  const std::int64_t total_bytes_;
  std::int64_t done_bytes_ = 0;
};

std::int64_t BytesOf(std::span<const FileBox> boxes) {
  std::int64_t bytes = 0;
  for (const FileBox& box : boxes) bytes += box.Bytes();
  return bytes;
}

class FileBoxReader final : public BoxReader {
 public:
  FileBoxReader(std::vector<const ByteFile*> files, std::vector<FileBox> boxes, ReadAhead ahead,
                const ReadOptions& options, ReadCounts& counts)
      : files_(std::move(files)),
        boxes_(std::move(boxes)),
        options_(options),
        counts_(counts),
        chunk_bytes_(ahead.chunk_bytes),
        part_bytes_(ahead.part_bytes),
        progress_(*options.clock, BytesOf(boxes_)),
        slots_(static_cast<std::size_t>(std::max(ahead.requests, 1) + ahead.waiting)),
        wake_(options_.stop, [this] { Wake(); }) {
    for (const ByteFile* file : files_) alignment_.push_back(file->alignment());
    CutChunks();
    for (int i = 0; i < ahead.requests; ++i) {
      workers_.emplace_back(fmt::format("read-{}", i), [this](std::stop_token) { ReadChunks(); });
    }
  }

  ~FileBoxReader() override {
    {
      MutexLock lock(mu_);
      stopped_ = true;
    }
    changed_.NotifyAll();
  }
  FileBoxReader(const FileBoxReader&) = delete;
  FileBoxReader& operator=(const FileBoxReader&) = delete;

  Result<BoxView> Next() override { return NextByRows(nullptr); }
  Result<BoxView> NextByRows(const RowsReady& ready) override {
    if (next_box_ == first_box_of_[chunk_ + 1]) Advance();
    if (next_box_ == first_box_of_[chunk_]) RETURN_IF_ERROR(AwaitChunk(ready));
    return ViewOf(SlotOf(chunk_), next_box_++ - first_box_of_[chunk_]);
  }
  bool GivesMemory() const override { return true; }

 private:
  struct Slot {
    ReadChunk chunk;
    std::shared_ptr<AlignedMemory> memory;  // also of views of it
    std::size_t ready = 0;                  // number of the chunk that is read, + 1
    Status status;
  };

  static BoxView ViewOf(const Slot& slot, std::size_t box) {
    const ChunkBox& placed = slot.chunk.boxes[box];
    return {slot.memory->data() + placed.memory_offset, placed.place, slot.memory};
  }
  Slot& SlotOf(std::size_t chunk) { return slots_[chunk % slots_.size()]; }
  std::span<const FileBox> BoxesOf(std::size_t chunk) const {
    return std::span(boxes_).subspan(first_box_of_[chunk], first_box_of_[chunk + 1] - first_box_of_[chunk]);
  }
  std::size_t chunk_count() const { return first_box_of_.size() - 1; }

  void CutChunks() {
    first_box_of_.push_back(0);
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < boxes_.size(); ++i) {
      if (bytes > 0 && bytes + boxes_[i].Bytes() > chunk_bytes_) {
        first_box_of_.push_back(i);
        bytes = 0;
      }
      bytes += boxes_[i].Bytes();
    }
    first_box_of_.push_back(boxes_.size());
  }

  // Through the lock: who has just looked whether to stop is waiting by then.
  void Wake() {
    { MutexLock lock(mu_); }
    changed_.NotifyAll();
  }

  // The consumer is done with its chunk; its memory is free.
  void Advance() {
    CHECK(next_box_ < boxes_.size());
    SlotOf(chunk_).memory.reset();
    {
      MutexLock lock(mu_);
      consumed_ = ++chunk_;
    }
    changed_.NotifyAll();
  }

  Status AwaitChunk(const RowsReady& ready) {
    if (failure_.ok()) failure_ = workers_.empty() ? ReadHere(ready) : AwaitRead();
    RETURN_IF_ERROR(failure_);
    progress_.Add(BytesOf(BoxesOf(chunk_)));
    // What was read last came after all the rest, so that one look says of everything that it was one file.
    if (chunk_ + 1 < chunk_count()) return OkStatus();
    for (const ByteFile* file : files_) {
      RETURN_IF_ERROR(file->CheckUnchanged());
      // The kernel keeps blocks that lie across the ends of ranges.
      if (options_.drop_cache) file->Forget(0, file->bytes());
    }
    return OkStatus();
  }

  Status AwaitRead() {
    const Slot& slot = SlotOf(chunk_);
    MutexLock lock(mu_);
    const TimePoint give_up = options_.clock->Now() + kStallMax;
    while (slot.ready != chunk_ + 1 && !options_.stop.stop_requested()) {
      if (!options_.clock->WaitUntil(changed_, mu_, give_up)) return Stalled();
    }
    RETURN_IF_ERROR(CheckNotStopped(options_));
    return slot.status;
  }

  // Without threads all slots are the consumer's: one for what it reads, the others for what it announces.
  Status ReadHere(const RowsReady& ready) {
    RETURN_IF_ERROR(CheckNotStopped(options_));
    for (; planned_ < std::min(chunk_count(), chunk_ + slots_.size()); ++planned_) {
      Slot& slot = SlotOf(planned_);
      slot.chunk = PlanChunk(BoxesOf(planned_), alignment_);
      if (planned_ > chunk_) Announce(slot.chunk.ranges);
    }
    return Fill(chunk_, SlotOf(chunk_), ready);
  }

  // The kernel reads whole pages: ranges less than one apart are one to it.
  void Announce(std::span<const FileRange> ranges) const {
    while (!ranges.empty()) {
      const int file = ranges.front().file;
      const std::int64_t begin = ranges.front().offset;
      std::int64_t end = begin;
      while (!ranges.empty() && ranges.front().file == file && ranges.front().offset < end + kPageBytes) {
        end = ranges.front().offset + ranges.front().bytes;
        ranges = ranges.subspan(1);
      }
      files_[static_cast<std::size_t>(file)]->Announce(begin, end - begin);
    }
  }

  Status Stalled() const {
    const std::span<const FileBox> boxes = BoxesOf(chunk_);
    const std::string file = boxes.empty() ? "" : files_[static_cast<std::size_t>(boxes.front().file)]->path();
    return Status::DeadlineExceeded("read_stalled", fmt::format("{}: nothing came in {:.0f} s", file,
                                                                std::chrono::duration<double>(kStallMax).count()));
  }

  void ReadChunks() {
    while (const std::optional<std::size_t> chunk = TakeChunk()) {
      Slot& slot = SlotOf(*chunk);
      slot.chunk = PlanChunk(BoxesOf(*chunk), alignment_);
      Status status = Fill(*chunk, slot, nullptr);
      {
        MutexLock lock(mu_);
        slot.ready = *chunk + 1;
        slot.status = std::move(status);
      }
      changed_.NotifyAll();
    }
  }

  // The next chunk to read, once a slot is free.
  std::optional<std::size_t> TakeChunk() {
    MutexLock lock(mu_);
    while (!stopped_ && next_chunk_ < chunk_count() && next_chunk_ >= consumed_ + slots_.size()) {
      options_.clock->WaitUntil(changed_, mu_, options_.clock->Now() + kStallMax);
    }
    if (stopped_ || next_chunk_ == chunk_count()) return std::nullopt;
    return next_chunk_++;
  }

  // Reads what the slot's chunk says.
  Status Fill(std::size_t number, Slot& slot, const RowsReady& ready) const {
    slot.memory = pool_->Take();
    const std::span<std::byte> memory = slot.memory->Of(slot.chunk.memory_bytes);
    const bool by_rows = part_bytes_ > 0 && ready != nullptr && IsOneRun(BoxesOf(number), slot.chunk);
    std::int64_t calls = 0;
    for (const FileRange& range : slot.chunk.ranges) {
      const ByteFile& file = *files_[static_cast<std::size_t>(range.file)];
      // The last block of a file is as long as the file is.
      const std::int64_t wanted = std::min(range.bytes, file.bytes() - range.offset);
      const auto target =
          memory.subspan(static_cast<std::size_t>(range.memory_offset), static_cast<std::size_t>(range.bytes));
      RETURN_IF_ERROR(by_rows ? ReadRows(file, range, target, BoxesOf(number).front(), ViewOf(slot, 0), ready, calls)
                              : ReadRange(file, range.offset, wanted, target, calls));
      counts_.read_bytes += wanted;
      if (options_.drop_cache) file.Forget(range.offset, range.bytes);
    }
    for (const Gather& gather : slot.chunk.gathers) {
      std::memcpy(&memory[static_cast<std::size_t>(gather.to)], &memory[static_cast<std::size_t>(gather.from)],
                  static_cast<std::size_t>(gather.bytes));
    }
    counts_.calls += calls;
    counts_.logical_bytes += BytesOf(BoxesOf(number));
    return OkStatus();
  }

  // One box whose rows lie side by side in the file, and nothing else.
  static bool IsOneRun(std::span<const FileBox> boxes, const ReadChunk& chunk) {
    if (boxes.size() != 1 || chunk.ranges.size() != 1 || boxes[0].Bytes() == 0) return false;
    return chunk.ranges[0].bytes == boxes[0].Bytes() && boxes[0].place.stride == CompactPlace(boxes[0].shape).stride;
  }

  // Reads a box that is one run a few rows at a time.
  Status ReadRows(const ByteFile& file, const FileRange& range, std::span<std::byte> target, const FileBox& box,
                  const BoxView& view, const RowsReady& ready, std::int64_t& calls) const {
    const std::int64_t rows = box.shape.dims == 0 ? 1 : box.shape.count[0];
    const std::int64_t row_bytes = range.bytes / rows;
    const std::int64_t step = std::max<std::int64_t>(1, part_bytes_ / row_bytes);
    for (std::int64_t row = 0; row < rows; row += step) {
      const std::int64_t end = std::min(rows, row + step);
      const std::int64_t at = row * row_bytes;
      const std::int64_t bytes = (end - row) * row_bytes;
      RETURN_IF_ERROR(ReadRange(file, range.offset + at, bytes,
                                target.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(bytes)), calls));
      ready(view, end);
    }
    return OkStatus();
  }

  const std::shared_ptr<MemoryPool> pool_ = MemoryPool::OfProcess();
  const std::vector<const ByteFile*> files_;
  const std::vector<FileBox> boxes_;
  const ReadOptions options_;
  ReadCounts& counts_;
  const std::int64_t chunk_bytes_;
  const std::int64_t part_bytes_;
  std::vector<std::int64_t> alignment_;
  std::vector<std::size_t> first_box_of_;  // per chunk, and the end
  // The consumer's own.
  std::size_t next_box_ = 0;
  std::size_t chunk_ = 0;
  std::size_t planned_ = 0;  // chunks whose slot says what to read; without threads
  Status failure_;           // stays
  Progress progress_;

  Mutex mu_;  // Guards who has which slot; never held across a read.
  CondVar changed_;
  std::size_t next_chunk_ GUARDED_BY(mu_) = 0;
  std::size_t consumed_ GUARDED_BY(mu_) = 0;  // chunks that the consumer is done with
  bool stopped_ GUARDED_BY(mu_) = false;
  std::vector<Slot> slots_;  // a reading thread's from TakeChunk until it is ready, then the consumer's
  std::vector<Worker> workers_;
  const std::stop_callback<std::function<void()>> wake_;
};

}  // namespace

std::unique_ptr<BoxReader> ReadFiles(std::vector<const ByteFile*> files, std::vector<FileBox> boxes, ReadAhead ahead,
                                     const ReadOptions& options, ReadCounts& counts) {
  return std::make_unique<FileBoxReader>(std::move(files), std::move(boxes), ahead, options, counts);
}

}  // namespace bascule
