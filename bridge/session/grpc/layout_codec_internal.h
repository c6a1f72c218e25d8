// The parts of session messages that describe tensors, to protobuf and back.
#pragma once

#include "bascule/v1/layout.pb.h"
#include "bascule/v1/manifest.pb.h"
#include "bridge/layout/layout.h"
#include "bridge/manifest/manifest.h"

namespace bascule {

Status BadMessage(std::string_view field, std::string_view why);

void ToProto(const TensorSpec& tensor, v1::TensorSpec* proto);
void ToProto(const Layout& layout, v1::Layout* proto);
void ToProto(const WeightVersion& version, v1::WeightVersion* proto);
void ToProto(const ManifestOffer& offer, v1::ManifestOffer* proto);
void ToProto(const TensorDigest& digest, v1::TensorDigest* proto);
void ToProto(const ManifestSeal& seal, v1::ManifestSeal* proto);
std::string ToProto(const Hash256& hash);

// Each: DataLoss "bad_message".
Result<TensorSpec> FromProto(const v1::TensorSpec& proto);
Result<Layout> FromProto(const v1::Layout& proto);
Result<WeightVersion> FromProto(const v1::WeightVersion& proto);
Result<ManifestOffer> FromProto(const v1::ManifestOffer& proto);
Result<TensorDigest> DigestFromProto(std::string_view field, const v1::TensorDigest& proto);
Result<ManifestSeal> FromProto(const v1::ManifestSeal& proto);
// 32 bytes, or none for a zero hash where `may_be_empty`.
Result<Hash256> HashFromProto(std::string_view field, const std::string& bytes, bool may_be_empty = false);

}  // namespace bascule
