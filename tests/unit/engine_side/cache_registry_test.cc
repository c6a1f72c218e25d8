// C-004: caches other than key/value state, each with its own policy.
#include "engine_side/cache_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace bascule {
namespace {

using testing::ElementsAre;

WeightVersion Version(std::uint64_t number) {
  return {.run = "run", .number = number, .digest = Sha256Of(std::to_string(number))};
}

// Entries that remember which version made them.
class TaggedCache {
 public:
  void Add(std::uint64_t version, int count) {
    made_by_.insert(made_by_.end(), static_cast<std::size_t>(count), version);
  }
  VersionedCache As(const std::string& name, CachePolicy policy) {
    return {.name = name,
            .policy = policy,
            .drop = [this](const WeightVersion& live) { return std::erase_if(made_by_, OtherThan(live)); },
            .count_others =
                [this](const WeightVersion& live) {
                  return static_cast<std::uint64_t>(std::ranges::count_if(made_by_, OtherThan(live)));
                }};
  }
  const std::vector<std::uint64_t>& made_by() const { return made_by_; }

 private:
  static std::function<bool(std::uint64_t)> OtherThan(const WeightVersion& live) {
    return [number = live.number](std::uint64_t version) { return version != number; };
  }
  std::vector<std::uint64_t> made_by_;
};

CacheReport Report(const std::string& name, std::uint64_t dropped, std::uint64_t kept) {
  return {.cache = name, .dropped = dropped, .kept = kept};
}

class CacheRegistryTest : public testing::Test {
 protected:
  CacheRegistryTest() {
    encoder_.Add(1, 3);
    images_.Add(1, 5);
  }
  TaggedCache encoder_, images_;
  CacheRegistry registry_;
};

TEST_F(CacheRegistryTest, EachPolicyDoesWhatItSaysAndTheReportNamesEveryCache) {
  ASSERT_TRUE(registry_.Register(encoder_.As("encoder", CachePolicy::kDrop)).ok());
  ASSERT_TRUE(registry_.Register(images_.As("images", CachePolicy::kKeep)).ok());

  EXPECT_THAT(registry_.Invalidate(Version(2)), ElementsAre(Report("encoder", 3, 0), Report("images", 0, 5)));

  EXPECT_TRUE(encoder_.made_by().empty());
  EXPECT_EQ(images_.made_by(), std::vector<std::uint64_t>(5, 1));  // tagged still
}

TEST_F(CacheRegistryTest, WhatTheLiveVersionMadeIsNeitherDroppedNorCounted) {
  encoder_.Add(2, 4);
  ASSERT_TRUE(registry_.Register(encoder_.As("encoder", CachePolicy::kDrop)).ok());

  EXPECT_THAT(registry_.Invalidate(Version(2)), ElementsAre(Report("encoder", 3, 0)));

  EXPECT_EQ(encoder_.made_by(), std::vector<std::uint64_t>(4, 2));
}

// C-004.
TEST_F(CacheRegistryTest, DroppingIsTheDefault) { EXPECT_EQ(VersionedCache{}.policy, CachePolicy::kDrop); }

TEST_F(CacheRegistryTest, ANameIsRegisteredOnceAndAfterUnregisteringNobodyIsCalled) {
  ASSERT_TRUE(registry_.Register(encoder_.As("encoder", CachePolicy::kDrop)).ok());
  EXPECT_EQ(registry_.Register(images_.As("encoder", CachePolicy::kDrop)).reason(), "bad_options");

  registry_.Unregister("encoder");
  registry_.Unregister("unknown");

  EXPECT_TRUE(registry_.Invalidate(Version(2)).empty());
  EXPECT_EQ(encoder_.made_by().size(), 3U);
}

}  // namespace
}  // namespace bascule
