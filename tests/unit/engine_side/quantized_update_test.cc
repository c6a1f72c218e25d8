// Versions of a quantised model one after another into a running holder: what the map says of weights and scales lies
// outside the memory that an update replaces.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "bridge/send/publish_session.h"
#include "bridge/send/source_digest.h"
#include "bridge/session/loopback/loopback_control.h"
#include "bridge/transport/loopback/dialer.h"
#include "bridge/transport/loopback/listener.h"
#include "engine_side/peer_sender.h"
#include "engine_side/weight_receiver.h"
#include "model/engine_layout.h"

namespace bascule {
namespace {

using ::testing::HasSubstr;

constexpr int kRanks = 2;

ModelConfig ConfigWith(Quantization quantization) {
  ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.layers = 1;
  config.hidden = 256;
  config.query_heads = 4;
  config.kv_heads = 2;
  config.head_size = 128;
  config.ffn = 512;
  config.vocabulary = 128;
  config.max_positions = 64;
  config.quantization = std::move(quantization);
  return config;
}

Quantization OfAllLinears(WeightScheme scheme) {
  return {.method = "compressed-tensors", .groups = {{{"Linear"}, std::move(scheme)}}, .ignored = {"lm_head"}};
}

std::vector<Quantization> Quantizations() {
  return {Fp8BlockQuantization(), OfAllLinears({.storage = WeightStorage::kFp8}),
          OfAllLinears({.storage = WeightStorage::kFp8, .group = {1, 0}}),
          OfAllLinears({.storage = WeightStorage::kPacked, .bits = 4, .group = {1, 32}})};
}

// Random bytes for every tensor of the model, weights and scales.
class Version final : public WeightSource {
 public:
  Version(std::vector<TensorSpec> tensors, unsigned seed) : layout_(PlainLayout(std::move(tensors))) {
    std::mt19937 random(seed);
    for (const TensorSpec& tensor : layout_.tensors) {
      data_.emplace_back(static_cast<std::size_t>(tensor.Bytes()));
      std::generate(data_.back().begin(), data_.back().end(), [&] { return static_cast<std::byte>(random()); });
    }
  }
  const Layout& layout() const override { return layout_; }
  const std::byte* Base(int, int tensor) const override { return data_[static_cast<std::size_t>(tensor)].data(); }

  std::size_t IndexOf(const std::string& name) const {
    const auto found = std::ranges::find(layout_.tensors, name, &TensorSpec::name);
    return static_cast<std::size_t>(found - layout_.tensors.begin());
  }
  // One tensor becomes that of another version.
  void Take(const Version& other, const std::string& name) { data_[IndexOf(name)] = other.data_[IndexOf(name)]; }
  void Exchange(const std::string& one, const std::string& other) {
    std::swap(data_[IndexOf(one)], data_[IndexOf(other)]);
  }
  std::vector<TensorDigest> Digests() const { return *DigestSource(*this, layout_.tensors, 1); }

 private:
  const Layout layout_;
  std::vector<std::vector<std::byte>> data_;
};

// What an engine of the model holds, without what decodes.
class Holder {
 public:
  explicit Holder(const ModelConfig& config, int ranks = kRanks)
      : layout_(MakeEngineLayout(config, DType::kBf16, {.tensor = ranks})->layout),
        families_(*QuantizationFamilies(config)),
        listener_(*LoopbackListener::Create(network_, "engine")),
        receiver_(*WeightReceiver::Create({.layout = layout_, .families = families_, .listeners = {listener_.get()}},
                                          hooks_)),
        serving_(*control_.Listen("engine",
                                  [this](ControlChannel& channel) { static_cast<void>(receiver_->Serve(channel)); })) {}

