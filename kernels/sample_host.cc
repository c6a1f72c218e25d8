#include "kernels/sample.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/status.h"
#include "kernels/exact_internal.h"

namespace bascule {
namespace {

constexpr std::array<std::uint32_t, 2> kPhiloxMultiplier = {0xD2511F53, 0xCD9E8D57};
constexpr std::array<std::uint32_t, 2> kPhiloxWeyl = {0x9E3779B9, 0xBB67AE85};
constexpr int kPhiloxRounds = 10;

double Sum(std::span<const float> weights) {
  double sum = 0;
  for (const float weight : weights) sum += weight;
  return sum;
}

// The first id at which the running sum of `weights` passes `uniform` times their total.
std::size_t InverseCdf(std::span<const float> weights, double uniform) {
  const auto run_of = [&](std::size_t first) {
    return weights.subspan(first, std::min<std::size_t>(kCdfRun, weights.size() - first));
  };
  double total = 0;
  for (std::size_t first = 0; first < weights.size(); first += kCdfRun) total += Sum(run_of(first));
  double before = 0;
  for (std::size_t first = 0; first < weights.size(); first += kCdfRun) {
    const double run_sum = Sum(run_of(first));
    if (before + run_sum > uniform * total) {
      double sum = 0;
      for (std::size_t id = first;; ++id) {
        sum += weights[id];
        if (before + sum > uniform * total) return id;
      }
    }
    before += run_sum;
  }
  const auto last = std::find_if(weights.rbegin(), weights.rend(), [](float weight) { return weight > 0; });
  return last == weights.rend() ? 0 : static_cast<std::size_t>(weights.rend() - last) - 1;
}

bool Contains(std::span<const std::int32_t> ids, std::size_t id) {
  return std::any_of(ids.begin(), ids.end(), [id](std::int32_t one) { return std::cmp_equal(one, id); });
}

// The first of the largest logits that are not banned; the first of all when every one is.
std::size_t LargestAllowed(std::span<const float> logits, std::span<const std::int32_t> banned) {
  std::size_t best = logits.size();
  for (std::size_t id = 0; id < logits.size(); ++id) {
    if ((best == logits.size() || logits[id] > logits[best]) && !Contains(banned, id)) best = id;
  }
  return best == logits.size() ? LargestAllowed(logits, {}) : best;
}

void DropWeights(std::span<const std::int32_t> ids, std::span<float> weights) {
  for (const std::int32_t id : ids) {
    if (id >= 0 && std::cmp_less(id, weights.size())) weights[static_cast<std::size_t>(id)] = 0;
  }
}

// Ids by falling score, equal ones by rising id, of which the first `count` are in order.
class Ranking {
 public:
  explicit Ranking(std::span<const float> scores) : scores_(scores), ids_(scores.size()) {
    std::iota(ids_.begin(), ids_.end(), 0);
  }
  std::span<const std::size_t> First(std::size_t count) {
    count = std::min(count, ids_.size());
    if (count > sorted_) {
      const auto at = [this](std::size_t i) { return ids_.begin() + static_cast<std::ptrdiff_t>(i); };
      std::partial_sort(at(sorted_), at(count), ids_.end(), [this](std::size_t a, std::size_t b) {
        return scores_[a] != scores_[b] ? scores_[a] > scores_[b] : a < b;
      });
      sorted_ = count;
    }
    return std::span(ids_).first(count);
  }

