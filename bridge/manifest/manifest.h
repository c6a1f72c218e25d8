// What a version is. The *offer* is known before the first byte moves; the *seal* holds the digests, which senders
// compute while they pack. Together they are the manifest.
//
// Thread-safety: thread-compatible (values).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "base/status.h"
#include "bridge/layout/layout.h"
#include "kernels/digest.h"

namespace bascule {

// Version identity: numbers rise within a run and are never reused, also after a rollback.
struct WeightVersion {
  std::string run;
  std::uint64_t number = 0;
  Hash256 digest;                // version digest
  std::string ToString() const;  // "run@7"
  friend bool operator==(const WeightVersion&, const WeightVersion&) = default;
};

// Tensors that only mean something together, complete or refused: a quantised weight, its scales and zero points.
struct QuantizationFamily {
  std::string name;                  // of the module: "model.layers.0.mlp.down_proj"
  std::string scheme;                // one line: "fp8 128x128 weight_scale_inv"
  std::vector<std::string> members;  // tensors, the weight first
  friend bool operator==(const QuantizationFamily&, const QuantizationFamily&) = default;
};

struct ManifestOffer {
  std::uint32_t format_version = 1;
  std::string run;
  std::uint64_t number = 0;
  bool new_run = false;  // the publisher says that `run` starts here; its number may be any
  // Architecture and sizes in one line, e.g. "LlamaForCausalLM layers=2 hidden=64 ..."; empty: not compared.
  std::string model;
  std::vector<TensorSpec> tensors;  // wire specs (engine storage dtype), sorted by name
  Hash256 sender_layout;
  std::map<std::string, std::string> labels;
  std::vector<QuantizationFamily> families;  // sorted by name
  // Of a partial version: patterns of the tensors that are sent (PlanOptions::scope), and the version that has all
  // others. The version is what both make together: `tensors`, and the digests of the seal, are of the whole.
  std::vector<std::string> scope = {};
  std::optional<WeightVersion> base = {};
  friend bool operator==(const ManifestOffer&, const ManifestOffer&) = default;
};

struct ManifestSeal {
  std::vector<TensorDigest> digests;  // in the order of ManifestOffer::tensors
  Hash256 version_digest;
  friend bool operator==(const ManifestSeal&, const ManifestSeal&) = default;
};

// The digest key of a logical tensor: seed[l] is little-endian word l of SHA-256 of
// name "\n" DTYPE "\n" d0,d1,... (decimal, empty for a scalar).
DigestKey KeyOf(const TensorSpec& tensor);

// SHA-256 over the tensors sorted by name of: name "\n" DTYPE "\n" d0,d1,... "\n" digest in hex "\n".
// `digests` are in the order of `tensors`, which need not be sorted.
Hash256 VersionDigestOf(const std::vector<TensorSpec>& tensors, const std::vector<TensorDigest>& digests);

inline constexpr std::size_t kMaxRunBytes = 256;
inline constexpr std::size_t kMaxModelBytes = 4096;
inline constexpr std::size_t kMaxLabels = 64;
inline constexpr std::size_t kMaxLabelBytes = 1024;

// InvalidArgument "bad_manifest"  families unsorted, of fewer than two members, of members that are none of `tensors`
//                                or in another family too; names too long
Status CheckQuantizationFamilies(const std::vector<QuantizationFamily>& families,
                                 const std::vector<TensorSpec>& tensors);

// InvalidArgument "bad_manifest"  unsorted, duplicate or over-long names, empty run, too many labels; a family with a
//                                member that is no tensor of the offer, or is in another family too; a scope without a
//                                base, or the other way round
Status CheckOffer(const ManifestOffer& offer);

}  // namespace bascule
