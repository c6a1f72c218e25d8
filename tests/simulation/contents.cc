#include "tests/simulation/contents.h"

#include "tests/support/scripted_engine/digest_oracle.h"

namespace bascule::simulation {
namespace {

struct Contents {
  std::map<std::pair<int, int>, std::unique_ptr<Content>> made;
  std::map<Hash256, const Content*> by_digest;
};

Contents& All() {
  static Contents contents;
  return contents;
}

}  // namespace

Content::Content(int trainer_ranks, int number) : number_(number), values_(trainer_ranks, kRows) {
  values_.Fill(static_cast<std::uint32_t>(number * 16 + trainer_ranks));
  const std::vector<TensorSpec> tensors = ShardedTrainer::WireTensors(kRows);
  digest_ = OracleVersionDigest(tensors, values_.WireBytes());
  for (int ranks = 1; ranks <= kEngineRanksMost; ++ranks) {
    auto& by_rank = engine_bytes_.emplace_back();
    for (int rank = 0; rank < ranks; ++rank) {
      auto& by_tensor = by_rank.emplace_back();
      for (std::size_t t = 0; t < tensors.size(); ++t) {
        by_tensor.push_back(values_.EngineBytes(ranks, rank, static_cast<int>(t)));
      }
    }
  }
}

const Content& ContentOf(int trainer_ranks, int number) {
  std::unique_ptr<Content>& content = All().made[{trainer_ranks, number}];
  if (content == nullptr) {
    content = std::make_unique<Content>(trainer_ranks, number);
    All().by_digest[content->digest()] = content.get();
  }
  return *content;
}

const Content& BaseContent() {
  constexpr int kBaseNumber = 1'000'000;
  return ContentOf(1, kBaseNumber);
}

const Content* FindContent(const Hash256& digest) {
  const auto found = All().by_digest.find(digest);
  return found == All().by_digest.end() ? nullptr : found->second;
}

}  // namespace bascule::simulation
