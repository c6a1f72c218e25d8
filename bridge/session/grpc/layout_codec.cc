#include <algorithm>
#include <cstring>
#include <utility>

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

// Per local tensor the logical one of its first row that has any, or null. A tensor mostly has its name and type, and
// rows mostly are all of both: what is so is not written.
std::vector<const TensorSpec*> TwinsOf(std::size_t locals, const std::vector<MapRow>& rows,
                                       const std::vector<TensorSpec>& tensors) {
  std::vector<const TensorSpec*> twins(locals);
  for (const MapRow& row : rows) {
    if (row.logical < 0 || std::cmp_greater_equal(row.logical, tensors.size())) continue;
    if (row.local < 0 || std::cmp_greater_equal(row.local, locals)) continue;
    const TensorSpec*& twin = twins[static_cast<std::size_t>(row.local)];
    if (twin == nullptr) twin = &tensors[static_cast<std::size_t>(row.logical)];
  }
  return twins;
}

void ToProto(const LocalTensor& tensor, const TensorSpec* twin, v1::LocalTensor* proto) {
  if (twin == nullptr || tensor.name != twin->name) proto->set_name(tensor.name);
  if (twin == nullptr || tensor.dtype != twin->dtype) proto->set_dtype(std::string(DTypeName(tensor.dtype)));
  Append(tensor.shape, proto->mutable_shape());
  Append(tensor.stride, proto->mutable_stride());
}

// The shape that a box is all of when nothing is written, or null.
template <typename Tensor>
const Dims* ShapeAt(std::int32_t index, const std::vector<Tensor>& tensors) {
  if (index < 0 || std::cmp_greater_equal(index, tensors.size())) return nullptr;
  return &tensors[static_cast<std::size_t>(index)].shape;
}

bool IsWhole(const Box& box, const Dims* shape) { return shape != nullptr && box == Box::Whole(*shape); }

Result<LocalTensor> LocalFromProto(const v1::LocalTensor& proto, const TensorSpec* twin) {
  LocalTensor tensor;
  tensor.name = proto.name().empty() && twin != nullptr ? twin->name : proto.name();
  if (proto.dtype().empty() && twin != nullptr) {
    tensor.dtype = twin->dtype;
  } else {
    ASSIGN_OR_RETURN(tensor.dtype, DTypeFromProto("local.dtype", proto.dtype()));
  }
  ASSIGN_OR_RETURN(tensor.shape, DimsFromProto("local.shape", proto.shape()));
  ASSIGN_OR_RETURN(tensor.stride, DimsFromProto("local.stride", proto.stride()));
  return tensor;
}

Result<Box> BoxFromProto(std::string_view field, bool is_written, const v1::Box& proto, const Dims* whole) {
  if (is_written) return BoxFromProto(field, proto);
  if (whole == nullptr) return BadMessage(field, "all of a tensor that is not there");
  return Box::Whole(*whole);
}

// Indices alone: what stands for all of a tensor needs the tensors first.
std::vector<MapRow> RowIndices(const v1::RankLayout& proto) {
  std::vector<MapRow> rows(static_cast<std::size_t>(proto.rows_size()));
  for (int i = 0; i < proto.rows_size(); ++i) {
    rows[static_cast<std::size_t>(i)].local = proto.rows(i).local();
    rows[static_cast<std::size_t>(i)].logical = proto.rows(i).logical();
  }
  return rows;
}

Result<RankLayout> RankFromProto(const v1::RankLayout& proto, const std::vector<TensorSpec>& tensors) {
  RankLayout rank{.tensors = {}, .rows = RowIndices(proto)};
  rank.tensors.reserve(static_cast<std::size_t>(proto.tensors_size()));
  const auto twins = TwinsOf(static_cast<std::size_t>(proto.tensors_size()), rank.rows, tensors);
  for (int i = 0; i < proto.tensors_size(); ++i) {
    ASSIGN_OR_RETURN(LocalTensor local, LocalFromProto(proto.tensors(i), twins[static_cast<std::size_t>(i)]));
    rank.tensors.push_back(std::move(local));
  }
  for (int i = 0; i < proto.rows_size(); ++i) {
    MapRow& row = rank.rows[static_cast<std::size_t>(i)];
    const v1::MapRow& written = proto.rows(i);
    ASSIGN_OR_RETURN(row.local_box, BoxFromProto("row.local_box", written.has_local_box(), written.local_box(),
                                                 ShapeAt(row.local, rank.tensors)));
    const bool is_fill = row.logical == kFill;
    if (is_fill && !written.has_logical_box()) continue;
    ASSIGN_OR_RETURN(row.logical_box, BoxFromProto("row.logical_box", written.has_logical_box(), written.logical_box(),
                                                   ShapeAt(row.logical, tensors)));
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
    const auto twins = TwinsOf(rank.tensors.size(), rank.rows, layout.tensors);
    for (std::size_t t = 0; t < twins.size(); ++t) ToProto(rank.tensors[t], twins[t], rank_proto->add_tensors());
    for (const MapRow& row : rank.rows) {
      v1::MapRow* row_proto = rank_proto->add_rows();
      row_proto->set_local(row.local);
      if (!IsWhole(row.local_box, ShapeAt(row.local, rank.tensors))) {
        ToProto(row.local_box, row_proto->mutable_local_box());
      }
      row_proto->set_logical(row.logical);
      const bool is_fill = row.logical == kFill;
      if (is_fill ? row.logical_box.dims() > 0 : !IsWhole(row.logical_box, ShapeAt(row.logical, layout.tensors))) {
        ToProto(row.logical_box, row_proto->mutable_logical_box());
      }
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
    ASSIGN_OR_RETURN(RankLayout rank_layout, RankFromProto(rank, layout.tensors));
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
  proto->mutable_scope()->Add(offer.scope.begin(), offer.scope.end());
  if (offer.base) ToProto(*offer.base, proto->mutable_base());
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
  offer.scope.assign(proto.scope().begin(), proto.scope().end());
  if (proto.has_base()) {
    ASSIGN_OR_RETURN(offer.base, FromProto(proto.base()));
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
