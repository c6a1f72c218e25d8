#include "engine_side/cache_daemon/version_store.h"

#include <gtest/gtest.h>

namespace bascule {
namespace {

std::shared_ptr<const VersionObject> Object(std::uint64_t number) {
  auto object = std::make_shared<VersionObject>();
  object->version = {"run", number, {}};
  return object;
}

TEST(VersionStoreTest, KeepsTheLiveVersionAndThoseBeforeItAndLetsTheOldestGo) {
  VersionStore store(/*keep=*/2);
  EXPECT_FALSE(store.Live());
  const auto first = Object(1);
  store.MakeLive(first, CacheChange::kFlip);
  store.MakeLive(Object(2), CacheChange::kFlip);

  store.MakeLive(first, CacheChange::kRollback);
  EXPECT_EQ(store.Live()->object, first);
  EXPECT_EQ(store.Live()->change, CacheChange::kRollback);
  EXPECT_EQ(store.Live()->sequence, 3u);
  store.MakeLive(Object(3), CacheChange::kFlip);

  EXPECT_EQ(store.All().size(), 2u);
  EXPECT_EQ(store.FindNumber(2), nullptr);
  EXPECT_EQ(store.Find(first->version), first);
}

TEST(VersionStoreTest, OneVersionIsTheLeast) {
  VersionStore store(/*keep=*/1);
  std::weak_ptr<const VersionObject> first;
  {
    auto object = Object(1);
    first = object;
    store.MakeLive(std::move(object), CacheChange::kFlip);
  }

  store.MakeLive(Object(2), CacheChange::kFlip);

  EXPECT_TRUE(first.expired());
  EXPECT_EQ(store.Live()->object->version.number, 2u);
}

}  // namespace
}  // namespace bascule
