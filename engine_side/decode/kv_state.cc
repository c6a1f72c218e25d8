#include "engine_side/decode/kv_state.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace bascule {

KvState::Tokens KvState::PageTokens(Tokens tokens, std::int64_t index) const {
  const auto begin = static_cast<std::size_t>(index * page_tokens_);
  return tokens.subspan(begin, std::min(static_cast<std::size_t>(page_tokens_), tokens.size() - begin));
}

bool KvState::MakeRoom(std::int64_t pages) {
  while (pages_.free() < pages) {
    if (!prefixes_.EvictOne()) return false;
  }
  return true;
}

KvState::Opened KvState::Open(const WeightVersion& version, const Wish& wish, std::vector<PageCopy>& copies) {
  PrefixCache::Match match;
  const bool shares = !version.digest.IsZero();
  if (shares && wish.most_shared > 0) match = prefixes_.Find(version.digest, wish.tokens, wish.most_shared);
  if (match.pending) return Opened::kSharesSoon;
  for (const PrefixCache::Entry* entry : match.whole) {
    own_.push_back(PrefixCache::PageOf(*entry));
    pages_.Share(own_.back());
  }
  const std::int64_t needed = (wish.worst_tokens + page_tokens_ - 1) / page_tokens_ - std::ssize(own_);
  std::optional<std::int32_t> source;  // held while room is made, unless it is the room
  if (match.part != nullptr) pages_.Share(*(source = PrefixCache::PageOf(*match.part)));
  bool room = MakeRoom(needed);
  if (source) pages_.Release(*source);
  if (!room) {
    source.reset();
    room = MakeRoom(needed);
  }
  if (!room) {
    for (const std::int32_t page : std::exchange(own_, {})) pages_.Release(page);
    return Opened::kNoPages;
  }
  chain_ = std::move(match.whole);
  filled_ = std::ssize(chain_);
  cached_ = filled_ * page_tokens_;
  for (std::int64_t i = 0; i < needed; ++i) own_.push_back(pages_.Take());
  if (source) {
    copies.push_back({*source, own_[chain_.size()]});
    cached_ += match.part_tokens;
  }
  from_others_ = cached_;
  version_ = epoch_ = version;
  sharing_ = shares;
  if (shares) Announce(wish.tokens);
  return Opened::kYes;
}

// Pending entries for what this request is about to compute. Where there is an entry already, its page is taken once
// this request's own is filled.
void KvState::Announce(Tokens tokens) {
  while (std::ssize(tokens) > std::ssize(chain_) * page_tokens_) {
    const std::int32_t page = own_[chain_.size()];
    const Tokens of_page = PageTokens(tokens, std::ssize(chain_));
    PrefixCache::Entry* entry = prefixes_.Add(version_.digest, Before(), of_page, page, /*ready=*/false);
    if (PrefixCache::PageOf(*entry) != page) return;
    if (std::ssize(of_page) < page_tokens_) {
      tail_ = entry;
      return;
    }
    chain_.push_back(entry);
  }
}

void KvState::Advance(const WeightVersion& version, Tokens tokens, std::int64_t count) {
  if (count == 0) return;
  cached_ += count;
  if (version != version_) {
    CHECK(!sharing_);
    if (version.run == epoch_.run && version.number < epoch_.number) epoch_ = version;
    version_ = version;
  }
  if (sharing_) ShareFilled(tokens);
}

void KvState::ShareFilled(Tokens tokens) {
  while (sharing_ && (filled_ + 1) * page_tokens_ <= cached_) {
    if (filled_ < std::ssize(chain_)) {
      prefixes_.SetReady(*chain_[static_cast<std::size_t>(filled_)]);
    } else if (!ShareNextPage(PageTokens(tokens, filled_))) {
      return;
    }
    ++filled_;
  }
  const bool tail_done =
      tail_ != nullptr && cached_ >= std::ssize(chain_) * page_tokens_ + PrefixCache::TokenCount(*tail_);
  if (tail_done && !PrefixCache::IsReady(*tail_)) prefixes_.SetReady(*tail_);
}

// The page after the chain is filled. Where its like is there already, that one takes its place: its bits are the same.
bool KvState::ShareNextPage(Tokens page_tokens) {
  DropTail();
  std::int32_t& page = own_[chain_.size()];
  PrefixCache::Entry* entry = prefixes_.Add(version_.digest, Before(), page_tokens, page, /*ready=*/true);
  if (!PrefixCache::IsReady(*entry)) {  // another request computes the same right now
    sharing_ = false;
    return false;
  }
  if (PrefixCache::PageOf(*entry) != page) {
    pages_.Share(PrefixCache::PageOf(*entry));
    pages_.Release(std::exchange(page, PrefixCache::PageOf(*entry)));
  }
  chain_.push_back(entry);
  return true;
}

void KvState::DropTail() {
  if (tail_ != nullptr) prefixes_.Remove(*std::exchange(tail_, nullptr));
}

// Entries whose state will not be made any more by the version that they name go; nobody has built on them.
void KvState::Settle() {
  if (sharing_) return;
  if (tail_ != nullptr && !PrefixCache::IsReady(*tail_)) prefixes_.Remove(*tail_);
  tail_ = nullptr;
  for (; std::ssize(chain_) > filled_; chain_.pop_back()) prefixes_.Remove(*chain_.back());
  chain_.clear();
  filled_ = 0;
}

void KvState::Close(Tokens tokens) {
  if (sharing_ && filled_ == std::ssize(chain_) && cached_ > filled_ * page_tokens_) {
    const std::int64_t rest = cached_ - filled_ * page_tokens_;
    if (tail_ == nullptr || PrefixCache::TokenCount(*tail_) < rest) {
      DropTail();
      const Tokens of_tail = PageTokens(tokens, filled_).first(static_cast<std::size_t>(rest));
      prefixes_.Add(version_.digest, Before(), of_tail, own_[chain_.size()], /*ready=*/true);
    }
  }
  sharing_ = false;
  Settle();
  for (const std::int32_t page : std::exchange(own_, {})) pages_.Release(page);
  cached_ = from_others_ = 0;
}

}  // namespace bascule
