// Reading ahead from files that are short, slow to answer and broken, against the bytes that they are made of.
#include "checkpoint/file_box_reader_internal.h"

#include <gtest/gtest.h>

#include <latch>
#include <numeric>
#include <random>
#include <stop_token>
#include <thread>

#include "kernels/pack.h"
#include "tests/unit/checkpoint/scripted_file.h"

namespace bascule {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

FileBox Range(std::int64_t offset, std::int64_t bytes) {
  return {.file = 0,
          .base_offset = offset,
          .item_bytes = 1,
          .shape = {.dims = 1, .count = {bytes}},
          .place = {.offset = 0, .stride = {1}}};
}

// `columns` of `rows` in a matrix of `row_bytes`, from column `first` on.
FileBox Columns(std::int64_t base, std::int64_t rows, std::int64_t row_bytes, std::int64_t first,
                std::int64_t columns) {
  return {.file = 0,
          .base_offset = base,
          .item_bytes = 1,
          .shape = {.dims = 2, .count = {rows, columns}},
          .place = {.offset = first, .stride = {row_bytes, 1}}};
}

// Every element of the view is the byte of the file that the box says.
void ExpectBytes(const BoxView& view, const FileBox& box) {
  std::array<std::int64_t, kMaxDims> index{};
  for (std::int64_t e = 0; e < box.shape.Elements(); ++e) {
    std::int64_t in_file = box.place.offset;
    std::int64_t in_view = view.place.offset;
    std::int64_t rest = e;
    for (auto d = static_cast<std::size_t>(box.shape.dims); d > 0; --d) {
      index[d - 1] = rest % box.shape.count[d - 1];
      rest /= box.shape.count[d - 1];
      in_file += index[d - 1] * box.place.stride[d - 1];
      in_view += index[d - 1] * view.place.stride[d - 1];
    }
    for (std::int64_t i = 0; i < box.item_bytes; ++i) {
      const std::int64_t offset = box.base_offset + in_file * box.item_bytes + i;
      ASSERT_EQ(view.base[in_view * box.item_bytes + i], ScriptedFile::ByteAt(offset)) << "offset=" << offset;
    }
  }
}

Status ReadAll(const ScriptedFile& file, const std::vector<FileBox>& boxes, ReadAhead ahead, ReadCounts& counts) {
  const auto reader = ReadFiles({&file}, boxes, ahead, {}, counts);
  for (const FileBox& box : boxes) {
    ASSIGN_OR_RETURN(const BoxView view, reader->Next());
    ExpectBytes(view, box);
    if (testing::Test::HasFatalFailure()) break;
  }
  return OkStatus();
}

std::vector<FileBox> Pieces(std::int64_t total, std::int64_t piece) {
  std::vector<FileBox> boxes;
  for (std::int64_t at = 0; at < total; at += piece) boxes.push_back(Range(at, std::min(piece, total - at)));
  return boxes;
}

// C-106.
TEST(FileBoxReaderTest, NeighbouringBoxesAreReadInRequestsOfFourMiB) {
  const ScriptedFile file(64 * kMiB);
  ReadCounts counts;

  ASSERT_TRUE(ReadAll(file, Pieces(64 * kMiB, kMiB), {.requests = 1}, counts).ok());

  EXPECT_EQ(counts.calls, 16);
  EXPECT_EQ(counts.read_bytes, 64 * kMiB);
  EXPECT_EQ(counts.logical_bytes, 64 * kMiB);
  std::int64_t at = 0;
  for (const ScriptedFile::Call& call : file.calls()) {
    EXPECT_EQ(call.offset, at);
    EXPECT_EQ(call.bytes, 4 * kMiB);
    at += call.bytes;
  }
}

TEST(FileBoxReaderTest, ShortCountsAndInterruptedCallsLoseNothing) {
  ScriptedFile file(3 * kMiB + 17);
  file.count_max = 70'001;
  file.interrupt_every = 3;
  for (const std::int64_t block : {1, 4096}) {
    file.block = block;
    ReadCounts counts;

    EXPECT_TRUE(ReadAll(file, Pieces(file.bytes(), 1'000'003), {.requests = 1}, counts).ok());

    EXPECT_GT(counts.calls, 3 * kMiB / 70'001);
    EXPECT_EQ(counts.read_bytes, file.bytes());
  }
}

TEST(FileBoxReaderTest, BoxesInAnyOrderAndOfAnyFormAreExactWithEveryAlignment) {
  const std::uint64_t seed = 20261130;
  SCOPED_TRACE(testing::Message() << "seed=" << seed);
  std::mt19937_64 random(seed);
  ScriptedFile file(2 * kMiB + 5);
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  for (int round = 0; round < 40; ++round) {
    file.block = round % 3 == 0 ? 1 : round % 3 == 1 ? 512 : 4096;
    std::vector<FileBox> boxes;
    for (int i = 0; i < 40; ++i) {
      FileBox box{.file = 0, .base_offset = below(100), .item_bytes = 1 << below(4)};
      // A sub-box of a tensor of up to four dimensions.
      box.shape.dims = static_cast<int>(below(5));
      std::int64_t stride = 1;
      for (auto d = static_cast<std::size_t>(box.shape.dims); d > 0; --d) {
        const std::int64_t extent = 1 + below(16);
        box.shape.count[d - 1] = 1 + below(extent);
        box.place.stride[d - 1] = stride;
        box.place.offset += below(extent - box.shape.count[d - 1] + 1) * stride;
        stride *= extent;
      }
      if (below(10) == 0) box.shape.dims = 1, box.shape.count[0] = 0;
      ASSERT_LE(box.base_offset + stride * box.item_bytes, file.bytes());
      boxes.push_back(box);
    }
    ReadCounts counts;

    EXPECT_TRUE(ReadAll(file, boxes, {.requests = round % 4}, counts).ok());
  }
}

TEST(FileBoxReaderTest, EightRanksOfColumnSlicesReadEachByteOnceInTotal) {
  constexpr std::int64_t kRows = 512;
  constexpr std::int64_t kRowBytes = 8 * 1024;
  const ScriptedFile file(kRows * kRowBytes);
  ReadCounts counts;
  for (std::int64_t rank = 0; rank < 8; ++rank) {
    ASSERT_TRUE(ReadAll(file, {Columns(0, kRows, kRowBytes, rank * 1024, 1024)}, {.requests = 1}, counts).ok());
  }

  EXPECT_EQ(counts.read_bytes, file.bytes());
  EXPECT_EQ(counts.logical_bytes, file.bytes());
}

TEST(FileBoxReaderTest, ColumnSlicesOfAllRanksTogetherAreOneRead) {
  const ScriptedFile file(1024 * 1024);
  std::vector<FileBox> boxes;
  for (std::int64_t rank = 0; rank < 8; ++rank) boxes.push_back(Columns(0, 128, 8192, rank * 1024, 1024));
  ReadCounts counts;

  ASSERT_TRUE(ReadAll(file, boxes, {.requests = 1}, counts).ok());

  EXPECT_EQ(counts.calls, 1);
  EXPECT_EQ(counts.read_bytes, file.bytes());
}

// C-112: reads begin at the block before and the rest is trimmed.
TEST(FileBoxReaderTest, AFileOfBlocksIsAskedForWholeBlocksOnly) {
  ScriptedFile file(1'000'000);
  file.block = 4096;
  ReadCounts counts;

  ASSERT_TRUE(ReadAll(file, {Range(4097, 10'000), Range(600'001, 399'999)}, {.requests = 2}, counts).ok());

  ASSERT_EQ(file.calls().size(), 2U);
  for (const ScriptedFile::Call& call : file.calls()) {
    EXPECT_EQ(call.offset % 4096, 0);
    EXPECT_EQ(call.bytes % 4096, 0);
  }
  EXPECT_EQ(counts.logical_bytes, 10'000 + 399'999);
  EXPECT_GE(counts.read_bytes, counts.logical_bytes);
}

// C-119.
TEST(FileBoxReaderTest, AnErrorOfTheDeviceNamesFileAndOffsetAndStays) {
  ScriptedFile file(kMiB);
  file.broken_offset = 7 * 4096;
  ReadCounts counts;
  const auto reader = ReadFiles({&file}, {Range(0, kMiB)}, {.requests = 1}, {}, counts);

  const Status first = reader->Next().status();

  EXPECT_EQ(first.code(), StatusCode::kUnavailable);
  EXPECT_EQ(first.reason(), "read_failed");
  EXPECT_NE(first.message().find("scripted.safetensors: offset=28672: Input/output error"), std::string::npos)
      << first.message();
  EXPECT_EQ(reader->Next().status(), first);
}

TEST(FileBoxReaderTest, WhatWasReadBeforeAnErrorIsGivenOut) {
  ScriptedFile file(16 * kMiB);
  file.broken_offset = 9 * kMiB;
  ReadCounts counts;
  const auto reader = ReadFiles({&file}, Pieces(16 * kMiB, 4 * kMiB), {.requests = 4}, {}, counts);

  EXPECT_TRUE(reader->Next().ok());
  EXPECT_TRUE(reader->Next().ok());
  EXPECT_EQ(reader->Next().status().reason(), "read_failed");
}

TEST(FileBoxReaderTest, AFileThatEndsEarlyIsAnError) {
  ScriptedFile file(kMiB);
  file.end = 5000;
  ReadCounts counts;
  const auto reader = ReadFiles({&file}, {Range(0, kMiB)}, {.requests = 1}, {}, counts);

  const Status status = reader->Next().status();

  EXPECT_EQ(status.reason(), "file_truncated");
  EXPECT_NE(status.message().find("ends at offset=5000, 1048576 bytes when it was opened"), std::string::npos)
      << status.message();
}

TEST(FileBoxReaderTest, AFileThatWasWrittenToMeanwhileFailsTheEndOfTheRead) {
  ScriptedFile file(16 * kMiB);
  file.changed = true;
  ReadCounts counts;

  EXPECT_EQ(ReadAll(file, Pieces(16 * kMiB, 4 * kMiB), {.requests = 1}, counts).reason(), "file_changed");
}

TEST(FileBoxReaderTest, AReaderThatIsGivenUpHalfWayReadsNoFurtherThanItsBuffers) {
  const ScriptedFile file(64 * kMiB);
  ReadCounts counts;
  {
    const auto reader = ReadFiles({&file}, Pieces(64 * kMiB, 4 * kMiB), {.requests = 1}, {}, counts);
    ASSERT_TRUE(reader->Next().ok());
  }

  EXPECT_LE(counts.read_bytes, (1 + ReadAhead{}.waiting) * ReadAhead{}.chunk_bytes);
}

// As files that the page cache can hold are read.
constexpr ReadAhead kByTheConsumer = {.requests = 0, .waiting = 2, .chunk_bytes = kMiB};

TEST(FileBoxReaderTest, WithoutRequestsAChunkIsReadWhenItIsWantedAndTheNextOnesAreAnnounced) {
  using Calls = std::vector<ScriptedFile::Call>;
  const ScriptedFile file(8 * kMiB);
  ReadCounts counts;
  const auto reader = ReadFiles({&file}, Pieces(8 * kMiB, kMiB), kByTheConsumer, {}, counts);
  EXPECT_EQ(file.calls(), Calls());

  ASSERT_TRUE(reader->Next().ok());
  EXPECT_EQ(file.calls(), (Calls{{0, kMiB}}));
  EXPECT_EQ(file.announced(), (Calls{{kMiB, kMiB}, {2 * kMiB, kMiB}}));

  ASSERT_TRUE(reader->Next().ok());
  EXPECT_EQ(file.calls(), (Calls{{0, kMiB}, {kMiB, kMiB}}));
  EXPECT_EQ(file.announced(), (Calls{{kMiB, kMiB}, {2 * kMiB, kMiB}, {3 * kMiB, kMiB}}));
}

TEST(FileBoxReaderTest, OnlyWhatIsWantedIsAnnouncedSaveForGapsOfLessThanAPage) {
  using Calls = std::vector<ScriptedFile::Call>;
  const ScriptedFile file(8 * kMiB);
  ReadCounts counts;
  const std::vector<FileBox> boxes = {Range(0, kMiB), Columns(kMiB, 4, 8192, 0, 4097), Range(4 * kMiB, kMiB),
                                      Columns(6 * kMiB, 4, 8192, 0, 4096)};

  ASSERT_TRUE(ReadAll(file, boxes, kByTheConsumer, counts).ok());

  EXPECT_EQ(file.announced(), (Calls{{kMiB, 3 * 8192 + 4097},
                                     {4 * kMiB, kMiB},
                                     {6 * kMiB, 4096},
                                     {6 * kMiB + 8192, 4096},
                                     {6 * kMiB + 2 * 8192, 4096},
                                     {6 * kMiB + 3 * 8192, 4096}}));
  EXPECT_EQ(counts.read_bytes, counts.logical_bytes);
}

TEST(FileBoxReaderTest, WithoutRequestsAnErrorStaysThoughTheDeviceRecovers) {
  ScriptedFile file(4 * kMiB);
  file.broken_offset = kMiB;
  ReadCounts counts;
  const auto reader = ReadFiles({&file}, Pieces(4 * kMiB, kMiB), kByTheConsumer, {}, counts);

  EXPECT_TRUE(reader->Next().ok());
  const Status first = reader->Next().status();
  file.broken_offset = -1;

  EXPECT_EQ(first.reason(), "read_failed");
  EXPECT_EQ(reader->Next().status(), first);
}

TEST(FileBoxReaderTest, WithoutRequestsAStopEndsTheReadBeforeTheNextChunk) {
  const ScriptedFile file(4 * kMiB);
  ReadCounts counts;
  std::stop_source stop;
  const auto reader = ReadFiles({&file}, Pieces(4 * kMiB, kMiB), kByTheConsumer, {.stop = stop.get_token()}, counts);
  ASSERT_TRUE(reader->Next().ok());

  stop.request_stop();

  EXPECT_EQ(reader->Next().status().reason(), "cancelled");
  EXPECT_EQ(file.calls().size(), 1U);
}

TEST(FileBoxReaderTest, RowsOfALargeBoxAreGivenOutAsTheyAreRead) {
  const ScriptedFile file(4 * kMiB);
  FileBox box = Range(0, 4 * kMiB);
  box.shape = {.dims = 2, .count = {4, kMiB}};
  box.place = CompactPlace(box.shape);
  ReadCounts counts;
  const auto reader = ReadFiles({&file}, {box}, {.requests = 0, .chunk_bytes = kMiB, .part_bytes = kMiB}, {}, counts);
  std::vector<std::int64_t> told;

  const Result<BoxView> view = reader->NextByRows([&](const BoxView& part, std::int64_t rows) {
    FileBox there = box;
    there.shape.count[0] = rows;
    ExpectBytes(part, there);
    EXPECT_EQ(std::ssize(file.calls()), rows);  // and nothing else was read yet
    told.push_back(rows);
  });

  ASSERT_TRUE(view.ok());
  ExpectBytes(*view, box);
  EXPECT_EQ(told, (std::vector<std::int64_t>{1, 2, 3, 4}));
}

TEST(FileBoxReaderTest, AnErrorInTheMiddleOfABoxFailsItAfterTheRowsBeforeIt) {
  ScriptedFile file(4 * kMiB);
  file.broken_offset = 2 * kMiB;
  FileBox box = Range(0, 4 * kMiB);
  box.shape = {.dims = 2, .count = {4, kMiB}};
  box.place = CompactPlace(box.shape);
  ReadCounts counts;
  const auto reader = ReadFiles({&file}, {box}, {.requests = 0, .chunk_bytes = kMiB, .part_bytes = kMiB}, {}, counts);
  std::int64_t told = 0;

  const Result<BoxView> view = reader->NextByRows([&](const BoxView&, std::int64_t rows) { told = rows; });

  EXPECT_EQ(view.status().reason(), "read_failed");
  EXPECT_EQ(told, 2);
}

TEST(FileBoxReaderTest, AViewStaysReadableWhileItsMemoryIsHeldWhateverIsReadMeanwhile) {
  const ScriptedFile file(16 * kMiB);
  const std::vector<FileBox> boxes = Pieces(16 * kMiB, kMiB);
  ReadCounts counts;
  for (const int requests : {0, 2}) {
    std::vector<BoxView> held;
    {
      const auto reader = ReadFiles({&file}, boxes, {.requests = requests, .chunk_bytes = kMiB}, {}, counts);
      ASSERT_TRUE(reader->GivesMemory());
      for (std::size_t box = 0; box < boxes.size(); ++box) held.push_back(reader->Next().value());
    }

    for (std::size_t box = 0; box < boxes.size(); ++box) ExpectBytes(held[box], boxes[box]);
  }
}

TEST(FileBoxReaderTest, AStopEndsAReadThatWaitsForAStuckDevice) {
  std::latch device(1);
  ScriptedFile file(kMiB);
  file.stuck = &device;
  ReadCounts counts;
  std::stop_source stop;
  const auto reader = ReadFiles({&file}, {Range(0, kMiB)}, {.requests = 1}, {.stop = stop.get_token()}, counts);
  Status status;
  std::jthread consumer([&] { status = reader->Next().status(); });

  stop.request_stop();
  consumer.join();

  EXPECT_EQ(status.reason(), "cancelled");
  EXPECT_EQ(reader->Next().status().reason(), "cancelled");
  device.count_down();
}

}  // namespace
}  // namespace bascule
