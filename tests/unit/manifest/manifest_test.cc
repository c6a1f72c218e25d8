#include "bridge/manifest/manifest.h"

#include <gtest/gtest.h>

#include <functional>

namespace bascule {
namespace {

ManifestOffer GoodOffer() {
  ManifestOffer offer;
  offer.run = "grpo-17";
  offer.number = 3;
  offer.model = "LlamaForCausalLM layers=2";
  offer.tensors = {{"a", DType::kF32, {2, 3}}, {"b", DType::kBf16, {}}};
  offer.labels = {{"step", "3"}};
  offer.families = {{"m", "fp8 128x128 weight_scale_inv", {"a", "b"}}};
  return offer;
}

TEST(ManifestTest, AVersionReadsAsRunAndNumber) {
  EXPECT_EQ((WeightVersion{"grpo-17", 7, {}}).ToString(), "grpo-17@7");
}

// The constants come from tests/support/python/version_digest_known_answers.py.
TEST(ManifestTest, KeysEqualAnIndependentComputation) {
  EXPECT_EQ(KeyOf({"model.norm.weight", DType::kBf16, {64}}),
            (DigestKey{{0xd87f8e5a5bb189b8, 0x1fe1565b127474df, 0xade244fe98bb4c1f, 0xb9a45c0d8877ff5e}}));
  EXPECT_EQ(KeyOf({"scale", DType::kF32, {}}),
            (DigestKey{{0xc9e9406e86041f89, 0xb7119af92e2cac94, 0xd146f7f67df60bfb, 0x7afd285fe76a72ec}}));
}

TEST(ManifestTest, KeysDependOnNameDtypeAndShape) {
  const DigestKey key = KeyOf({"w", DType::kBf16, {4, 6}});

  EXPECT_NE(KeyOf({"v", DType::kBf16, {4, 6}}), key);
  EXPECT_NE(KeyOf({"w", DType::kF16, {4, 6}}), key);
  EXPECT_NE(KeyOf({"w", DType::kBf16, {6, 4}}), key);
}

TEST(ManifestTest, TheVersionDigestEqualsAnIndependentComputationInAnyOrder) {
  const TensorSpec norm{"model.norm.weight", DType::kBf16, {64}};
  const TensorSpec a{"a", DType::kF32, {2, 3}};
  const TensorSpec scale{"scale", DType::kF32, {}};
  const TensorDigest norm_digest{{1, 2, 3, 4}};
  const TensorDigest a_digest{{0xfedcba9876543210, 0, 0xffffffffffffffff, 7}};

  const Hash256 digest = VersionDigestOf({norm, a, scale}, {norm_digest, a_digest, {}});

  EXPECT_EQ(digest.ToHex(), "2db9a79706823aedc546e7c4c8f647e4ac3c1dbca325951e15ad08ae09072d66");
  EXPECT_EQ(VersionDigestOf({a, scale, norm}, {a_digest, {}, norm_digest}), digest);
  EXPECT_NE(VersionDigestOf({a, scale, norm}, {norm_digest, {}, a_digest}), digest);
}

TEST(ManifestTest, AGoodOfferPassesAndAnEmptyModelIsAllowed) {
  EXPECT_TRUE(CheckOffer(GoodOffer()).ok());
  ManifestOffer offer = GoodOffer();
  offer.model.clear();
  EXPECT_TRUE(CheckOffer(offer).ok());
  offer.scope = {"a*", "b"};
  offer.base = {"grpo-17", 2, {}};
  EXPECT_TRUE(CheckOffer(offer).ok());
}

struct BadOfferCase {
  std::function<void(ManifestOffer&)> damage;
  const char* message;  // a part of it
};

TEST(ManifestTest, EveryRuleOfAnOfferIsChecked) {
  const BadOfferCase cases[] = {
      {[](ManifestOffer& o) { o.format_version = 2; }, "format_version=2"},
      {[](ManifestOffer& o) { o.run = ""; }, "no name"},
      {[](ManifestOffer& o) { o.run = std::string(257, 'r'); }, "257 bytes"},
      {[](ManifestOffer& o) { o.number = std::uint64_t{1} << 63; }, "number=9223372036854775808, most="},
      {[](ManifestOffer& o) { o.model = std::string(4097, 'm'); }, "4097 bytes"},
      {[](ManifestOffer& o) { std::swap(o.tensors[0], o.tensors[1]); }, "unsorted: b before a"},
      {[](ManifestOffer& o) { o.tensors.push_back(o.tensors[1]); }, "two tensors are named b"},
      {[](ManifestOffer& o) { o.tensors[1].name = std::string(1025, 'x'); }, "1025 bytes"},
      {[](ManifestOffer& o) { o.tensors[1].name = "x\ny"; }, "control character"},
      {[](ManifestOffer& o) { o.tensors[0].shape = {-1}; }, "negative"},
      {[](ManifestOffer& o) {
         o.tensors[0].shape = {std::int64_t{1} << 62, 4};
       },
       "2^63"},
      {[](ManifestOffer& o) { o.labels[""] = "x"; }, "label has no name"},
      {[](ManifestOffer& o) { o.labels["x"] = std::string(1025, 'y'); }, "label x has 1025 bytes"},
      {[](ManifestOffer& o) {
         for (int i = 0; i < 64; ++i) o.labels["l" + std::to_string(i)] = "";
       },
       "65 labels"},
      {[](ManifestOffer& o) { o.families[0].members.pop_back(); }, "family m has no scale"},
      {[](ManifestOffer& o) { o.families[0].members[1] = "c"; }, "family m: c is not offered"},
      {[](ManifestOffer& o) {
         o.families.push_back({"n", "", {"a", "b"}});
       },
       "in two families"},
      {[](ManifestOffer& o) { o.families.push_back(o.families[0]); }, "unsorted: family m before m"},
      {[](ManifestOffer& o) { o.families[0].scheme = std::string(1025, 's'); }, "1025 bytes"},
      {[](ManifestOffer& o) { o.scope = {"a"}; }, "belong together"},
      {[](ManifestOffer& o) {
         o.base = {"run", 2, {}};
       },
       "belong together"},
      {[](ManifestOffer& o) {
         o.scope = {std::string(1025, '*')};
         o.base = {"run", 2, {}};
       },
       "1025 bytes"},
      {[](ManifestOffer& o) {
         o.scope = {"a"};
         o.base = {"", 2, {}};
       },
       "base's run has no name"},
      {[](ManifestOffer& o) {
         o.scope = {"a"};
         o.base = {std::string(257, 'r'), 2, {}};
       },
       "257 bytes"},
  };
  for (const BadOfferCase& c : cases) {
    ManifestOffer offer = GoodOffer();
    c.damage(offer);

    const Status status = CheckOffer(offer);

    EXPECT_EQ(status.reason(), "bad_manifest") << c.message;
    EXPECT_NE(status.message().find(c.message), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace bascule
