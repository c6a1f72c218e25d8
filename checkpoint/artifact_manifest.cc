#include "checkpoint/artifact_manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/hex.h"
#include "checkpoint/json_fields_internal.h"
#include "checkpoint/layout_json_internal.h"

namespace bascule {
namespace {

constexpr std::string_view kFormat = "bascule-artifact";
constexpr int kFormatVersion = 2;
constexpr std::string_view kChecksumKey = ",\"sha256\":\"";
constexpr std::size_t kChecksumDigits = 64;

// ---- writing ----

OrderedJson FingerprintJson(const ArtifactFingerprint& fingerprint) {
  return {{"architecture", fingerprint.architecture},
          {"parallel",
           {{"tensor", fingerprint.tensor},
            {"pipeline", fingerprint.pipeline},
            {"expert_parallel", fingerprint.expert_parallel}}},
          {"dtype", fingerprint.dtype},
          {"quantization", fingerprint.quantization},
          {"sha256", Sha256Of(fingerprint.ToString()).ToHex()}};
}

OrderedJson TextOrNull(const std::string& text) { return text.empty() ? OrderedJson(nullptr) : OrderedJson(text); }

OrderedJson TensorsJson(const ArtifactManifest& manifest) {
  OrderedJson list = OrderedJson::array();
  for (std::size_t t = 0; t < manifest.layout.tensors.size(); ++t) {
    OrderedJson tensor = LayoutSpecJson(manifest.layout.tensors[t]);
    tensor["digest"] = manifest.digests[t].ToHex();
    list.push_back(std::move(tensor));
  }
  return list;
}

OrderedJson FamiliesJson(const std::vector<QuantizationFamily>& families) {
  OrderedJson list = OrderedJson::array();
  for (const QuantizationFamily& family : families) {
    list.push_back({{"name", family.name}, {"scheme", family.scheme}, {"members", family.members}});
  }
  return list;
}

OrderedJson RanksJson(const ArtifactManifest& manifest) {
  OrderedJson list = OrderedJson::array();
  for (std::size_t r = 0; r < manifest.ranks.size(); ++r) {
    const ArtifactRank& rank = manifest.ranks[r];
    OrderedJson entry = {
        {"rank", r}, {"file", rank.file}, {"bytes", rank.bytes}, {"content_digest", rank.content.ToHex()}};
    AddMap(manifest.layout.ranks[r], entry);
    list.push_back(std::move(entry));
  }
  return list;
}

// ---- reading ----

Result<ArtifactFingerprint> ReadFingerprint(const Fields& object) {
  ArtifactFingerprint fingerprint;
  ASSIGN_OR_RETURN(fingerprint.architecture, object.Text("architecture"));
  ASSIGN_OR_RETURN(fingerprint.dtype, object.Text("dtype"));
  ASSIGN_OR_RETURN(fingerprint.quantization, object.Text("quantization"));
  ASSIGN_OR_RETURN(const Fields parallel, object.Of("parallel"));
  ASSIGN_OR_RETURN(const Fields tensor, parallel.Of("tensor"));
  ASSIGN_OR_RETURN(fingerprint.tensor, ReadIndex(tensor));
  ASSIGN_OR_RETURN(const Fields pipeline, parallel.Of("pipeline"));
  ASSIGN_OR_RETURN(fingerprint.pipeline, ReadIndex(pipeline));
  ASSIGN_OR_RETURN(fingerprint.expert_parallel, parallel.Flag("expert_parallel"));
  return fingerprint;
}

Result<Hash256> ReadHash(const Fields& object, const char* key) {
  ASSIGN_OR_RETURN(const std::string text, object.Text(key));
  const auto bytes = BytesOfHex(text);
  Hash256 hash;
  if (!bytes.ok() || bytes->size() != hash.bytes.size()) return object.Bad(fmt::format("{} is no hash", key));
  std::copy(bytes->begin(), bytes->end(), hash.bytes.begin());
  return hash;
}

// As TensorDigest::ToHex: 16 digits a lane, the highest first.
Result<TensorDigest> ReadDigest(const Fields& object) {
  ASSIGN_OR_RETURN(const Hash256 hash, ReadHash(object, "digest"));
  TensorDigest digest;
  for (std::size_t i = 0; i < hash.bytes.size(); ++i) {
    digest.lane[i / 8] = digest.lane[i / 8] << 8 | std::to_integer<std::uint64_t>(hash.bytes[i]);
  }
  return digest;
}

Status ReadTensors(const Fields& root, ArtifactManifest& manifest) {
  ASSIGN_OR_RETURN(const std::vector<Fields> tensors, root.List("tensors"));
  for (const Fields& tensor : tensors) {
    RETURN_IF_ERROR(ReadLayoutSpec(tensor, manifest.layout.tensors.emplace_back()));
    ASSIGN_OR_RETURN(const TensorDigest digest, ReadDigest(tensor));
    manifest.digests.push_back(digest);
  }
  return OkStatus();
}

Result<std::vector<std::string>> ReadTexts(const Fields& object, std::string_view key) {
  ASSIGN_OR_RETURN(const std::vector<Fields> items, object.List(key));
  std::vector<std::string> texts;
  for (const Fields& item : items) {
    ASSIGN_OR_RETURN(std::string text, item.AsText());
    texts.push_back(std::move(text));
  }
  return texts;
}

Status ReadFamilies(const Fields& root, std::vector<QuantizationFamily>& families) {
  ASSIGN_OR_RETURN(const std::vector<Fields> items, root.List("families"));
  for (const Fields& item : items) {
    QuantizationFamily& family = families.emplace_back();
    ASSIGN_OR_RETURN(family.name, item.Text("name"));
    ASSIGN_OR_RETURN(family.scheme, item.Text("scheme"));
    ASSIGN_OR_RETURN(family.members, ReadTexts(item, "members"));
  }
  return OkStatus();
}

Status ReadRanks(const Fields& root, ArtifactManifest& manifest) {
  ASSIGN_OR_RETURN(const std::vector<Fields> ranks, root.List("ranks"));
  for (const Fields& entry : ranks) {
    ArtifactRank& rank = manifest.ranks.emplace_back();
    ASSIGN_OR_RETURN(rank.file, entry.Text("file"));
    if (rank.file.empty() || rank.file.front() == '.' || rank.file.find('/') != std::string::npos) {
      return entry.Bad("file is not a plain name");
    }
    ASSIGN_OR_RETURN(const Fields bytes, entry.Of("bytes"));
    ASSIGN_OR_RETURN(rank.bytes, bytes.AsCount());
    ASSIGN_OR_RETURN(rank.content, ReadHash(entry, "content_digest"));
    ASSIGN_OR_RETURN(RankLayout layout, ReadMap(entry));
    manifest.layout.ranks.push_back(std::move(layout));
  }
  return OkStatus();
}

Status ReadSource(const Fields& root, ArtifactManifest& manifest) {
  ASSIGN_OR_RETURN(const Fields source, root.Of("source"));
  ASSIGN_OR_RETURN(RankLayout stored, ReadMap(source));
  manifest.stored.tensors = manifest.layout.tensors;
  manifest.stored.ranks.push_back(std::move(stored));
  ASSIGN_OR_RETURN(manifest.ignored, ReadTexts(source, "ignored"));
  ASSIGN_OR_RETURN(manifest.source_digest, ReadHash(source, "version_digest"));
  return OkStatus();
}

Status ReadOrigin(const Fields& root, ModelOrigin& origin) {
  ASSIGN_OR_RETURN(const Fields object, root.Of("origin"));
  ASSIGN_OR_RETURN(origin.model_id, object.TextOrNull("model_id"));
  ASSIGN_OR_RETURN(origin.model_revision, object.TextOrNull("model_revision"));
  ASSIGN_OR_RETURN(origin.tokenizer_revision, object.TextOrNull("tokenizer_revision"));
  return OkStatus();
}

// What the parts say of each other.
Status CheckManifest(const ArtifactManifest& manifest) {
  const auto bad = [](std::string message) { return Status::DataLoss("bad_artifact", std::move(message)); };
  for (const auto& [what, layout] : {std::pair("ranks", &manifest.layout), std::pair("source", &manifest.stored)}) {
    if (const Status status = CheckLayout(*layout); !status.ok())
      return bad(fmt::format("{}: {}", what, status.message()));
  }
  const ArtifactFingerprint& fingerprint = manifest.fingerprint;
  if (std::int64_t{fingerprint.tensor} * fingerprint.pipeline != std::ssize(manifest.ranks)) {
    return bad(fmt::format("{} rank files for {}", manifest.ranks.size(), fingerprint.ToString()));
  }
  if (VersionDigestOf(manifest.layout.tensors, manifest.digests) != manifest.version_digest) {
    return bad("the version digest is not that of the tensors");
  }
  const Status families = CheckQuantizationFamilies(manifest.families, manifest.layout.tensors);
  return families.ok() ? families : bad(families.message());
}

// The text before its checksum, once that is found right.
Result<std::string_view> CheckedBody(std::string_view text) {
  const auto altered = [](std::string_view why) {
    return Status::DataLoss("artifact_altered", fmt::format("manifest.json {}", why));
  };
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  const std::size_t tail_bytes = kChecksumKey.size() + kChecksumDigits + 2;  // closing quote and brace
  if (text.size() < tail_bytes) return altered("is cut short");
  const std::string_view body = text.substr(0, text.size() - tail_bytes);
  const std::string_view tail = text.substr(body.size());
  if (!tail.starts_with(kChecksumKey) || !tail.ends_with("\"}")) return altered("does not end in its checksum");
  if (tail.substr(kChecksumKey.size(), kChecksumDigits) != Sha256Of(body).ToHex()) {
    return altered("is not what was written: its checksum differs");
  }
  return body;
}

}  // namespace

std::string ArtifactFingerprint::ToString() const {
  return fmt::format("{}; tensor={} pipeline={} expert_parallel={}; dtype={}; quantization={}", architecture, tensor,
                     pipeline, expert_parallel, dtype, quantization);
}

std::string WriteArtifactManifest(const ArtifactManifest& manifest) {
  OrderedJson source = {{"version_digest", manifest.source_digest.ToHex()}, {"ignored", manifest.ignored}};
  AddMap(manifest.stored.ranks.at(0), source);
  const OrderedJson root = {{"format", kFormat},
                            {"format_version", kFormatVersion},
                            {"fingerprint", FingerprintJson(manifest.fingerprint)},
                            {"origin",
                             {{"model_id", TextOrNull(manifest.origin.model_id)},
                              {"model_revision", TextOrNull(manifest.origin.model_revision)},
                              {"tokenizer_revision", TextOrNull(manifest.origin.tokenizer_revision)}}},
                            {"version_digest", manifest.version_digest.ToHex()},
                            {"tensors", TensorsJson(manifest)},
                            {"families", FamiliesJson(manifest.families)},
                            {"ranks", RanksJson(manifest)},
                            {"source", std::move(source)},
                            {"config", manifest.config_json}};
  std::string text = root.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  text.pop_back();  // the closing brace
  return fmt::format("{}{}{}\"}}\n", text, kChecksumKey, Sha256Of(text).ToHex());
}

Result<ArtifactManifest> ReadArtifactManifest(std::string_view text) {
  ASSIGN_OR_RETURN(const std::string_view body, CheckedBody(text));
  const OrderedJson json = OrderedJson::parse(std::string(body) + "}", nullptr, /*allow_exceptions=*/false);
  const Fields root(json, "manifest.json", "bad_artifact");
  ASSIGN_OR_RETURN(const std::string format, root.Text("format"));
  ASSIGN_OR_RETURN(const Fields version, root.Of("format_version"));
  ASSIGN_OR_RETURN(const std::int64_t format_version, version.AsCount());
  if (format != kFormat || format_version != kFormatVersion) {
    return root.Bad(
        fmt::format("format {} version {}; known: {} version {}", format, format_version, kFormat, kFormatVersion));
  }
  ArtifactManifest manifest;
  ASSIGN_OR_RETURN(const Fields fingerprint, root.Of("fingerprint"));
  ASSIGN_OR_RETURN(manifest.fingerprint, ReadFingerprint(fingerprint));
  RETURN_IF_ERROR(ReadOrigin(root, manifest.origin));
  ASSIGN_OR_RETURN(manifest.config_json, root.Text("config"));
  RETURN_IF_ERROR(ReadTensors(root, manifest));
  ASSIGN_OR_RETURN(manifest.version_digest, ReadHash(root, "version_digest"));
  RETURN_IF_ERROR(ReadFamilies(root, manifest.families));
  RETURN_IF_ERROR(ReadRanks(root, manifest));
  RETURN_IF_ERROR(ReadSource(root, manifest));
  RETURN_IF_ERROR(CheckManifest(manifest));
  return manifest;
}

}  // namespace bascule
