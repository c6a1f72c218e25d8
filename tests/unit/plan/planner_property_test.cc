// Any two layouts, any bucket size: a plan moves every byte once to where the engine's map wants it.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "bridge/plan/planner.h"
#include "bridge/plan/twins.h"
#include "tests/unit/plan/random_layouts.h"

namespace bascule {
namespace {

constexpr int kRounds = 400;

PlanOptions RandomOptions(std::mt19937_64& random) {
  return {.bucket_bytes = 4096 + 64 * static_cast<std::int64_t>(random() % 128), .ignore = {}};
}

// Runs `check(pair, plan, options)` over random layouts, each with its own printed seed.
template <typename Check>
void ForRandomPlans(const Check& check) {
  for (std::uint64_t seed = 1; seed <= kRounds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed=" << seed);
    std::mt19937_64 random(seed);
    const RandomPair pair = MakeRandomPair(random);
    PlanOptions options = RandomOptions(random);
    options.twins = seed % 2 == 0;
    const Result<Plan> plan = MakePlan(pair.sender, pair.engine, options);
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    check(pair, *plan, options);
    if (testing::Test::HasFatalFailure()) return;
  }
}

const LocalTensor& LocalOf(const Layout& layout, std::int32_t rank, std::int32_t tensor) {
  return layout.ranks[static_cast<std::size_t>(rank)].tensors[static_cast<std::size_t>(tensor)];
}

// Carries out `plan` element by element; counts what each engine element and each logical element gets.
struct Simulation {
  Simulation(const RandomPair& pair, const Plan& plan) : sender(MemoryOf(pair.sender)), engine(GarbageOf(pair.engine)) {
    for (const Bucket& bucket : plan.buckets) {
      const Route route = plan.routes[static_cast<std::size_t>(bucket.route)];
      for (const Slice& slice : bucket.slices) Move(pair, plan, route, slice);
    }
  }

  void Move(const RandomPair& pair, const Plan& plan, Route route, const Slice& slice) {
    const TensorSpec& spec = plan.tensors[static_cast<std::size_t>(slice.tensor)];
    const auto from = PositionsOf(slice.sender_box, LocalOf(pair.sender, route.sender_rank, slice.sender_tensor).shape);
    const auto to = PositionsOf(slice.engine_box, LocalOf(pair.engine, route.engine_rank, slice.engine_tensor).shape);
    const auto logical = PositionsOf(slice.logical_box, spec.shape);
    ASSERT_EQ(from.size(), to.size());
    ASSERT_EQ(from.size(), logical.size());
    auto& source = sender[static_cast<std::size_t>(route.sender_rank)][static_cast<std::size_t>(slice.sender_tensor)];
    auto& target = engine[static_cast<std::size_t>(route.engine_rank)][static_cast<std::size_t>(slice.engine_tensor)];
    for (std::size_t i = 0; i < from.size(); ++i) {
      const std::uint64_t id = source[static_cast<std::size_t>(from[i])];
      ASSERT_EQ(id, IdOf(spec.name, logical[i])) << spec.name << slice.logical_box.ToString();
      std::uint64_t& element = target[static_cast<std::size_t>(to[i])];
      ASSERT_EQ(element, kGarbage) << "written twice: " << spec.name << slice.logical_box.ToString();
      element = id;
      if (slice.counts) ++counted[id];
    }
  }

