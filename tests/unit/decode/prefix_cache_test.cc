// Entries, chains and eviction, without any state: pages are numbers here.
#include "engine_side/decode/prefix_cache.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace bascule {
namespace {

constexpr std::int64_t kPageTokens = 4;
const Hash256 kVersion = Sha256Of("one"), kOther = Sha256Of("other");
using Tokens = std::vector<std::int32_t>;

class PrefixCacheTest : public testing::Test {
 protected:
  // Takes pages for `tokens` and enters them, page by page; gives the entries. The request then ends.
  std::vector<PrefixCache::Entry*> Enter(const Hash256& version, const Tokens& tokens, PrefixCache& cache) {
    std::vector<PrefixCache::Entry*> chain;
    for (std::size_t begin = 0; begin < tokens.size(); begin += kPageTokens) {
      const std::int32_t page = pages_.Take();
      const auto of_page = PrefixCache::Tokens(tokens).subspan(begin, std::min<std::size_t>(4, tokens.size() - begin));
      chain.push_back(cache.Add(version, chain.empty() ? nullptr : chain.back(), of_page, page, /*ready=*/true));
      pages_.Release(page);
    }
    return chain;
  }
  std::int64_t Found(const Hash256& version, const Tokens& tokens, PrefixCache& cache) {
    const PrefixCache::Match match = cache.Find(version, tokens, std::ssize(tokens));
    return std::ssize(match.whole) * kPageTokens + match.part_tokens;
  }

