#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "base/mutex.h"
#include "base/worker.h"
#include "bridge/manifest/manifest.h"
#include "bridge/plan/planner.h"
#include "checkpoint/plan_writer_internal.h"
#include "checkpoint/safetensors_writer_internal.h"
#include "kernels/pack.h"

namespace bascule {
namespace {

// Stays in a core's cache from packing to writing, and is long enough for a system call to cost nothing beside it.
constexpr std::int64_t kBlockBytes = 1 << 20;

// A run of one file: a contiguous box of a local tensor, and what has to come into it.
struct Block {
  int rank = 0;
  std::size_t tensor = 0;  // local
  std::int64_t file_offset = 0;
  std::int64_t bytes = 0;
  bool has_fill = false;
  struct Part {
    const Slice* slice = nullptr;
    int sender_rank = 0;
  };
  std::vector<Part> parts;
};

// `target` with every local tensor cut into blocks, each a local tensor of its own, so that a plan to it says of every
// block what comes into it. Block b of a rank is local tensor b of the result.
class BlockedLayout {
 public:
  BlockedLayout(const Layout& target, const std::vector<PlannedSafetensors>& files) {
    layout_.tensors = target.tensors;
    layout_.ranks.resize(target.ranks.size());
    for (std::size_t rank = 0; rank < target.ranks.size(); ++rank) CutRank(target.ranks[rank], files[rank], rank);
  }

  const Layout& layout() const { return layout_; }
  // In the order of a rank's local tensors, rank after rank.
  std::vector<Block> TakeBlocks() { return std::move(blocks_); }
  std::size_t first_block_of(std::size_t rank) const { return first_block_of_[rank]; }

 private:
  void CutRank(const RankLayout& rank, const PlannedSafetensors& file, std::size_t number) {
    first_block_of_.push_back(blocks_.size());
    std::vector<std::vector<const MapRow*>> rows_of(rank.tensors.size());
    for (const MapRow& row : rank.rows) rows_of[static_cast<std::size_t>(row.local)].push_back(&row);
    for (std::size_t t = 0; t < rank.tensors.size(); ++t) {
      const LocalTensor& tensor = rank.tensors[t];
      const std::int64_t item_bytes = ItemBytes(tensor.dtype);
      std::int64_t offset = file.offsets[t];
      for (const Box& box : CutBox(Box::Whole(tensor.shape), kBlockBytes / item_bytes)) {
        AddBlock(tensor, box, rows_of[t], layout_.ranks[number]);
        blocks_.back().rank = static_cast<int>(number);
        blocks_.back().tensor = t;
        blocks_.back().file_offset = offset;
        blocks_.back().bytes = box.Elements() * item_bytes;
        offset += blocks_.back().bytes;
      }
    }
  }

  void AddBlock(const LocalTensor& tensor, const Box& box, const std::vector<const MapRow*>& rows, RankLayout& rank) {
    const auto local = static_cast<std::int32_t>(rank.tensors.size());
    rank.tensors.push_back({.name = std::to_string(local), .dtype = tensor.dtype, .shape = box.extent, .stride = {}});
    Block& block = blocks_.emplace_back();
    for (const MapRow* row : rows) {
      const std::optional<Box> part = Intersect(row->local_box, box);
      if (!part) continue;
      Box in_block = *part;
      for (int d = 0; d < in_block.dims(); ++d) in_block.offset[d] -= box.offset[d];
      const bool fill = row->logical == kFill;
      block.has_fill = block.has_fill || fill;
      rank.rows.push_back({.local = local,
                           .local_box = in_block,
                           .logical = row->logical,
                           .logical_box = fill ? Box{} : CorrespondingBox(*part, row->local_box, row->logical_box)});
    }
  }

  Layout layout_;
  std::vector<Block> blocks_;
  std::vector<std::size_t> first_block_of_;  // per rank
};

// Elements from the first of a box to behind its last.
std::int64_t Reach(const BoxShape& shape, const BoxPlace& place) {
  std::int64_t reach = 1;
  for (std::size_t d = 0; d < static_cast<std::size_t>(shape.dims); ++d) {
    reach += (shape.count[d] - 1) * place.stride[d];
  }
  return reach;
}

// Packs and writes blocks, each thread its own share of them.
class BlockWriter {
 public:
  BlockWriter(const Plan& plan, const Layout& blocked, const WeightSource& source, std::vector<Block> blocks,
              std::vector<UniqueFd> files, std::vector<std::string> paths, const WriteControl& control)
      : plan_(plan),
        blocked_(blocked),
        source_(source),
        blocks_(std::move(blocks)),
        files_(std::move(files)),
        paths_(std::move(paths)),
        control_(control) {
    for (const TensorSpec& tensor : plan.tensors) keys_.push_back(KeyOf(tensor));
  }