  std::vector<RankMemory> sender;
  std::vector<RankMemory> engine;
  std::map<std::uint64_t, int> counted;
};

// C-013.
TEST(PlannerPropertyTest, EveryEngineRankGetsExactlyWhatReassemblingAndCuttingGives) {
  ForRandomPlans([](const RandomPair& pair, const Plan& plan, const PlanOptions&) {
    Simulation simulation(pair, plan);
    if (testing::Test::HasFatalFailure()) return;
    std::vector<RankMemory> expected = MemoryOf(pair.engine);
    for (std::size_t r = 0; r < expected.size(); ++r) {
      for (std::size_t t = 0; t < expected[r].size(); ++t) {
        // Padding is the receiver's to write; no slice touches it.
        for (std::uint64_t& id : expected[r][t]) id = id == kFillId ? kGarbage : id;
        ASSERT_EQ(simulation.engine[r][t], expected[r][t]) << "engine rank " << r << " tensor " << t;
      }
    }
  });
}

TEST(PlannerPropertyTest, EveryLogicalElementCountsExactlyOnceOverAllEngineRanks) {
  ForRandomPlans([](const RandomPair& pair, const Plan& plan, const PlanOptions&) {
    Simulation simulation(pair, plan);
    if (testing::Test::HasFatalFailure()) return;
    std::size_t elements = 0;
    for (const TensorSpec& tensor : plan.tensors) elements += static_cast<std::size_t>(tensor.Elements());

    ASSERT_EQ(simulation.counted.size(), elements);
    for (const auto& [id, count] : simulation.counted) ASSERT_EQ(count, 1);
  });
}

// Each bucket's routes, and those of its twins.
std::vector<std::vector<std::int32_t>> RoutesOfTwins(const Plan& plan) {
  std::vector<std::vector<std::int32_t>> routes;
  while (routes.size() < plan.buckets.size()) {
    const auto first = static_cast<std::uint32_t>(routes.size());
    std::vector<std::int32_t> shared;
    for (std::uint32_t b = first; b < first + CountTwins(plan, first); ++b) shared.push_back(plan.buckets[b].route);
    routes.insert(routes.end(), shared.size(), shared);
  }
  return routes;
}

TEST(PlannerPropertyTest, BucketsHoldWholeAlignedSlicesBelowTheLimitInTheEnginesOrder) {
  ForRandomPlans([](const RandomPair&, const Plan& plan, const PlanOptions& options) {
    std::int64_t payload_bytes = 0;
    const std::vector<std::vector<std::int32_t>> routes = RoutesOfTwins(plan);
    std::map<std::pair<std::int32_t, std::vector<std::int32_t>>, std::int32_t> last_tensor;
    for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
      const Bucket& bucket = plan.buckets[b];
      std::int32_t& last = last_tensor[{bucket.route, routes[b]}];
      ASSERT_FALSE(bucket.slices.empty());
      ASSERT_LE(bucket.payload_bytes, options.bucket_bytes);
      std::int64_t end = 0;
      for (const Slice& slice : bucket.slices) {
        const TensorSpec& spec = plan.tensors[static_cast<std::size_t>(slice.tensor)];
        ASSERT_EQ(slice.payload_offset % kSliceAlignment, 0);
        ASSERT_GE(slice.payload_offset, end);
        ASSERT_LT(slice.payload_offset - end, kSliceAlignment);
        ASSERT_EQ(slice.payload_bytes, slice.logical_box.Elements() * ItemBytes(spec.dtype));
        ASSERT_GT(slice.payload_bytes, 0);
        ASSERT_GE(slice.tensor, last);
        last = slice.tensor;
        end = slice.payload_offset + slice.payload_bytes;
        payload_bytes += slice.payload_bytes;
      }
      ASSERT_EQ(bucket.payload_bytes, end);
    }
    ASSERT_EQ(plan.payload_bytes, payload_bytes);
  });
}

// The ranks of `sender` that hold all of `box`.
std::set<std::int32_t> RanksThatHold(const Layout& sender, const std::string& name, const Box& box) {
  std::set<std::int32_t> ranks;
  for (std::size_t r = 0; r < sender.ranks.size(); ++r) {
    for (const MapRow& row : sender.ranks[r].rows) {
      const bool same = sender.tensors[static_cast<std::size_t>(row.logical)].name == name;
      if (same && !row.logical_box.Empty() && Contains(row.logical_box, box))
        ranks.insert(static_cast<std::int32_t>(r));
    }
  }
  return ranks;
}

// No assignment can do better than the worst set of ranks that have to share what only they hold.
double LeastPossibleLoad(const std::map<std::set<std::int32_t>, std::int64_t>& bytes_of_holders, std::size_t ranks) {
  double least = 0;
  for (unsigned subset = 1; subset < 1U << ranks; ++subset) {
    std::int64_t bytes = 0;
    for (const auto& [holders, held] : bytes_of_holders) {
      const bool inside = std::all_of(holders.begin(), holders.end(), [&](std::int32_t r) { return subset >> r & 1U; });
      if (inside) bytes += held;
    }
    least = std::max(least, static_cast<double>(bytes) / __builtin_popcount(subset));
  }
  return least;
}

TEST(PlannerPropertyTest, TheBusiestSenderIsWithinOneBucketOfTheLeastPossibleLoad) {
  ForRandomPlans([](const RandomPair& pair, const Plan& plan, const PlanOptions& options) {
    std::map<std::set<std::int32_t>, std::int64_t> bytes_of_holders;
    std::vector<std::int64_t> load(pair.sender.ranks.size());
    // Twins go once.
    for (std::uint32_t b = 0; b < plan.buckets.size(); b += CountTwins(plan, b)) {
      const Bucket& bucket = plan.buckets[b];
      for (const Slice& slice : bucket.slices) {
        const std::string& name = plan.tensors[static_cast<std::size_t>(slice.tensor)].name;
        bytes_of_holders[RanksThatHold(pair.sender, name, slice.logical_box)] += slice.payload_bytes;
        const Route route = plan.routes[static_cast<std::size_t>(bucket.route)];
        load[static_cast<std::size_t>(route.sender_rank)] += slice.payload_bytes;
      }
    }

    const double busiest = static_cast<double>(*std::max_element(load.begin(), load.end()));

    ASSERT_LE(busiest, LeastPossibleLoad(bytes_of_holders, load.size()) + static_cast<double>(options.bucket_bytes));
  });
}

TEST(PlannerPropertyTest, NoBucketHasPartsOfTwoWindowsAndWindowsComeInOrder) {
  ForRandomPlans([](const RandomPair& pair, const Plan& plan, PlanOptions options) {
    options.window_bytes = 1 + static_cast<std::int64_t>(plan.digest.bytes[0]) * 16;
    const Result<Plan> cut = MakePlan(pair.sender, pair.engine, options);
    ASSERT_TRUE(cut.ok()) << cut.status().ToString();
    ASSERT_EQ(cut->payload_bytes, plan.payload_bytes);

    std::map<std::int32_t, std::int64_t> bytes_of_window;
    const std::vector<std::int32_t> windows = WindowsOf(cut->tensors, options.window_bytes);
    for (std::size_t t = 0; t < windows.size(); ++t) bytes_of_window[windows[t]] += cut->tensors[t].Bytes();
    for (const auto& [window, bytes] : bytes_of_window) {
      ASSERT_TRUE(bytes <= options.window_bytes || std::ranges::count(windows, window) == 1) << "window " << window;
    }
    std::int32_t last = 0;
    for (const Bucket& bucket : cut->buckets) {
      const std::int32_t window = windows[static_cast<std::size_t>(bucket.slices.front().tensor)];
      for (const Slice& slice : bucket.slices) ASSERT_EQ(windows[static_cast<std::size_t>(slice.tensor)], window);
      ASSERT_GE(window, last);
      last = window;
    }
  });
}

// C-013. Also the other way round: what goes once is needed as it is by all that it goes to.
TEST(PlannerPropertyTest, WithTwinsWhatSeveralEngineRanksNeedIsPackedOnceForAllOfThem) {
  ForRandomPlans([](const RandomPair& pair, const Plan& plan, const PlanOptions& options) {
    if (!options.twins || pair.sender == pair.engine) return;
    std::map<std::uint64_t, int> packed;
    std::map<std::uint64_t, std::multiset<std::int32_t>> taken_by;
    for (std::uint32_t first = 0, twins = 0; first < plan.buckets.size(); first += twins) {
      twins = CountTwins(plan, first);
      for (std::uint32_t b = first; b < first + twins; ++b) {
        const std::int32_t rank = plan.routes[static_cast<std::size_t>(plan.buckets[b].route)].engine_rank;
        for (const Slice& slice : plan.buckets[b].slices) {
          const TensorSpec& spec = plan.tensors[static_cast<std::size_t>(slice.tensor)];
          for (const std::int64_t position : PositionsOf(slice.logical_box, spec.shape)) {
            taken_by[IdOf(spec.name, position)].insert(rank);
            if (b == first) ++packed[IdOf(spec.name, position)];
          }
        }
      }
    }
    for (const auto& [id, ranks] : taken_by) {
      const bool twice = std::set<std::int32_t>(ranks.begin(), ranks.end()).size() < ranks.size();
      ASSERT_LE(packed[id], twice ? static_cast<int>(ranks.size()) : 1);
    }
  });
}

TEST(PlannerPropertyTest, TheSameLayoutsGiveTheSamePlan) {
  ForRandomPlans([](const RandomPair& pair, const Plan& plan, const PlanOptions& options) {
    ASSERT_EQ(*MakePlan(pair.sender, pair.engine, options), plan);
    ASSERT_EQ(PlanDigest(plan), plan.digest);
  });
}

}  // namespace
}  // namespace bascule
