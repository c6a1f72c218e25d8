// Strategies on real files: the same bytes, whichever reads them, and an error where a mapping alone would be a signal.
#include "checkpoint/read_strategy.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "bridge/send/source_digest.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/file_internal.h"
#include "checkpoint/guarded_copy_internal.h"
#include "tests/support/temp_directory.h"

namespace bascule {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

// Where O_DIRECT works: the build folder, when /tmp is memory.
struct DiskDirectory {
  const std::string path = fmt::format("read_strategy_test_files_{}", getpid());  // tests run at once
  DiskDirectory() { std::filesystem::create_directories(path); }
  ~DiskDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::string File(const std::string& name) const { return path + "/" + name; }
};

std::vector<char> Numbered(std::size_t bytes) {
  std::vector<char> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<char>(i * 7 + (i >> 9));
  return data;
}

// A file whose data begin at `data_offset`: two tensors of odd sizes.
void WriteAt(const std::string& path, std::size_t data_offset, std::size_t bytes) {
  std::string json = fmt::format(
      R"({{"a":{{"dtype":"U8","shape":[{}],"data_offsets":[0,{}]}},"b":{{"dtype":"F64","shape":[2,3],"data_offsets":[{},{}]}}}})",
      bytes, bytes, bytes, bytes + 48);
  json.append(data_offset - 8 - json.size(), ' ');
  std::string head(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) head[i] = static_cast<char>(json.size() >> (8 * i) & 0xff);
  const std::vector<char> data = Numbered(bytes + 48);
  std::ofstream file(path, std::ios::binary);
  file << head << json;
  file.write(data.data(), static_cast<std::streamsize>(data.size()));
  ASSERT_TRUE(file.good());
}

std::vector<ReadStrategy> Strategies() { return {ReadStrategy::kMmap, ReadStrategy::kRead, ReadStrategy::kDirect}; }

// C-106.
TEST(ReadStrategyTest, AutoGoesByFileSystemSizeAndFreeMemory) {
  const auto choose = [](std::uint64_t type, std::int64_t file_gib, std::int64_t free_gib) {
    return ChooseStrategy(ReadStrategy::kAuto,
                          {.file_system = type, .file_bytes = file_gib * kGiB, .free_bytes = free_gib * kGiB});
  };

  EXPECT_EQ(choose(TMPFS_MAGIC, 100, 10).strategy, ReadStrategy::kMmap);
  EXPECT_EQ(choose(NFS_SUPER_MAGIC, 100, 10).strategy, ReadStrategy::kRead);
  EXPECT_EQ(choose(0x0bd00bd0, 1, 10).strategy, ReadStrategy::kRead);
  EXPECT_EQ(choose(EXT4_SUPER_MAGIC, 1, 10).strategy, ReadStrategy::kRead);
  EXPECT_EQ(choose(EXT4_SUPER_MAGIC, 6, 10).strategy, ReadStrategy::kDirect);
  EXPECT_EQ(choose(EXT4_SUPER_MAGIC, 6, 0).strategy, ReadStrategy::kRead) << "free memory is not known";
  EXPECT_NE(choose(NFS_SUPER_MAGIC, 1, 1).reason.find("nfs is a network file system"), std::string::npos);
  EXPECT_NE(choose(EXT4_SUPER_MAGIC, 6, 10).reason.find("6.0 GiB of files would crowd 10.0 GiB"), std::string::npos);
}

// C-106.
TEST(ReadStrategyTest, WhatIsAskedForIsTakenUnlessTheFilesCannotBeMapped) {
  EXPECT_EQ(ChooseStrategy(ReadStrategy::kDirect, {.file_system = NFS_SUPER_MAGIC}).strategy, ReadStrategy::kDirect);
  const StrategyChoice choice = ChooseStrategy(ReadStrategy::kMmap, {.can_map = false});
  EXPECT_EQ(choice.strategy, ReadStrategy::kRead);
  EXPECT_EQ(choice.reason, "the file system maps no files");
  EXPECT_EQ(ChooseStrategy(ReadStrategy::kAuto, {.file_system = TMPFS_MAGIC, .can_map = false}).strategy,
            ReadStrategy::kRead);
}

TEST(ReadStrategyTest, NamesAreThoseOfTheCommandLine) {
  for (const char* name : {"auto", "mmap", "read", "direct"}) {
    EXPECT_EQ(ReadStrategyName(*ParseReadStrategy(name)), name);
  }
  EXPECT_EQ(ParseReadStrategy("io_uring").status().reason(), "unknown_read_strategy");
}

// C-112.
TEST(ReadStrategyTest, EveryStrategyGivesTheSameDigestsWhereverTheDataBegin) {
  const DiskDirectory dir;
  const std::string path = dir.File("m.safetensors");
  for (const std::size_t offset : {256U, 257U, 258U, 259U, 260U, 261U, 262U, 263U, 4097U, 65535U}) {
    WriteAt(path, offset, 300'001);
    std::optional<std::vector<TensorDigest>> first;
    for (const ReadStrategy strategy : Strategies()) {
      const auto checkpoint = Checkpoint::Open(path, {.strategy = strategy});
      if (checkpoint.status().reason() == "direct_unsupported") continue;
      ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();

      const auto digests = DigestSource(**checkpoint, (*checkpoint)->tensors(), /*threads=*/2);

      ASSERT_TRUE(digests.ok()) << digests.status().ToString();
      if (!first) first = *digests;
      EXPECT_EQ(*digests, *first) << ReadStrategyName(strategy) << " offset=" << offset;
      EXPECT_EQ((*checkpoint)->read_summary().strategy, strategy);
      EXPECT_EQ((*checkpoint)->read_summary().logical_bytes, 300'001 + 48);
      EXPECT_GE((*checkpoint)->read_summary().read_bytes, 300'001 + 48);
    }
  }
}

// C-118.
TEST(ReadStrategyTest, AFileThatIsCutWhileOpenIsAnErrorWithEveryStrategy) {
  const DiskDirectory dir;
  const std::string path = dir.File("m.safetensors");
  for (const ReadStrategy strategy : Strategies()) {
    WriteAt(path, 256, 3'000'000);
    const auto checkpoint = Checkpoint::Open(path, {.strategy = strategy});
    if (checkpoint.status().reason() == "direct_unsupported") continue;
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
    ASSERT_EQ(truncate(path.c_str(), 1'500'000), 0);

    const Status status = DigestSource(**checkpoint, (*checkpoint)->tensors(), /*threads=*/2).status();

    EXPECT_EQ(status.reason(), "file_truncated") << ReadStrategyName(strategy) << ": " << status.ToString();
    EXPECT_NE(status.message().find(path), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("offset=1500000"), std::string::npos) << status.message();
  }
}

// C-118.
TEST(ReadStrategyTest, AFileThatIsOverwrittenWhileOpenIsAnErrorWithEveryStrategy) {
  const DiskDirectory dir;
  const std::string path = dir.File("m.safetensors");
  for (const ReadStrategy strategy : Strategies()) {
    WriteAt(path, 256, 3'000'000);
    const auto checkpoint = Checkpoint::Open(path, {.strategy = strategy});
    if (checkpoint.status().reason() == "direct_unsupported") continue;
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
    std::filesystem::last_write_time(path, std::filesystem::last_write_time(path) + std::chrono::seconds(2));

    const Status status = DigestSource(**checkpoint, (*checkpoint)->tensors(), /*threads=*/1).status();

    EXPECT_EQ(status.reason(), "file_changed") << ReadStrategyName(strategy) << ": " << status.ToString();
  }
}

TEST(ReadStrategyTest, TheCacheIsDroppedBehindTheRead) {
  const DiskDirectory dir;
  const std::string path = dir.File("m.safetensors");
  WriteAt(path, 4096, 8 << 20);
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(fsync(fd.get()), 0);
  const auto checkpoint = Checkpoint::Open(path, {.strategy = ReadStrategy::kRead, .drop_cache = true});
  ASSERT_TRUE(checkpoint.ok());

  ASSERT_TRUE(DigestSource(**checkpoint, (*checkpoint)->tensors(), /*threads=*/1).ok());

  const std::span<const std::byte> data = (*checkpoint)->Data(0);
  std::vector<unsigned char> resident(data.size() / 4096);
  ASSERT_EQ(mincore(const_cast<std::byte*>(data.data()), resident.size() * 4096, resident.data()), 0);
  const auto kept = std::count_if(resident.begin(), resident.end(), [](unsigned char r) { return (r & 1) != 0; });
  EXPECT_LT(kept, std::ssize(resident) / 4);
}

// C-119: 32 readers of a mapping that is cut under them.
TEST(GuardedCopyTest, PagesThatAreGoneEndTheCopyAndNotTheProcess) {
  const TempDirectory dir;
  const std::string path = dir.Write("file", std::string(64 << 10, 'x'));
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  void* mapping = mmap(nullptr, 64 << 10, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  ASSERT_NE(mapping, MAP_FAILED);
  const auto* bytes = static_cast<const std::byte*>(mapping);
  ASSERT_EQ(truncate(path.c_str(), 16 << 10), 0);

  std::atomic<int> whole = 0;
  std::atomic<int> cut = 0;
  {
    std::vector<std::jthread> readers;
    for (int i = 0; i < 32; ++i) {
      readers.emplace_back([&] {
        std::vector<std::byte> target(16 << 10);
        whole += GuardedCopy(bytes, target) ? 1 : 0;
        cut += GuardedCopy(bytes + (8 << 10), target) ? 0 : 1;
        cut += GuardedCopy(bytes + (40 << 10), target) ? 0 : 1;
      });
    }
  }

  EXPECT_EQ(whole, 32);
  EXPECT_EQ(cut, 64);
  munmap(mapping, 64 << 10);
}

}  // namespace
}  // namespace bascule
