// The key/value state of one running request: its pages, for how many tokens they hold state, and by which versions it
// was made. Pages at the beginning may be shared with other requests, through the prefix cache; what the request
// writes is its own until it has filled a page, which it then shares in turn.
//
// State that more than one version made is never shared. It begins at a flip that the request goes through with its KV
// state (policy `keep`): what comes after is made by one version over the state of another.
//
// Thread-safety: thread-compatible (the engine guards it).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "bridge/manifest/manifest.h"
#include "engine_side/decode/kv_pages.h"
#include "engine_side/decode/prefix_cache.h"

namespace bascule {

// Before the next pass the state of page `from` goes to page `to` as well.
struct PageCopy {
  std::int32_t from = 0;
  std::int32_t to = 0;
};

class KvState {
 public:
  using Tokens = std::span<const std::int32_t>;

  // Both are borrowed.
  KvState(KvPages& pages, PrefixCache& prefixes, std::int64_t page_tokens)
      : pages_(pages), prefixes_(prefixes), page_tokens_(page_tokens) {}

  struct Wish {
    Tokens tokens;                  // of the request, so far
    std::int64_t worst_tokens = 0;  // that ever get state
    std::int64_t most_shared = 0;   // tokens whose state may come from others
  };
  enum class Opened { kYes, kNoPages, kSharesSoon };
  // Takes all the pages that the request can need, those that can be shared from the prefix cache, and evicts what
  // nobody uses for the rest. kNoPages: there are not enough. kSharesSoon: a running request is about to have state
  // that this one can share. Copies that have to be made are added to `copies`.
  Opened Open(const WeightVersion& version, const Wish& wish, std::vector<PageCopy>& copies);
  // `version` has made the state of `count` further tokens. `tokens` are those of the request.
  void Advance(const WeightVersion& version, Tokens tokens, std::int64_t count);
  // What comes from here on is for this request alone. O(1): Settle does the rest, before PrefixCache::FreeDropped.
  void StopSharing() { sharing_ = false; }
  void Settle();
  // Gives all pages back; state that others can use goes to the prefix cache.
  void Close(Tokens tokens);

  const std::int32_t* pages() const { return own_.data(); }
  std::int64_t cached() const { return cached_; }            // tokens that have state
  std::int64_t from_others() const { return from_others_; }  // tokens whose state was there when it opened
  const WeightVersion& version() const { return version_; }  // that made the newest state
  const WeightVersion& epoch() const { return epoch_; }      // the oldest that made any

 private:
  // Tokens of page `index`, as far as there are.
  Tokens PageTokens(Tokens tokens, std::int64_t index) const;
  bool MakeRoom(std::int64_t pages);
  void Announce(Tokens tokens);
  void ShareFilled(Tokens tokens);
  bool ShareNextPage(Tokens page_tokens);
  void DropTail();
  PrefixCache::Entry* Before() const { return chain_.empty() ? nullptr : chain_.back(); }

  KvPages& pages_;
  PrefixCache& prefixes_;
  const std::int64_t page_tokens_;
  std::vector<std::int32_t> own_;           // pages, by position
  std::vector<PrefixCache::Entry*> chain_;  // entries of the first pages, all whole; from filled_ on they are pending
  std::int64_t filled_ = 0;                 // entries of chain_ that are ready
  PrefixCache::Entry* tail_ = nullptr;      // of the page after the chain, which is not whole
  std::int64_t cached_ = 0, from_others_ = 0;
  bool sharing_ = false;
  WeightVersion version_, epoch_;
};

}  // namespace bascule
