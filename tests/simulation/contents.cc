#include "tests/simulation/contents.h"

#include <algorithm>
#include <map>
#include <utility>

#include "tests/support/scripted_engine/digest_oracle.h"

namespace bascule::simulation {
namespace {

constexpr int kBaseNumber = -1;  // older than what trainers make

Hash256 DigestOf(const std::vector<const Values*>& tensors) {
  std::vector<std::vector<std::byte>> bytes;
  for (std::size_t t = 0; t < tensors.size(); ++t) bytes.push_back(tensors[t]->WireBytes(t));
  return OracleVersionDigest(ShardedTrainer::WireTensors(kRows), bytes);
}

const Values& ValuesOf(int trainer_ranks, int number) {
  static std::map<std::pair<int, int>, std::unique_ptr<Values>> made;
  std::unique_ptr<Values>& values = made[{trainer_ranks, number}];
  if (values == nullptr) values = std::make_unique<Values>(trainer_ranks, number);
  return *values;
}

const Content& ContentWith(const std::vector<const Values*>& tensors) {
  static std::map<std::vector<const Values*>, std::unique_ptr<Content>> made;
  std::unique_ptr<Content>& content = made[tensors];
  if (content == nullptr) content = std::make_unique<Content>(tensors);
  return *content;
}

}  // namespace

std::span<const Scope> Scopes() {
  enum : std::size_t { kEmbed, kLayerBias, kLayerWeight, kNorm, kScale, kUpWeight };
  static const std::vector<Scope> scopes = {
      {{"layer.*"}, {kLayerBias, kLayerWeight}},
      {{"norm", "scale"}, {kNorm, kScale}},
      {{"embed", "up.*"}, {kEmbed, kUpWeight}},
      {{"*.weight", "layer.weight", "norm"}, {kLayerWeight, kNorm, kUpWeight}},
      {{"*"}, {kEmbed, kLayerBias, kLayerWeight, kNorm, kScale, kUpWeight}},
  };
  return scopes;
}

Values::Values(int trainer_ranks, int number)
    : trainer_ranks_(trainer_ranks), number_(number), held_(trainer_ranks, kRows) {
  held_.Fill(static_cast<std::uint32_t>(number * 16 + trainer_ranks));
  wire_bytes_ = held_.WireBytes();
  for (int ranks = 1; ranks <= kEngineRanksMost; ++ranks) {
    auto& by_rank = engine_bytes_.emplace_back();
    for (int rank = 0; rank < ranks; ++rank) {
      auto& by_tensor = by_rank.emplace_back();
      for (std::size_t t = 0; t < wire_bytes_.size(); ++t) {
        by_tensor.push_back(held_.EngineBytes(ranks, rank, static_cast<int>(t)));
      }
    }
  }
}

Content::Content(std::vector<const Values*> tensors) : tensors_(std::move(tensors)), digest_(DigestOf(tensors_)) {}

int Content::number() const {
  return (*std::ranges::max_element(tensors_, {}, [](const Values* values) { return values->number(); }))->number();
}

const Content& ContentOf(int trainer_ranks, int number) {
  static const std::size_t count = ShardedTrainer::WireTensors(kRows).size();
  return ContentWith(std::vector<const Values*>(count, &ValuesOf(trainer_ranks, number)));
}

const Content& BaseContent() { return ContentOf(1, kBaseNumber); }

const Content& Composed(const Content& sent, const Scope& scope, const Content& base) {
  std::vector<const Values*> tensors;
  for (std::size_t t = 0; t < base.tensor_count(); ++t) tensors.push_back(&base.Of(t));
  for (const std::size_t t : scope.tensors) tensors[t] = &sent.Of(t);
  return ContentWith(tensors);
}

}  // namespace bascule::simulation