 private:
  std::span<const float> scores_;
  std::vector<std::size_t> ids_;
  std::size_t sorted_ = 0;
};

// The fewest first ids that have at least top_p of the weight of the first `among`, most often few of them.
std::span<const std::size_t> Nucleus(std::span<const float> weights, Ranking& ranking, std::size_t among, float top_p) {
  double total = 0;
  if (among == weights.size()) {
    for (const float weight : weights) total += weight;
  } else {
    for (const std::size_t id : ranking.First(among)) total += weights[id];
  }
  double sum = 0;
  for (std::size_t count = 0, sorted = 64;; ++count) {
    if (count == among || sum >= static_cast<double>(top_p) * total) return ranking.First(count);
    if (count == sorted) sorted *= 8;
    sum += weights[ranking.First(std::min(sorted, among))[count]];
  }
}

// Leaves weight to the candidates of `rule` only.
void KeepCandidates(const SampleRule& rule, std::span<float> weights) {
  const bool cut = rule.top_k > 0 && std::cmp_less(rule.top_k, weights.size());
  if (!cut && rule.top_p >= 1) return;
  const std::size_t among = cut ? static_cast<std::size_t>(rule.top_k) : weights.size();
  const std::vector<float> all(weights.begin(), weights.end());
  Ranking ranking(all);
  const auto kept = rule.top_p < 1 ? Nucleus(all, ranking, among, rule.top_p) : ranking.First(among);
  std::fill(weights.begin(), weights.end(), 0.0F);
  for (const std::size_t id : kept) weights[id] = all[id];
}

bool AllFinite(std::span<const float> logits) {
  return std::all_of(logits.begin(), logits.end(), [](float logit) { return std::isfinite(logit); });
}

}  // namespace

std::array<std::uint32_t, 4> Philox4x32(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t first = std::uint64_t{kPhiloxMultiplier[0]} * counter[0];
    const std::uint64_t second = std::uint64_t{kPhiloxMultiplier[1]} * counter[2];
    counter = {static_cast<std::uint32_t>(second >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(second),
               static_cast<std::uint32_t>(first >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(first)};
    key = {key[0] + kPhiloxWeyl[0], key[1] + kPhiloxWeyl[1]};
  }
  return counter;
}

double UniformAt(std::uint64_t seed, std::uint64_t position, std::uint32_t sample) {
  const auto word = [](std::uint64_t bits) { return static_cast<std::uint32_t>(bits); };
  const auto random = Philox4x32({word(position), word(position >> 32), sample, 0}, {word(seed), word(seed >> 32)});
  const std::uint64_t bits = (std::uint64_t{random[1]} << 32 | random[0]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

std::optional<SampledToken> SampleOnHost(std::span<const float> logits, const SampleRule& rule, double uniform,
                                         std::span<float> scratch, Isa isa) {
  CHECK(!logits.empty() && scratch.size() == logits.size());
  CHECK(std::cmp_less(rule.given, logits.size()));
  if (!AllFinite(logits)) return std::nullopt;
  const exact_internal::ExactKernels& kernels = exact_internal::KernelsOf(isa);
  const auto size = static_cast<std::int64_t>(logits.size());
  const float largest = kernels.largest(logits.data(), size);
  const float normaliser = kernels.exponentials(logits.data(), size, largest, 1.0f, scratch.data());
  const auto logprob = [&](std::size_t id) {
    return static_cast<float>(static_cast<double>(logits[id]) - static_cast<double>(largest) -
                              std::log(static_cast<double>(normaliser)));
  };
  std::size_t id = rule.given >= 0 ? static_cast<std::size_t>(rule.given) : LargestAllowed(logits, rule.banned);
  if (rule.given < 0 && rule.temperature > 0) {
    if (rule.temperature != 1 || logits[id] != largest) {
      kernels.exponentials(logits.data(), size, logits[id], rule.temperature, scratch.data());
    }
    if (!Contains(rule.banned, id)) DropWeights(rule.banned, scratch);
    KeepCandidates(rule, scratch);
    id = InverseCdf(scratch, uniform);
  }
  SampledToken token{.id = static_cast<std::int32_t>(id), .logprob = logprob(id), .top = {}};
  if (rule.top_logprobs > 0) {
    Ranking ranking(logits);
    for (const std::size_t top : ranking.First(static_cast<std::size_t>(rule.top_logprobs))) {
      token.top.push_back({static_cast<std::int32_t>(top), logprob(top)});
    }
  }
  return token;
}

}  // namespace bascule
