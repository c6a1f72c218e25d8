// Plans of partial versions: what a scope lets in, what it must bring, and what is left to the engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "bridge/plan/name_match_internal.h"
#include "bridge/plan/planner.h"
#include "tests/unit/plan/random_layouts.h"

namespace bascule {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<TensorSpec> Tensors(const std::vector<std::string>& names) {
  std::vector<TensorSpec> tensors;
  for (const std::string& name : names) tensors.push_back({name, DType::kBf16, {4, 8}});
  return tensors;
}

Result<Plan> PlanFor(const std::vector<std::string>& trainer, const std::vector<std::string>& engine,
                     const std::vector<std::string>& scope, const std::vector<std::string>& ignore = {}) {
  return MakePlan(PlainLayout(Tensors(trainer)), PlainLayout(Tensors(engine)), {.ignore = ignore, .scope = scope});
}

std::vector<std::string> NamesOf(const std::vector<TensorSpec>& tensors) {
  std::vector<std::string> names;
  for (const TensorSpec& tensor : tensors) names.push_back(tensor.name);
  return names;
}

const std::vector<std::string> kModel = {"language.a", "language.b", "vision.a", "vision.b"};

// C-017.
TEST(ScopeTest, OnlyWhatTheScopeNamesIsSentAndTheRestIsCarriedOver) {
  const Result<Plan> plan = PlanFor(kModel, kModel, {"language.*"});

  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_THAT(plan->carried, ElementsAre(2, 3));
  EXPECT_THAT(NamesOf(SentTensors(*plan)), ElementsAre("language.a", "language.b"));
  EXPECT_THAT(plan->names.loaded, ElementsAre("language.a", "language.b"));
  EXPECT_EQ(plan->payload_bytes, 2 * 4 * 8 * 2);
  EXPECT_EQ(plan->tensors.size(), 4U) << "a version is whole, whatever of it is sent";
  EXPECT_THAT(plan->scope, ElementsAre("language.*"));
}

// C-017.
TEST(ScopeTest, ATrainerThatLacksTensorsIsRefusedUnlessItDeclaresThatItSendsOthers) {
  const std::vector<std::string> trainer = {"language.a", "language.b"};

  EXPECT_EQ(PlanFor(trainer, kModel, {}).status().reason(), "tensor_missing");
  EXPECT_TRUE(PlanFor(trainer, kModel, {"language.*"}).ok());
}

// C-017.
TEST(ScopeTest, AScopeOfWhichOneNameIsMissingIsRefusedByThatName) {
  const Status status = PlanFor({"language.a", "language.c", "vision.a"}, kModel, {"language.*"}).status();

  EXPECT_EQ(status.reason(), "tensor_missing");
  EXPECT_THAT(status.message(), HasSubstr("the engine needs 1 that no sender has: language.b"));
  EXPECT_THAT(status.message(), HasSubstr("language.c"));
}

TEST(ScopeTest, ATrainersNameInScopeThatTheEngineDoesNotKnowIsUnexpectedAndOneOutsideTakesNoPart) {
  const std::vector<std::string> trainer = {"language.a", "language.b", "optimizer.step"};

  const Result<Plan> plan = PlanFor(trainer, kModel, {"language.*"});

  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_THAT(plan->names.ignored, ElementsAre("optimizer.step"));
  EXPECT_THAT(plan->names.unexpected, IsEmpty());
  EXPECT_EQ(PlanFor(trainer, kModel, {"language.*", "optimizer.*"}).status().reason(), "tensor_unexpected");
}

TEST(ScopeTest, APatternThatMatchesNothingIsRefusedByThatPatternAlsoBesideOthers) {
  for (const auto& scope : {std::vector<std::string>{"langage.*"}, {"language.*", "langage.*"}, {"langage.*", "*"}}) {
    const Status status = PlanFor(kModel, kModel, scope).status();

    EXPECT_EQ(status.reason(), "scope_matches_nothing");
    EXPECT_THAT(status.message(), HasSubstr("langage.*"));
    EXPECT_THAT(status.message(), ::testing::Not(HasSubstr("language")));
  }
}

TEST(ScopeTest, AScopeOfWhichEverythingIsIgnoredSendsNothingAndIsRefused) {
  const Result<Plan> plan = PlanFor({"extra", "vision.a"}, {"vision.a"}, {"extra"}, {"extra"});

  EXPECT_EQ(plan.status().reason(), "scope_matches_nothing");
}

TEST(ScopeTest, AnIgnorePatternCountsOutsideTheScopeToo) {
  const std::vector<std::string> trainer = {"language.a", "language.b", "optimizer.step"};

  EXPECT_TRUE(PlanFor(trainer, kModel, {"language.*"}, {"optimizer.*"}).ok());
  EXPECT_EQ(PlanFor(trainer, kModel, {"language.*"}, {"vision.*"}).status().reason(), "ignore_matches_nothing");
}

TEST(ScopeTest, ShapesAreComparedInScopeAlone) {
  std::vector<TensorSpec> trainer = Tensors(kModel);
  trainer[2].shape = {5, 8};
  const Layout engine = PlainLayout(Tensors(kModel));

  EXPECT_TRUE(MakePlan(PlainLayout(trainer), engine, {.scope = {"language.*"}}).ok());
  EXPECT_EQ(MakePlan(PlainLayout(trainer), engine, {.scope = {"vision.*"}}).status().reason(), "shape_mismatch");
}

TEST(ScopeTest, ThePlanDigestHasTheScope) {
  const Plan all = *PlanFor(kModel, kModel, {});
  const Plan declared = *PlanFor(kModel, kModel, {"*"});
  const Plan otherwise = *PlanFor(kModel, kModel, {"language.*", "vision.*"});

  EXPECT_EQ(all.buckets, declared.buckets);
  EXPECT_NE(all.digest, declared.digest);
  EXPECT_NE(otherwise.digest, declared.digest);
  Plan changed = *PlanFor(kModel, kModel, {"language.*"});
  changed.carried.pop_back();
  EXPECT_NE(PlanDigest(changed), changed.digest);
}

TEST(ScopeTest, ThePlansTextHasTheScopeAndWhatIsCarriedOver) {
  const std::string text = PlanText(*PlanFor(kModel, kModel, {"language.*"}));

  EXPECT_THAT(text, HasSubstr("scope       1: language.*\n"));
  EXPECT_THAT(text, HasSubstr("carried     2: vision.a, vision.b\n"));
}

TEST(ScopeTest, TheProofRefusesASliceOfATensorThatIsCarriedOver) {
  const Layout layout = PlainLayout(Tensors(kModel));
  Plan plan = *MakePlan(layout, layout, {.scope = {"language.*"}});
  ASSERT_TRUE(ProveCoverage(plan, layout).ok());
  plan.carried = {1, 2, 3};
  EXPECT_EQ(ProveCoverage(plan, layout).reason(), "not_covered");
  plan.carried = {3};

  EXPECT_EQ(ProveCoverage(plan, layout).reason(), "not_covered");
}

// A scope at random: each name of `tensors` by itself, perhaps with others that begin alike.
std::vector<std::string> RandomScope(std::mt19937_64& random, const std::vector<TensorSpec>& tensors) {
  std::vector<std::string> scope;
  for (const TensorSpec& tensor : tensors) {
    if (random() % 2 == 0) continue;
    scope.push_back(random() % 3 == 0 ? tensor.name.substr(0, tensor.name.size() - 1) + "*" : tensor.name);
  }
  if (scope.empty()) scope.push_back(tensors.front().name);
  return scope;
}

// Whatever the layouts and the scope: an engine rank gets every element of the tensors in scope, once, and no other.
TEST(ScopePropertyTest, EveryEngineRankGetsWhatIsInScopeAndKeepsTheRest) {
  constexpr int kRounds = 300;
  for (std::uint64_t seed = 1; seed <= kRounds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed=" << seed);
    std::mt19937_64 random(seed);
    const RandomPair pair = MakeRandomPair(random);
    const std::vector<std::string> scope = RandomScope(random, pair.engine.tensors);
    std::set<std::string> sent;
    for (const TensorSpec& tensor : pair.engine.tensors) {
      if (std::ranges::any_of(scope, [&](const auto& one) { return MatchesPattern(one, tensor.name); })) {
        sent.insert(tensor.name);
      }
    }

    const Result<Plan> plan = MakePlan(pair.sender, pair.engine, {.bucket_bytes = 4096, .scope = scope});

    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    std::vector<RankMemory> written = GarbageOf(pair.engine);
    for (const Bucket& bucket : plan->buckets) {
      const auto rank = static_cast<std::size_t>(plan->routes[static_cast<std::size_t>(bucket.route)].engine_rank);
      for (const Slice& slice : bucket.slices) {
        const auto tensor = static_cast<std::size_t>(slice.engine_tensor);
        const TensorSpec& spec = plan->tensors[static_cast<std::size_t>(slice.tensor)];
        ASSERT_TRUE(sent.contains(spec.name)) << spec.name;
        const auto to = PositionsOf(slice.engine_box, pair.engine.ranks[rank].tensors[tensor].shape);
        const auto logical = PositionsOf(slice.logical_box, spec.shape);
        for (std::size_t i = 0; i < to.size(); ++i) {
          std::uint64_t& element = written[rank][tensor][static_cast<std::size_t>(to[i])];
          ASSERT_EQ(element, kGarbage) << "written twice";
          element = IdOf(spec.name, logical[i]);
        }
      }
    }
    std::vector<RankMemory> expected = MemoryOf(pair.engine);
    std::set<std::uint64_t> in_scope;
    for (const TensorSpec& tensor : pair.engine.tensors) {
      if (!sent.contains(tensor.name)) continue;
      for (std::int64_t i = 0; i < tensor.Elements(); ++i) in_scope.insert(IdOf(tensor.name, i));
    }
    for (RankMemory& rank : expected) {
      for (auto& tensor : rank) {
        for (std::uint64_t& id : tensor) id = in_scope.contains(id) ? id : kGarbage;
      }
    }
    ASSERT_EQ(written, expected);
  }
}

}  // namespace
}  // namespace bascule
