#include <algorithm>
#include <cstring>

#include "bridge/session/grpc/layout_codec_internal.h"

namespace bascule {
namespace {

using Int64s = google::protobuf::RepeatedField<std::int64_t>;

void Append(const Dims& dims, Int64s* proto) { proto->Add(dims.begin(), dims.end()); }

Result<Dims> DimsFromProto(std::string_view field, const Int64s& proto) {
  if (proto.size() > kMaxDims) return BadMessage(field, fmt::format("{} dimensions, most={}", proto.size(), kMaxDims));
  Dims dims;
  for (const std::int64_t value : proto) {
    if (value < 0) return BadMessage(field, fmt::format("{} is negative", value));
    dims.push_back(value);
  }
  return dims;
}

Result<DType> DTypeFromProto(std::string_view field, const std::string& name) {
  const Result<DType> dtype = ParseDType(name);
  if (!dtype.ok()) return BadMessage(field, dtype.status().message());
  return *dtype;
}

void ToProto(const Box& box, v1::Box* proto) {
  Append(box.offset, proto->mutable_offset());
  Append(box.extent, proto->mutable_extent());
}

Result<Box> BoxFromProto(std::string_view field, const v1::Box& proto) {
  ASSIGN_OR_RETURN(const Dims offset, DimsFromProto(field, proto.offset()));
  ASSIGN_OR_RETURN(const Dims extent, DimsFromProto(field, proto.extent()));
  if (offset.size() != extent.size()) return BadMessage(field, "offset and extent differ in dimensions");
  return Box{offset, extent};
}

Result<LocalTensor> LocalFromProto(const v1::LocalTensor& proto) {
  LocalTensor tensor;
  tensor.name = proto.name();
  ASSIGN_OR_RETURN(tensor.dtype, DTypeFromProto("local.dtype", proto.dtype()));
  ASSIGN_OR_RETURN(tensor.shape, DimsFromProto("local.shape", proto.shape()));
  ASSIGN_OR_RETURN(tensor.stride, DimsFromProto("local.stride", proto.stride()));
  return tensor;
}

Result<MapRow> RowFromProto(const v1::MapRow& proto) {
  MapRow row;
  row.local = proto.local();
  row.logical = proto.logical();
  ASSIGN_OR_RETURN(row.local_box, BoxFromProto("row.local_box", proto.local_box()));
  ASSIGN_OR_RETURN(row.logical_box, BoxFromProto("row.logical_box", proto.logical_box()));
  return row;
}

Result<RankLayout> RankFromProto(const v1::RankLayout& proto) {
  RankLayout rank;
  rank.tensors.reserve(static_cast<std::size_t>(proto.tensors_size()));
  rank.rows.reserve(static_cast<std::size_t>(proto.rows_size()));
  for (const v1::LocalTensor& tensor : proto.tensors()) {
    ASSIGN_OR_RETURN(LocalTensor local, LocalFromProto(tensor));
    rank.tensors.push_back(std::move(local));
  }
  for (const v1::MapRow& row : proto.rows()) {
    ASSIGN_OR_RETURN(MapRow map_row, RowFromProto(row));
    rank.rows.push_back(std::move(map_row));
  }
  return rank;
}

}  // namespace

Status BadMessage(std::string_view field, std::string_view why) {
  return Status::DataLoss("bad_message", fmt::format("{}: {}", field, why));
}

std::string ToProto(const Hash256& hash) {
  return std::string(reinterpret_cast<const char*>(hash.bytes.data()), hash.bytes.size());
}

Result<Hash256> HashFromProto(std::string_view field, const std::string& bytes, bool may_be_empty) {
  Hash256 hash;
  if (may_be_empty && bytes.empty()) return hash;
  if (bytes.size() != hash.bytes.size()) return BadMessage(field, fmt::format("{} bytes, want 32", bytes.size()));
  std::memcpy(hash.bytes.data(), bytes.data(), bytes.size());
  return hash;
}

void ToProto(const TensorSpec& tensor, v1::TensorSpec* proto) {
  proto->set_name(tensor.name);
  proto->set_dtype(std::string(DTypeName(tensor.dtype)));
  Append(tensor.shape, proto->mutable_shape());
}

Result<TensorSpec> FromProto(const v1::TensorSpec& proto) {
  TensorSpec tensor;
  tensor.name = proto.name();
  ASSIGN_OR_RETURN(tensor.dtype, DTypeFromProto("tensor.dtype", proto.dtype()));
  ASSIGN_OR_RETURN(tensor.shape, DimsFromProto("tensor.shape", proto.shape()));
  return tensor;
}

void ToProto(const Layout& layout, v1::Layout* proto) {
  for (const TensorSpec& tensor : layout.tensors) ToProto(tensor, proto->add_tensors());
  for (const RankLayout& rank : layout.ranks) {
    v1::RankLayout* rank_proto = proto->add_ranks();
    for (const LocalTensor& tensor : rank.tensors) {
      v1::LocalTensor* local = rank_proto->add_tensors();
      local->set_name(tensor.name);
      local->set_dtype(std::string(DTypeName(tensor.dtype)));
      Append(tensor.shape, local->mutable_shape());
      Append(tensor.stride, local->mutable_stride());
    }
    for (const MapRow& row : rank.rows) {
      v1::MapRow* row_proto = rank_proto->add_rows();
      row_proto->set_local(row.local);
      ToProto(row.local_box, row_proto->mutable_local_box());
      row_proto->set_logical(row.logical);
      ToProto(row.logical_box, row_proto->mutable_logical_box());
    }
  }
}

Result<Layout> FromProto(const v1::Layout& proto) {
  Layout layout;
  layout.tensors.reserve(static_cast<std::size_t>(proto.tensors_size()));
  layout.ranks.reserve(static_cast<std::size_t>(proto.ranks_size()));
  for (const v1::TensorSpec& tensor : proto.tensors()) {
    ASSIGN_OR_RETURN(TensorSpec spec, FromProto(tensor));
    layout.tensors.push_back(std::move(spec));
  }
  for (const v1::RankLayout& rank : proto.ranks()) {
    ASSIGN_OR_RETURN(RankLayout rank_layout, RankFromProto(rank));
    layout.ranks.push_back(std::move(rank_layout));
  }
  return layout;
}

void ToProto(const WeightVersion& version, v1::WeightVersion* proto) {
  proto->set_run(version.run);
  proto->set_number(version.number);
  if (!version.digest.IsZero()) proto->set_digest(ToProto(version.digest));
}

Result<WeightVersion> FromProto(const v1::WeightVersion& proto) {
  ASSIGN_OR_RETURN(const Hash256 digest, HashFromProto("version.digest", proto.digest(), /*may_be_empty=*/true));
  return WeightVersion{proto.run(), proto.number(), digest};
}

void ToProto(const ManifestOffer& offer, v1::ManifestOffer* proto) {
  proto->set_format_version(offer.format_version);
  proto->set_run(offer.run);
  proto->set_number(offer.number);
  proto->set_new_run(offer.new_run);
  proto->set_model(offer.model);
  for (const TensorSpec& tensor : offer.tensors) ToProto(tensor, proto->add_tensors());
  proto->set_sender_layout(ToProto(offer.sender_layout));
  for (const auto& [label, text] : offer.labels) (*proto->mutable_labels())[label] = text;
  for (const QuantizationFamily& family : offer.families) {
    v1::QuantizationFamily* added = proto->add_families();
    added->set_name(family.name);
    added->set_scheme(family.scheme);
    added->mutable_members()->Add(family.members.begin(), family.members.end());
  }
}

Result<ManifestOffer> FromProto(const v1::ManifestOffer& proto) {
  ManifestOffer offer;
  offer.format_version = proto.format_version();
  offer.run = proto.run();
  offer.number = proto.number();
  offer.new_run = proto.new_run();
  offer.model = proto.model();
  for (const v1::TensorSpec& tensor : proto.tensors()) {
    ASSIGN_OR_RETURN(TensorSpec spec, FromProto(tensor));
    offer.tensors.push_back(std::move(spec));
  }
  ASSIGN_OR_RETURN(offer.sender_layout, HashFromProto("manifest.sender_layout", proto.sender_layout()));
  for (const auto& [label, text] : proto.labels()) offer.labels[label] = text;
  for (const v1::QuantizationFamily& family : proto.families()) {
    offer.families.push_back({family.name(), family.scheme(), {family.members().begin(), family.members().end()}});
  }
  return offer;
}

void ToProto(const TensorDigest& digest, v1::TensorDigest* proto) {
  proto->mutable_lane()->Add(digest.lane.begin(), digest.lane.end());
}

Result<TensorDigest> DigestFromProto(std::string_view field, const v1::TensorDigest& proto) {
  TensorDigest digest;
  if (proto.lane_size() != kDigestLanes) return BadMessage(field, fmt::format("{} lanes", proto.lane_size()));
  std::copy(proto.lane().begin(), proto.lane().end(), digest.lane.begin());
  return digest;
}

void ToProto(const ManifestSeal& seal, v1::ManifestSeal* proto) {
  for (const TensorDigest& digest : seal.digests) ToProto(digest, proto->add_digests());
  proto->set_version_digest(ToProto(seal.version_digest));
}

Result<ManifestSeal> FromProto(const v1::ManifestSeal& proto) {
  ManifestSeal seal;
  for (const v1::TensorDigest& lanes : proto.digests()) {
    ASSIGN_OR_RETURN(const TensorDigest digest, DigestFromProto("seal.digests", lanes));
    seal.digests.push_back(digest);
  }
  ASSIGN_OR_RETURN(seal.version_digest, HashFromProto("seal.version_digest", proto.version_digest()));
  return seal;
}

}  // namespace bascule
