// The sums over whole chunks as a matrix product of bytes.
//
// A word is four bytes, w = sum over i of b(i) << 8i, and so is a key, B = sum over k of B(k) << 8k. Hence
//
//   sum over j of B(j) * w(j)  =  sum over s in 0..6 of  2^8s * sum over j, i of  B(s - i)(j) * b(i)(j)
//
// and the inner sums for all s and lanes are one product: the chunks' bytes (a chunk a row) times a constant matrix
// with a column for each (lane, s), 8 columns a lane of which one is zero. Byte sums stay below 4096 * 255 * 255 <
// 2^32, so the 32-bit accumulators of TDPBUUD are exact. A tile of keys serves 32 chunks, in two tiles of 16 rows.
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "kernels/digest_internal.h"

namespace bascule::digest_internal {
namespace {

constexpr std::size_t kTileRows = 16;
constexpr std::size_t kTileRowBytes = 64;
constexpr std::size_t kTileColumns = 16;  // of 32-bit sums
constexpr std::size_t kTileWords = kTileRowBytes / kWordBytes;
constexpr std::size_t kSteps = kChunkBytes / kTileRowBytes;
constexpr std::size_t kColumnsPerLane = 8;
constexpr std::size_t kUsedColumns = 7;  // of them
constexpr std::size_t kLanesPerTile = kTileColumns / kColumnsPerLane;
constexpr std::size_t kKeyTiles = kLanes / kLanesPerTile;
static_assert(kKeyTiles == 2 && kBatchChunks == 2 * kTileRows, "the tile numbers below");

// Row r of a key tile holds, for each column, the weights of the four bytes of word r.
struct KeyTiles {
  using Tile = std::array<std::array<std::array<std::uint8_t, kWordBytes>, kTileColumns>, kTileWords>;
  alignas(64) std::array<std::array<Tile, kKeyTiles>, kSteps> tile{};

  KeyTiles() {
    for (std::size_t word = 0; word < kChunkWords; ++word) {
      for (std::size_t lane = 0; lane < kLanes; ++lane) SetWeights(word, lane);
    }
  }
  void SetWeights(std::size_t word, std::size_t lane) {
    auto& columns = tile[word / kTileWords][lane / kLanesPerTile][word % kTileWords];
    const std::size_t first_column = lane % kLanesPerTile * kColumnsPerLane;
    const std::uint32_t key = kWordKeys.Lane(lane)[word];
    for (std::size_t byte = 0; byte < kWordBytes; ++byte) {
      for (std::size_t k = 0; k < kWordBytes; ++k) {
        columns[first_column + byte + k][byte] = static_cast<std::uint8_t>(key >> (8 * k));
      }
    }
  }
};

const KeyTiles& Keys() {
  static const auto keys = std::make_unique<const KeyTiles>();
  return *keys;
}

// The operand of LDTILECFG, as the processor's manual lays it out.
struct TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

using TileSums = std::array<std::array<std::uint32_t, kTileColumns>, kTileRows>;

// The compiler does not know that tile instructions read and write memory: nothing may move across this.
inline void MemoryBarrier() { asm volatile("" ::: "memory"); }

// Tiles 0, 1: sums of the first 16 chunks (lanes 0-1, lanes 2-3). 2, 3: of the second 16. 4, 5: chunks. 6, 7: keys.
template <bool kSecondHalf>
[[gnu::target("amx-tile,amx-int8")]] void MultiplyTiles(const std::byte* chunks, const KeyTiles& keys,
                                                        const TileConfig& config, TileSums (&sums)[4]) {
  MemoryBarrier();
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kSecondHalf) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (std::size_t step = 0; step < kSteps; ++step) {
    const std::byte* bytes = chunks + step * kTileRowBytes;
    _tile_loadd(6, &keys.tile[step][0], kTileRowBytes);
    _tile_loadd(7, &keys.tile[step][1], kTileRowBytes);
    _tile_loadd(4, bytes, kChunkBytes);
    _tile_dpbuud(0, 4, 6);
    _tile_dpbuud(1, 4, 7);
    if constexpr (kSecondHalf) {
      _tile_loadd(5, bytes + kTileRows * kChunkBytes, kChunkBytes);
      _tile_dpbuud(2, 5, 6);
      _tile_dpbuud(3, 5, 7);
    }
  }
  _tile_stored(0, &sums[0], kTileRowBytes);
  _tile_stored(1, &sums[1], kTileRowBytes);
  if constexpr (kSecondHalf) {
    _tile_stored(2, &sums[2], kTileRowBytes);
    _tile_stored(3, &sums[3], kTileRowBytes);
  }
  _tile_release();
  MemoryBarrier();
}

TileConfig ConfigFor(std::size_t first_rows, std::size_t second_rows) {
  TileConfig config;
  const std::size_t rows[] = {first_rows, first_rows,  second_rows, second_rows,
                              first_rows, second_rows, kTileWords,  kTileWords};
  for (std::size_t t = 0; t < std::size(rows); ++t) {
    config.rows[t] = static_cast<std::uint8_t>(rows[t]);
    config.row_bytes[t] = rows[t] == 0 ? 0 : kTileRowBytes;
  }
  return config;
}

// The sum over s of columns[s] << 8s. Unrolled: as a loop it takes a sixth of the whole digest's time.
inline std::uint64_t WeightedSum(const std::uint32_t* columns) {
  std::uint64_t sum = 0;
#pragma GCC unroll 8
  for (std::size_t s = kUsedColumns; s > 0; --s) sum = (sum << 8) + columns[s - 1];
  return sum;
}

void SumChunks(const std::byte* chunks, std::size_t chunk_count, LaneSums* sums) {
  // Fewer rows cost as many key loads: below this the vector code is as fast.
  constexpr std::size_t kWorthATile = 4;
  if (chunk_count < kWorthATile) return kAvx512.sum_chunks(chunks, chunk_count, sums);

  alignas(64) TileSums tile_sums[4];
  const std::size_t first_rows = std::min(chunk_count, kTileRows);
  const TileConfig config = ConfigFor(first_rows, chunk_count - first_rows);
  if (chunk_count > kTileRows) {
    MultiplyTiles<true>(chunks, Keys(), config, tile_sums);
  } else {
    MultiplyTiles<false>(chunks, Keys(), config, tile_sums);
  }
  for (std::size_t c = 0; c < chunk_count; ++c) {
    for (std::size_t l = 0; l < kLanes; ++l) {
      const TileSums& tile = tile_sums[c / kTileRows * kKeyTiles + l / kLanesPerTile];
      const std::uint32_t* columns = tile[c % kTileRows].data() + l % kLanesPerTile * kColumnsPerLane;
      sums[c][l] = WeightedSum(columns);
    }
  }
}

void AddWords(std::size_t first_word, const std::byte* words, std::size_t word_count, LaneSums& sums) {
  kAvx512.add_words(first_word, words, word_count, sums);
}

bool ProcessorHasTiles() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kTileAndInt8 = 3u << 24;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & kTileAndInt8) == kTileAndInt8;
}

#if defined(__SANITIZE_THREAD__)
constexpr bool kTilesAllowed = false;  // ThreadSanitizer does not see what a tile reads.
#else
constexpr bool kTilesAllowed = true;
#endif

// The kernel saves tiles only for processes that asked for them (Linux 5.16); the permission holds for all threads.
bool RequestTiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return kTilesAllowed && ProcessorHasTiles() && kAvx512.available() &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool Available() {
  static const bool available = RequestTiles();
  return available;
}

}  // namespace

constinit const Variant kAmx = {"amx", Available, AddWords, SumChunks};

}  // namespace bascule::digest_internal