  // `recorded` digests, where given, are those that the version must have.
  Status Publish(const WeightSource& source, std::uint64_t number, const std::vector<TensorDigest>& recorded = {}) {
    return Publish(source, number, recorded, {});
  }
  // What `scope` leaves out, where it is one, stays as it is.
  Status Publish(const WeightSource& source, std::uint64_t number, const std::vector<TensorDigest>& recorded,
                 const std::vector<std::string>& scope) {
    LoopbackDialer dialer(network_);
    ConnectionOptions connection;
    connection.address = "engine";
    connection.control = &control_;
    connection.transports = {&dialer};
    VersionOffer offer{.run = "run", .number = number, .new_run = number == 1, .labels = {}, .families = families_};
    connection.plan.scope = scope;
    if (!scope.empty()) offer.base = receiver_->status().live;
    for (std::size_t t = 0; t < recorded.size(); ++t) offer.recorded[source.layout().tensors[t].name] = recorded[t];
    return PublishOnce(source, std::move(connection), std::move(offer),
                       Deadline::After(Clock::Real(), std::chrono::minutes(1)))
        .status;
  }

  // What is live here to another.
  Status SendTo(Holder& other, const std::vector<QuantizationFamily>& families) {
    LoopbackDialer dialer(other.network_);
    ConnectionOptions connection;
    connection.address = "engine";
    connection.control = &other.control_;
    connection.transports = {&dialer};
    return SendLive(*receiver_, families, std::move(connection),
                    Deadline::After(Clock::Real(), std::chrono::minutes(1)))
        .status;
  }

  const Layout& layout() const { return layout_; }
  const std::vector<QuantizationFamily>& families() const { return families_; }
  WeightReceiver& receiver() { return *receiver_; }
  // All memory of the live version, rank after rank.
  std::vector<std::vector<std::byte>> LiveBytes() {
    const WeightLease lease = receiver_->AcquireLive();
    std::vector<std::vector<std::byte>> bytes;
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto tensors = static_cast<int>(layout_.ranks[static_cast<std::size_t>(rank)].tensors.size());
      for (int t = 0; t < tensors; ++t) {
        const std::span<const std::byte> tensor = lease.Tensor(rank, t);
        bytes.emplace_back(tensor.begin(), tensor.end());
      }
    }
    return bytes;
  }

