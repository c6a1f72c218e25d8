#include "bridge/manifest/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <unordered_set>

namespace bascule {
namespace {

// A run whose last number is taken could not go on: the number that wraps around has been given away before.
constexpr std::uint64_t kMaxNumber = std::numeric_limits<std::int64_t>::max();

Status BadManifest(std::string message) { return Status::InvalidArgument("bad_manifest", std::move(message)); }

Status CheckText(std::string_view what, const std::string& text, std::size_t bytes_max) {
  if (text.size() <= bytes_max) return OkStatus();
  return BadManifest(fmt::format("{} has {} bytes, most={}", what, text.size(), bytes_max));
}

// name "\n" DTYPE "\n" d0,d1,...
std::string KeyText(const TensorSpec& tensor) {
  return fmt::format("{}\n{}\n{}", tensor.name, DTypeName(tensor.dtype),
                     fmt::join(tensor.shape.begin(), tensor.shape.end(), ","));
}

Status CheckScope(const ManifestOffer& offer) {
  if (offer.scope.empty() != !offer.base) return BadManifest("a scope and a base belong together");
  for (const std::string& pattern : offer.scope)
    RETURN_IF_ERROR(CheckText("pattern of the scope", pattern, kMaxNameBytes));
  if (!offer.base) return OkStatus();
  if (offer.base->run.empty()) return BadManifest("the base's run has no name");
  return CheckText("the base's run", offer.base->run, kMaxRunBytes);
}

Status CheckLabels(const std::map<std::string, std::string>& labels) {
  if (labels.size() > kMaxLabels) {
    return BadManifest(fmt::format("{} labels, most={}", labels.size(), kMaxLabels));
  }
  for (const auto& [label, text] : labels) {
    if (label.empty()) return BadManifest("a label has no name");
    RETURN_IF_ERROR(CheckText("label name", label, kMaxLabelBytes));
    RETURN_IF_ERROR(CheckText("label " + label, text, kMaxLabelBytes));
  }
  return OkStatus();
}

}  // namespace

std::string WeightVersion::ToString() const { return fmt::format("{}@{}", run, number); }

DigestKey KeyOf(const TensorSpec& tensor) {
  const Hash256 hash = Sha256Of(KeyText(tensor));
  DigestKey key;
  for (std::size_t i = 0; i < key.seed.size() * 8; ++i) {
    key.seed[i / 8] |= std::to_integer<std::uint64_t>(hash.bytes[i]) << (8 * (i % 8));
  }
  return key;
}

Hash256 VersionDigestOf(const std::vector<TensorSpec>& tensors, const std::vector<TensorDigest>& digests) {
  CHECK(tensors.size() == digests.size());
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return tensors[a].name < tensors[b].name; });
  Sha256 hash;
  for (const std::size_t i : order) {
    hash.Add(KeyText(tensors[i]));
    hash.Add(fmt::format("\n{}\n", digests[i].ToHex()));
  }
  return hash.Finish();
}

Status CheckQuantizationFamilies(const std::vector<QuantizationFamily>& families,
                                 const std::vector<TensorSpec>& tensors) {
  std::unordered_set<std::string_view> free;
  for (const TensorSpec& tensor : tensors) free.insert(tensor.name);
  for (std::size_t i = 0; i < families.size(); ++i) {
    const QuantizationFamily& family = families[i];
    RETURN_IF_ERROR(CheckText("family name", family.name, kMaxNameBytes));
    RETURN_IF_ERROR(CheckText("family scheme", family.scheme, kMaxLabelBytes));
    if (i > 0 && families[i - 1].name >= family.name) {
      return BadManifest(fmt::format("unsorted: family {} before {}", families[i - 1].name, family.name));
    }
    if (family.members.size() < 2) return BadManifest(fmt::format("family {} has no scale", family.name));
    for (const std::string& member : family.members) {
      if (free.erase(member) > 0) continue;
      return BadManifest(fmt::format("family {}: {} is not offered, or in two families", family.name,
                                     member.substr(0, kMaxNameBytes)));
    }
  }
  return OkStatus();
}

Status CheckOffer(const ManifestOffer& offer) {
  if (offer.format_version != 1) {
    return BadManifest(fmt::format("format_version={}, known: 1", offer.format_version));
  }
  if (offer.run.empty()) return BadManifest("the run has no name");
  RETURN_IF_ERROR(CheckText("run", offer.run, kMaxRunBytes));
  if (offer.number > kMaxNumber) {
    return BadManifest(fmt::format("number={}, most={}; a new run may begin at any number", offer.number, kMaxNumber));
  }
  RETURN_IF_ERROR(CheckText("model", offer.model, kMaxModelBytes));
  RETURN_IF_ERROR(CheckLabels(offer.labels));
  RETURN_IF_ERROR(CheckScope(offer));
  if (const Status status = CheckTensors(offer.tensors); !status.ok()) return BadManifest(status.message());
  for (std::size_t i = 1; i < offer.tensors.size(); ++i) {
    if (offer.tensors[i - 1].name < offer.tensors[i].name) continue;
    return BadManifest(fmt::format("unsorted: {} before {}", offer.tensors[i - 1].name, offer.tensors[i].name));
  }
  return CheckQuantizationFamilies(offer.families, offer.tensors);
}

}  // namespace bascule