  KvPages pages_{8};
  PrefixCache cache_{pages_, kPageTokens};
};

TEST_F(PrefixCacheTest, WholePagesAreFoundInOrderAndTheRestAsThePartOfAPage) {
  const auto chain = Enter(kVersion, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, cache_);

  const Tokens wanted = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  const PrefixCache::Match match = cache_.Find(kVersion, wanted, 10);

  EXPECT_EQ(match.whole, (std::vector<PrefixCache::Entry*>{chain[0], chain[1]}));
  EXPECT_EQ(match.part, chain[2]);
  EXPECT_EQ(match.part_tokens, 2);
  EXPECT_EQ(Found(kVersion, {1, 2, 3, 4, 5, 6, 0, 0}, cache_), 6);
  EXPECT_EQ(Found(kVersion, {2, 3, 4, 5}, cache_), 0);
  EXPECT_EQ(cache_.entries(), 3);
}

TEST_F(PrefixCacheTest, NoMoreIsFoundThanIsWanted) {
  Enter(kVersion, {1, 2, 3, 4, 5, 6, 7, 8}, cache_);

  const Tokens wanted = {1, 2, 3, 4, 5, 6, 7, 8};
  const PrefixCache::Match match = cache_.Find(kVersion, wanted, 7);

  EXPECT_EQ(match.whole.size(), 1u);
  EXPECT_EQ(match.part_tokens, 3);
}

// C-001, C-005.
TEST_F(PrefixCacheTest, EqualTokensOfAnotherVersionOrAfterAnotherBeginningAreNotFound) {
  Enter(kVersion, {1, 2, 3, 4, 5, 6, 7, 8}, cache_);

  EXPECT_EQ(Found(kOther, {1, 2, 3, 4}, cache_), 0);
  EXPECT_EQ(Found(kVersion, {5, 6, 7, 8}, cache_), 0);
  EXPECT_EQ(Found(kVersion, {9, 2, 3, 4, 5, 6, 7, 8}, cache_), 0);
}

// The hash finds nothing by itself: with one hash for everything, tokens and beginnings still tell entries apart.
TEST_F(PrefixCacheTest, EntriesWhoseHashesCollideAreToldApartByTheirTokens) {
  KvPages pages(64);
  PrefixCache cache(pages, kPageTokens, [](std::uint64_t, PrefixCache::Tokens) { return std::uint64_t{7}; });
  std::mt19937 random(1);
  std::map<Tokens, std::vector<std::int32_t>> chains;  // pages by tokens
  for (int i = 0; i < 20; ++i) {
    Tokens tokens;
    for (int t = 0; t < 12; ++t) tokens.push_back(static_cast<std::int32_t>(random() % 2));
    std::vector<std::int32_t>& pages_of = chains[tokens];
    pages_of.clear();
    PrefixCache::Entry* before = nullptr;
    for (std::size_t begin = 0; begin < tokens.size(); begin += kPageTokens) {
      const std::int32_t page = pages.Take();
      before = cache.Add(kVersion, before, PrefixCache::Tokens(tokens).subspan(begin, 4), page, true);
      pages_of.push_back(PrefixCache::PageOf(*before));
      pages.Release(page);
    }
  }

  for (const auto& [tokens, want] : chains) {
    const PrefixCache::Match match = cache.Find(kVersion, tokens, 12);
    std::vector<std::int32_t> got;
    for (const PrefixCache::Entry* entry : match.whole) got.push_back(PrefixCache::PageOf(*entry));
    EXPECT_EQ(got, want);
  }
}

TEST_F(PrefixCacheTest, APendingPageIsNotGivenOutButSaidToCome) {
  const Tokens tokens = {1, 2, 3, 4, 5};
  const std::int32_t page = pages_.Take();
  PrefixCache::Entry* entry = cache_.Add(kVersion, nullptr, PrefixCache::Tokens(tokens).first(4), page, false);

  EXPECT_TRUE(cache_.Find(kVersion, tokens, 4).pending);
  EXPECT_EQ(Found(kVersion, tokens, cache_), 0);
  EXPECT_FALSE(cache_.Find(kVersion, Tokens{1, 2, 9, 9, 9}, 4).pending);
  EXPECT_EQ(cache_.entries(), 0);
  cache_.SetReady(*entry);

  EXPECT_FALSE(cache_.Find(kVersion, tokens, 4).pending);
  EXPECT_EQ(Found(kVersion, tokens, cache_), 4);
}

TEST_F(PrefixCacheTest, TheLeastRecentlyUsedEndOfAChainIsEvictedFirst) {
  Enter(kVersion, {1, 1, 1, 1, 2, 2, 2, 2}, cache_);
  Enter(kVersion, {5, 5, 5, 5, 6, 6, 6, 6}, cache_);
  EXPECT_EQ(Found(kVersion, {1, 1, 1, 1, 2, 2, 2, 2}, cache_), 8);  // used last now

  EXPECT_TRUE(cache_.EvictOne());
  EXPECT_EQ(Found(kVersion, {5, 5, 5, 5, 6, 6, 6, 6}, cache_), 4);
  EXPECT_TRUE(cache_.EvictOne());  // finding touched what is left of it: the other chain's end is older
  EXPECT_EQ(Found(kVersion, {1, 1, 1, 1, 2, 2, 2, 2}, cache_), 4);
  EXPECT_EQ(pages_.free(), 6);
}

TEST_F(PrefixCacheTest, PagesInUseAreNotEvicted) {
  const auto chain = Enter(kVersion, {1, 1, 1, 1, 2, 2, 2, 2}, cache_);
  pages_.Share(PrefixCache::PageOf(*chain[1]));

  EXPECT_FALSE(cache_.EvictOne());
  pages_.Release(PrefixCache::PageOf(*chain[1]));

  EXPECT_TRUE(cache_.EvictOne());
  EXPECT_TRUE(cache_.EvictOne());
  EXPECT_FALSE(cache_.EvictOne());
  EXPECT_EQ(pages_.free(), 8);
}

TEST_F(PrefixCacheTest, EntriesOfOtherVersionsAreOutOfReachAtOnceAndTheirPagesComeBackLater) {
  Enter(kVersion, {1, 2, 3, 4, 5}, cache_);
  Enter(kOther, {1, 2, 3, 4}, cache_);

  EXPECT_EQ(cache_.DropOthers(kOther), 2);

  EXPECT_EQ(Found(kVersion, {1, 2, 3, 4}, cache_), 0);
  EXPECT_EQ(Found(kOther, {1, 2, 3, 4}, cache_), 4);
  EXPECT_EQ(cache_.entries(), 1);
  EXPECT_EQ(pages_.free(), 5);
  cache_.FreeDropped(/*most=*/8);
  EXPECT_EQ(pages_.free(), 7);
}

TEST_F(PrefixCacheTest, DroppedEntriesComeBackAFewAtATimeAndBeforeLiveOnesAreEvicted) {
  Enter(kVersion, {1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4}, cache_);
  Enter(kOther, {1, 1, 1, 1}, cache_);
  cache_.DropOthers(kOther);

  cache_.FreeDropped(/*most=*/2);
  EXPECT_EQ(pages_.free(), 5);
  EXPECT_TRUE(cache_.EvictOne());
  EXPECT_TRUE(cache_.EvictOne());
  EXPECT_EQ(pages_.free(), 7);
  EXPECT_EQ(Found(kOther, {1, 1, 1, 1}, cache_), 4);

  EXPECT_TRUE(cache_.EvictOne());
  EXPECT_EQ(cache_.entries(), 0);
  EXPECT_FALSE(cache_.EvictOne());
}

TEST_F(PrefixCacheTest, APageThatARequestReadsStaysItsWhenItsEntryIsDropped) {
  const auto chain = Enter(kVersion, {1, 1, 1, 1}, cache_);
  pages_.Share(PrefixCache::PageOf(*chain[0]));
  const std::int32_t page = PrefixCache::PageOf(*chain[0]);
  cache_.DropOthers(kOther);

  cache_.FreeDropped(/*most=*/1);
  EXPECT_EQ(pages_.free(), 7);
  pages_.Release(page);
  EXPECT_EQ(pages_.free(), 8);
}

TEST_F(PrefixCacheTest, APageWithTheSameTokensIsEnteredOnce) {
  const auto first = Enter(kVersion, {1, 2, 3, 4}, cache_);
  const auto second = Enter(kVersion, {1, 2, 3, 4}, cache_);

  EXPECT_EQ(first, second);
  EXPECT_EQ(pages_.free(), 7);
}

}  // namespace
}  // namespace bascule
