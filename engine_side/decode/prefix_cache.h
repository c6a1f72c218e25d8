// Key/value state by what it is the state of: (version digest, tokens from the first one on). An entry is one page and
// the tokens in it; its key is the chain of entries before it, so that equal tokens after another beginning, or under
// another version, are another entry. A chain is found by hashes and told by comparing tokens, never by a hash alone.
//
// Entries of whole pages are shared. One that ends within its page, or that is wanted in part only, is there to be
// copied. A *pending* entry is being made by a running request: whoever would share it does better to wait for it.
//
// Pages that no request uses stay until they are needed for something else: the least recently used ends of chains go
// first.
//
// Thread-safety: thread-compatible (the engine guards it).
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/sha256.h"
#include "engine_side/decode/kv_pages.h"

namespace bascule {

class PrefixCache {
 public:
  using Tokens = std::span<const std::int32_t>;
  // Of a page's tokens, given that of the page before.
  using Hash = std::uint64_t (*)(std::uint64_t before, Tokens tokens);
  static std::uint64_t HashPage(std::uint64_t before, Tokens tokens);

  // `pages` are borrowed.
  PrefixCache(KvPages& pages, std::int64_t page_tokens, Hash hash = &HashPage);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  class Entry;
  struct Match {
    std::vector<Entry*> whole;     // pages to share, from the first token on
    Entry* part = nullptr;         // the page to copy after them
    std::int64_t part_tokens = 0;  // of it
    bool pending = false;          // a running request is about to have more
  };
  // The state that is there for the first `most` of `tokens`, or fewer. What it finds counts as used now.
  Match Find(const Hash256& version, Tokens tokens, std::int64_t most);

  // Adds `tokens`, 1 to page_tokens, whose state is, or if it is not `ready` will be, in `page`, behind `before` (null:
  // at the beginning). Where such an entry exists it is returned instead. A page is in one entry at most.
  Entry* Add(const Hash256& version, Entry* before, Tokens tokens, std::int32_t page, bool ready);
  void SetReady(Entry& entry);
  // Of an entry that nothing follows.
  void Remove(Entry& entry);
  static std::int32_t PageOf(const Entry& entry);
  static bool IsReady(const Entry& entry);
  static std::int64_t TokenCount(const Entry& entry);

  // Gives up an entry that was dropped, else the page that no request uses and that was used least recently. False when
  // there is none.
  bool EvictOne();

  // No entry of another version than `live` is found any more; says how many that were. O(versions): their pages come
  // back with EvictOne and FreeDropped. Until then entries that somebody holds remain valid.
  std::int64_t DropOthers(const Hash256& live);
  // Frees up to `most` entries that were dropped: a full cache has too many for the time between two steps.
  void FreeDropped(std::int64_t most);

  std::int64_t entries() const;  // that can be found

 private:
  struct Tree;
  Tree* TreeOf(const Hash256& version) const;
  bool FreeOneDropped();
  Entry* WholePage(const Tree& tree, const Entry& before, Tokens tokens) const;
  void FindPart(const Entry& before, Tokens tokens, std::int64_t most, Match& match) const;

  KvPages& pages_;
  const std::int64_t page_tokens_;
  const Hash hash_;
  std::vector<std::unique_ptr<Tree>> trees_, dropped_;  // a tree a version, the oldest first
};

}  // namespace bascule