  // Share number `share` of `shares`; ends early when another one has failed.
  Status WriteShare(std::size_t share, std::size_t shares, WrittenFiles& sums) {
    // Runs of neighbouring blocks in turn, so that every share is read in long stretches.
    constexpr std::size_t kRunBlocks = 8;
    std::vector<const Block*> mine;
    std::vector<SourceBox> boxes;
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      if (b / kRunBlocks % shares != share) continue;
      mine.push_back(&blocks_[b]);
      for (const Block::Part& part : blocks_[b].parts) boxes.push_back(BoxOf(part));
    }
    Share state{.boxes = boxes, .next_box = 0, .reader = source_.Read(boxes), .bytes = {}, .scratch = {}};
    for (const Block* block : mine) {
      if (failed_) return OkStatus();
      const Status status = control_.stop.stop_requested()
                                ? Status::Cancelled("cancelled", "stopped while files were written")
                                : Write(*block, state, sums);
      if (status.ok()) continue;
      failed_ = true;
      return status;
    }
    return OkStatus();
  }

  Status Flush() const {
    for (std::size_t rank = 0; rank < files_.size(); ++rank) RETURN_IF_ERROR(FlushFile(files_[rank], paths_[rank]));
    return OkStatus();
  }

 private:
  // One thread's way through its blocks.
  struct Share {
    const std::vector<SourceBox>& boxes;  // of every part, in the order in which they are packed
    std::size_t next_box = 0;
    std::unique_ptr<BoxReader> reader;
    std::vector<std::byte> bytes;    // of the block
    std::vector<std::byte> scratch;  // of a part of it
  };

  SourceBox BoxOf(const Block::Part& part) const {
    const LocalTensor& held = source_.layout()
                                  .ranks[static_cast<std::size_t>(part.sender_rank)]
                                  .tensors[static_cast<std::size_t>(part.slice->sender_tensor)];
    const Dims stride = held.stride.empty() ? RowMajorStride(held.shape) : held.stride;
    return {.base = source_.Base(part.sender_rank, part.slice->sender_tensor),
            .item_bytes = ItemBytes(held.dtype),
            .shape = ShapeOf(part.slice->sender_box),
            .place = PlaceInStrided(part.slice->sender_box, stride)};
  }

  Status Write(const Block& block, Share& share, WrittenFiles& sums) const {
    share.bytes.resize(static_cast<std::size_t>(block.bytes));
    if (block.has_fill) std::fill(share.bytes.begin(), share.bytes.end(), std::byte{0});
    for (const Block::Part& part : block.parts) {
      ASSIGN_OR_RETURN(const TensorDigest digest, Pack(part, block.rank, share));
      const auto tensor = static_cast<std::size_t>(part.slice->tensor);
      if (part.slice->counts) sums.totals[tensor] += digest;
      sums.held_by_rank[static_cast<std::size_t>(block.rank)][tensor] += digest;
    }
    const auto rank = static_cast<std::size_t>(block.rank);
    RETURN_IF_ERROR(WriteAt(files_[rank], paths_[rank], block.file_offset, share.bytes));
    if (control_.on_bytes) control_.on_bytes(block.bytes);
    return OkStatus();
  }

  // Brings one slice to its place in the block, by way of the scratch unless it is the whole block.
  Result<TensorDigest> Pack(const Block::Part& part, int rank, Share& share) const {
    const Slice& slice = *part.slice;
    const auto tensor = static_cast<std::size_t>(slice.tensor);
    const bool is_whole = slice.payload_bytes == std::ssize(share.bytes);
    if (!is_whole) share.scratch.resize(static_cast<std::size_t>(slice.payload_bytes));
    const std::span<std::byte> payload(is_whole ? share.bytes : share.scratch);
    const SourceBox& box = share.boxes[share.next_box++];
    ASSIGN_OR_RETURN(const BoxView view, share.reader->Next());
    const TensorDigest digest =
        PackAndDigestOnHost(keys_[tensor], box.shape, slice.conversion, box.item_bytes, view.base, view.place,
                            PlaceIn(slice.logical_box, plan_.tensors[tensor].shape), payload);
    source_.Release({box.base + box.place.offset * box.item_bytes,
                     static_cast<std::size_t>(Reach(box.shape, box.place) * box.item_bytes)});
    if (!is_whole) {
      const LocalTensor& target =
          blocked_.ranks[static_cast<std::size_t>(rank)].tensors[static_cast<std::size_t>(slice.engine_tensor)];
      UnpackOnHost(box.shape, ItemBytes(target.dtype), payload, share.bytes.data(),
                   PlaceIn(slice.engine_box, target.shape));
    }
    return digest;
  }