 private:
  IdleHooks hooks_;
  LoopbackControl control_;
  LoopbackNetwork network_;
  const Layout layout_;
  const std::vector<QuantizationFamily> families_;
  std::unique_ptr<LoopbackListener> listener_;
  std::unique_ptr<WeightReceiver> receiver_;
  std::unique_ptr<LoopbackControl::Listener> serving_;
};

// C-083.
TEST(QuantizedUpdateTest, EveryUpdateEqualsAColdLoadOfTheSameBytesInEveryFamily) {
  for (const Quantization& quantization : Quantizations()) {
    SCOPED_TRACE(quantization.ToString());
    const ModelConfig config = ConfigWith(quantization);
    Holder updated(config);
    ASSERT_FALSE(updated.families().empty());
    for (unsigned number = 1; number <= 4; ++number) {
      const Version version(updated.layout().tensors, number);
      Holder cold(config);
      ASSERT_TRUE(cold.Publish(version, 1).ok());

      const Status status = updated.Publish(version, number);

      ASSERT_TRUE(status.ok()) << status.ToString();
      EXPECT_EQ(updated.LiveBytes(), cold.LiveBytes()) << number;
      EXPECT_EQ(updated.receiver().DigestLive()->totals, version.Digests()) << number;
    }
  }
}

TEST(QuantizedUpdateTest, AnEngineSendsItsFamiliesToOneOfAnotherCutAsAColdLoadHasThem) {
  for (const Quantization& quantization : Quantizations()) {
    SCOPED_TRACE(quantization.ToString());
    const ModelConfig config = ConfigWith(quantization);
    Holder sender(config, /*ranks=*/1);
    Holder taker(config);
    Holder cold(config);
    const Version version(sender.layout().tensors, 1);
    ASSERT_TRUE(sender.Publish(version, 1).ok());
    ASSERT_TRUE(cold.Publish(version, 1).ok());

    EXPECT_EQ(sender.SendTo(taker, {}).reason(), "families_differ");
    const Status sent = sender.SendTo(taker, sender.families());

    ASSERT_TRUE(sent.ok()) << sent.ToString();
    EXPECT_EQ(taker.LiveBytes(), cold.LiveBytes());
    EXPECT_EQ(taker.receiver().status().live, sender.receiver().status().live);
  }
}

TEST(QuantizedUpdateTest, AScopeHasAFamilyAsAWholeOrNotAtAll) {
  Holder holder(ConfigWith(Fp8BlockQuantization()));
  const std::string mlp = "model.layers.0.mlp.";
  const Version first(holder.layout().tensors, 1);
  Version second(holder.layout().tensors, 2);
  ASSERT_TRUE(holder.Publish(first, 1).ok());

  const Status split = holder.Publish(second, 2, {}, {mlp + "*.weight"});
  const Status whole = holder.Publish(second, 3, {}, {mlp + "*"});

  EXPECT_EQ(split.reason(), "family_split") << split.ToString();
  EXPECT_THAT(split.message(), HasSubstr("the scope has 1 of 2 tensors of " + mlp + "down_proj"));
  EXPECT_TRUE(whole.ok()) << whole.ToString();
  for (const TensorSpec& tensor : holder.layout().tensors) {
    if (!tensor.name.starts_with(mlp)) second.Take(first, tensor.name);
  }
  EXPECT_EQ(holder.receiver().DigestLive()->totals, second.Digests());
}

// C-085: a scale of step n-1 under the digests on record of step n.
TEST(QuantizedUpdateTest, AScaleOfAnotherVersionOrWeightIsRefusedAndTheLiveVersionStays) {
  Holder holder(ConfigWith(Fp8BlockQuantization()));
  const std::string scale = holder.families()[0].members[1];
  const Version first(holder.layout().tensors, 1);
  const Version second(holder.layout().tensors, 2);
  ASSERT_TRUE(holder.Publish(first, 1, first.Digests()).ok());
  Version mixed(holder.layout().tensors, 2);
  mixed.Take(first, scale);

  const Status status = holder.Publish(mixed, 2, second.Digests());

  EXPECT_EQ(status.reason(), "digest_mismatch") << status.ToString();
  EXPECT_THAT(status.message(), HasSubstr(scale));
  EXPECT_EQ(holder.receiver().status().live->number, 1U);
  EXPECT_EQ(holder.receiver().DigestLive()->totals, first.Digests());
}

// C-085: gate's scales with up's weights and the other way round; types and shapes agree.
TEST(QuantizedUpdateTest, TwoScalesThatChangedPlacesAreRefusedByNameAndTheLiveVersionStays) {
  Holder holder(ConfigWith(Fp8BlockQuantization()));
  const std::string mlp = "model.layers.0.mlp.";
  const Version first(holder.layout().tensors, 1);
  const Version second(holder.layout().tensors, 2);
  ASSERT_TRUE(holder.Publish(first, 1, first.Digests()).ok());
  Version exchanged(holder.layout().tensors, 2);
  exchanged.Exchange(mlp + "gate_proj.weight_scale_inv", mlp + "up_proj.weight_scale_inv");

  const Status status = holder.Publish(exchanged, 2, second.Digests());

  EXPECT_EQ(status.reason(), "digest_mismatch") << status.ToString();
  EXPECT_THAT(status.message(), HasSubstr("_proj.weight_scale_inv"));
  EXPECT_EQ(holder.receiver().status().live->number, 1U);
  EXPECT_EQ(holder.receiver().DigestLive()->totals, first.Digests());
}

// C-085.
TEST(QuantizedUpdateTest, AVersionWithoutOneScaleIsRefusedByItsName) {
  Holder holder(ConfigWith(Fp8BlockQuantization()));
  const std::string scale = holder.families()[0].members[1];
  std::vector<TensorSpec> tensors = holder.layout().tensors;
  std::erase_if(tensors, [&](const TensorSpec& tensor) { return tensor.name == scale; });

  const Status status = holder.Publish(Version(tensors, 1), 1);

  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr(scale));
  EXPECT_FALSE(holder.receiver().status().live.has_value());
}

}  // namespace
}  // namespace bascule
