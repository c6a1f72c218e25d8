#include "tests/support/scripted_engine/digest_oracle.h"

#include <cstdint>
#include <cstring>
#include <string>

namespace bascule {
namespace {

constexpr std::uint64_t kGamma = 0x9e3779b97f4a7c15;

std::uint64_t SplitMixFinal(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

std::string NameTypeAndShape(const TensorSpec& tensor) {
  std::string text = tensor.name + "\n" + std::string(DTypeName(tensor.dtype)) + "\n";
  for (int d = 0; d < tensor.shape.size(); ++d) text += (d > 0 ? "," : "") + std::to_string(tensor.shape[d]);
  return text;
}

std::uint64_t LittleEndian(std::span<const std::byte> bytes) {
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) number |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
  return number;
}

}  // namespace

TensorDigest OracleDigest(const TensorSpec& tensor, std::span<const std::byte> bytes) {
  const Hash256 seeds = Sha256Of(NameTypeAndShape(tensor));
  TensorDigest digest;
  for (std::size_t lane = 0; lane < 4; ++lane) {
    const std::uint64_t seed = LittleEndian(std::span(seeds.bytes).subspan(lane * 8, 8));
    for (std::size_t at = 0; at < bytes.size(); at += 4) {
      const std::uint64_t word = LittleEndian(bytes.subspan(at, std::min<std::size_t>(4, bytes.size() - at)));
      const std::uint64_t chunk = at / 4096;
      const std::uint64_t index = at % 4096 / 4;
      const std::uint64_t a = SplitMixFinal(seed + (chunk + 1) * kGamma) | 1;
      const std::uint64_t b = (SplitMixFinal(0x42617363756c65 + (lane * 1024 + index + 1) * kGamma) >> 32) | 1;
      digest.lane[lane] += a * (b * word);
    }
  }
  return digest;
}

Hash256 OracleVersionDigest(const std::vector<TensorSpec>& tensors, const std::vector<std::vector<std::byte>>& bytes) {
  std::string text;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    text += NameTypeAndShape(tensors[i]) + "\n";
    for (const std::uint64_t lane : OracleDigest(tensors[i], bytes[i]).lane) text += fmt::format("{:016x}", lane);
    text += "\n";
  }
  return Sha256Of(text);
}

}  // namespace bascule