  const Plan& plan_;
  const Layout& blocked_;
  const WeightSource& source_;
  const std::vector<Block> blocks_;
  const std::vector<UniqueFd> files_;
  const std::vector<std::string> paths_;
  const WriteControl& control_;
  std::vector<DigestKey> keys_;  // per logical tensor
  std::atomic<bool> failed_ = false;
};

// Every file, empty but for its header.
Status CreateFiles(const std::vector<PlannedSafetensors>& planned, const std::vector<std::string>& names,
                   const OutputDirectory& out, std::vector<UniqueFd>& files, std::vector<std::string>& paths) {
  for (std::size_t rank = 0; rank < names.size(); ++rank) {
    paths.push_back(out.PathOf(names[rank]));
    ASSIGN_OR_RETURN(UniqueFd file, out.CreateFile(names[rank]));
    RETURN_IF_ERROR(WriteAt(file, paths.back(), 0, std::as_bytes(std::span(planned[rank].header))));
    files.push_back(std::move(file));
  }
  return OkStatus();
}

Result<std::vector<PlannedSafetensors>> PlanFiles(const Layout& target) {
  std::vector<PlannedSafetensors> files;
  for (const RankLayout& rank : target.ranks) {
    std::vector<TensorSpec> tensors;
    for (const LocalTensor& tensor : rank.tensors) tensors.push_back({tensor.name, tensor.dtype, tensor.shape});
    ASSIGN_OR_RETURN(PlannedSafetensors file, PlanSafetensors(tensors, {{"format", "pt"}}));
    files.push_back(std::move(file));
  }
  return files;
}

// Gives each block its slices. All ranks' parts of a tensor then follow one another: what they read of the source is
// near.
void ShareOut(const Plan& plan, const BlockedLayout& blocked, std::vector<Block>& blocks) {
  for (const Bucket& bucket : plan.buckets) {
    const Route& route = plan.routes[static_cast<std::size_t>(bucket.route)];
    const std::size_t first = blocked.first_block_of(static_cast<std::size_t>(route.engine_rank));
    for (const Slice& slice : bucket.slices) {
      blocks[first + static_cast<std::size_t>(slice.engine_tensor)].parts.push_back({&slice, route.sender_rank});
    }
  }
  std::stable_sort(blocks.begin(), blocks.end(), [](const Block& a, const Block& b) { return a.tensor < b.tensor; });
}

WrittenFiles NoSums(const Plan& plan, std::size_t ranks) {
  WrittenFiles sums;
  sums.totals.resize(plan.tensors.size());
  sums.held_by_rank.assign(ranks, std::vector<TensorDigest>(plan.tensors.size()));
  return sums;
}

void Add(const WrittenFiles& part, WrittenFiles& sums) {
  for (std::size_t t = 0; t < sums.totals.size(); ++t) sums.totals[t] += part.totals[t];
  for (std::size_t rank = 0; rank < sums.held_by_rank.size(); ++rank) {
    for (std::size_t t = 0; t < sums.totals.size(); ++t) {
      sums.held_by_rank[rank][t] += part.held_by_rank[rank][t];
    }
  }
}

Result<WrittenFiles> RunThreads(BlockWriter& writer, const Plan& plan, std::size_t ranks) {
  const std::size_t threads = std::clamp(std::thread::hardware_concurrency(), 1U, 8U);
  std::vector<WrittenFiles> sums(threads, NoSums(plan, ranks));
  std::vector<Status> ends(threads);
  {
    std::vector<Worker> workers;
    for (std::size_t i = 1; i < threads; ++i) {
      workers.emplace_back(fmt::format("write-{}", i),
                           [&, i](std::stop_token) { ends[i] = writer.WriteShare(i, threads, sums[i]); });
    }
    ends[0] = writer.WriteShare(0, threads, sums[0]);
  }
  for (const Status& end : ends) RETURN_IF_ERROR(end);
  for (std::size_t i = 1; i < threads; ++i) Add(sums[i], sums[0]);
  return std::move(sums[0]);
}

}  // namespace

Result<WrittenFiles> WritePlanned(const WeightSource& source, const Layout& target,
                                  const std::vector<std::string>& ignore, const std::vector<std::string>& names,
                                  const OutputDirectory& out, const WriteControl& control) {
  // Before anything is sized by it.
  if (const Status status = CheckLayout(target); !status.ok()) return status.WithContext("target");
  ASSIGN_OR_RETURN(const std::vector<PlannedSafetensors> planned, PlanFiles(target));
  BlockedLayout blocked(target, planned);
  ASSIGN_OR_RETURN(const Plan plan,
                   MakePlan(source.layout(), blocked.layout(), {.bucket_bytes = kBlockBytes, .ignore = ignore}));
  std::vector<Block> blocks = blocked.TakeBlocks();
  ShareOut(plan, blocked, blocks);
  std::vector<UniqueFd> files;
  std::vector<std::string> paths;
  RETURN_IF_ERROR(CreateFiles(planned, names, out, files, paths));
  if (control.on_start) {
    std::int64_t bytes = 0;
    for (const Block& block : blocks) bytes += block.bytes;
    control.on_start(bytes);
  }
  BlockWriter writer(plan, blocked.layout(), source, std::move(blocks), std::move(files), std::move(paths), control);
  ASSIGN_OR_RETURN(WrittenFiles written, RunThreads(writer, plan, target.ranks.size()));
  RETURN_IF_ERROR(writer.Flush());
  written.names = plan.names;
  for (const PlannedSafetensors& file : planned) written.file_bytes.push_back(file.file_bytes);
  return written;
}

}  // namespace bascule
