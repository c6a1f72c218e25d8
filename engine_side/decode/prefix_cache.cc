#include "engine_side/decode/prefix_cache.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/status.h"

namespace bascule {

class PrefixCache::Entry {
 public:
  Tree* tree = nullptr;
  Entry* before = nullptr;        // the tree's root at the beginning
  std::vector<Entry*> following;  // in any order
  std::vector<std::int32_t> tokens;
  std::uint64_t hash = 0;  // of the chain up to and with this page
  std::int32_t page = 0;
  bool ready = false;
  std::list<std::unique_ptr<Entry>>::iterator place;  // in Tree::by_use
};

// An entry stands before the one that it follows in by_use: the end of a chain goes first.
struct PrefixCache::Tree {
  Hash256 version;
  Entry root;
  std::unordered_multimap<std::uint64_t, Entry*> whole;  // entries of whole pages, by hash
  std::list<std::unique_ptr<Entry>> by_use;              // the least recently used first
  std::int64_t ready_count = 0;
};

namespace {

std::int64_t CommonBeginning(PrefixCache::Tokens a, PrefixCache::Tokens b) {
  const auto most = static_cast<std::ptrdiff_t>(std::min(a.size(), b.size()));
  return std::mismatch(a.begin(), a.begin() + most, b.begin()).first - a.begin();
}

}  // namespace

// FNV-1a over the tokens. Collisions cost a comparison, nothing else.
std::uint64_t PrefixCache::HashPage(std::uint64_t before, Tokens tokens) {
  std::uint64_t hash = before ^ 0xCBF29CE484222325;
  for (const std::int32_t token : tokens) hash = (hash ^ static_cast<std::uint32_t>(token)) * 0x100000001B3;
  return hash;
}

PrefixCache::PrefixCache(KvPages& pages, std::int64_t page_tokens, Hash hash)
    : pages_(pages), page_tokens_(page_tokens), hash_(hash) {}

PrefixCache::~PrefixCache() = default;

std::int32_t PrefixCache::PageOf(const Entry& entry) { return entry.page; }
bool PrefixCache::IsReady(const Entry& entry) { return entry.ready; }
std::int64_t PrefixCache::TokenCount(const Entry& entry) { return std::ssize(entry.tokens); }

PrefixCache::Tree* PrefixCache::TreeOf(const Hash256& version) const {
  const auto found = std::ranges::find_if(trees_, [&](const auto& tree) { return tree->version == version; });
  return found == trees_.end() ? nullptr : found->get();
}

PrefixCache::Entry* PrefixCache::WholePage(const Tree& tree, const Entry& before, Tokens tokens) const {
  const auto [begin, end] = tree.whole.equal_range(hash_(before.hash, tokens));
  const auto found = std::find_if(begin, end, [&](const auto& candidate) {
    return candidate.second->before == &before && std::ranges::equal(candidate.second->tokens, tokens);
  });
  return found == end ? nullptr : found->second;
}

PrefixCache::Match PrefixCache::Find(const Hash256& version, Tokens tokens, std::int64_t most) {
  Match match;
  Tree* tree = TreeOf(version);
  if (tree == nullptr) return match;
  most = std::min(most, std::ssize(tokens));
  Entry* last = &tree->root;
  std::int64_t found = 0;
  while (found + page_tokens_ <= most) {
    const auto page = tokens.subspan(static_cast<std::size_t>(found), static_cast<std::size_t>(page_tokens_));
    Entry* next = WholePage(*tree, *last, page);
    if (next == nullptr || !next->ready) break;
    match.whole.push_back(last = next);
    found += page_tokens_;
  }
  FindPart(*last, tokens.subspan(static_cast<std::size_t>(found)), most - found, match);
  const auto touch = [&](Entry* entry) { tree->by_use.splice(tree->by_use.end(), tree->by_use, entry->place); };
  if (match.part != nullptr) touch(match.part);
  std::for_each(match.whole.rbegin(), match.whole.rend(), touch);
  return match;
}

// A pending page is worth waiting for when all of it is wanted.
void PrefixCache::FindPart(const Entry& before, Tokens tokens, std::int64_t most, Match& match) const {
  std::int64_t to_come = 0;
  for (Entry* entry : before.following) {
    const std::int64_t common = CommonBeginning(entry->tokens, tokens);
    const std::int64_t useful = std::min(common, most);
    if (!entry->ready) {
      if (common == std::ssize(entry->tokens)) to_come = std::max(to_come, useful);
    } else if (useful > match.part_tokens) {
      match.part = entry;
      match.part_tokens = useful;
    }
  }
  match.pending = to_come > match.part_tokens;
}

PrefixCache::Entry* PrefixCache::Add(const Hash256& version, Entry* before, Tokens tokens, std::int32_t page,
                                     bool ready) {
  Tree* tree = before != nullptr ? before->tree : TreeOf(version);
  if (tree == nullptr) {
    tree = trees_.emplace_back(std::make_unique<Tree>()).get();
    tree->version = version;
    tree->root.tree = tree;
  }
  if (before == nullptr) before = &tree->root;
  const auto same = [&](const Entry* entry) { return std::ranges::equal(entry->tokens, tokens); };
  const bool whole = std::ssize(tokens) == page_tokens_;
  if (whole) {
    if (Entry* existing = WholePage(*tree, *before, tokens)) return existing;
  } else if (const auto found = std::ranges::find_if(before->following, same); found != before->following.end()) {
    return *found;
  }
  const auto where = before == &tree->root ? tree->by_use.end() : before->place;
  const auto place = tree->by_use.insert(where, std::make_unique<Entry>());
  Entry& entry = **place;
  entry.tree = tree;
  entry.before = before;
  entry.tokens.assign(tokens.begin(), tokens.end());
  entry.hash = hash_(before->hash, tokens);
  entry.page = page;
  entry.place = place;
  before->following.push_back(&entry);
  if (whole) tree->whole.emplace(entry.hash, &entry);
  pages_.SetCached(page, true);
  if (ready) SetReady(entry);
  return &entry;
}

void PrefixCache::SetReady(Entry& entry) {
  CHECK(!entry.ready);
  entry.ready = true;
  ++entry.tree->ready_count;
}

void PrefixCache::Remove(Entry& entry) {
  CHECK(entry.following.empty());
  Tree& tree = *entry.tree;
  tree.ready_count -= entry.ready ? 1 : 0;
  std::erase(entry.before->following, &entry);
  const auto [begin, end] = tree.whole.equal_range(entry.hash);
  const auto indexed = std::find_if(begin, end, [&](const auto& item) { return item.second == &entry; });
  if (indexed != end) tree.whole.erase(indexed);
  pages_.SetCached(entry.page, false);
  tree.by_use.erase(entry.place);
}

bool PrefixCache::EvictOne() {
  if (FreeOneDropped()) return true;
  for (const auto& tree : trees_) {
    for (const auto& entry : tree->by_use) {
      if (!entry->following.empty() || pages_.InUse(entry->page)) continue;
      Remove(*entry);
      return true;
    }
  }
  return false;
}

std::int64_t PrefixCache::DropOthers(const Hash256& live) {
  std::int64_t count = 0;
  for (auto& tree : trees_) {
    if (tree->version == live) continue;
    count += tree->ready_count;
    dropped_.push_back(std::move(tree));
  }
  std::erase(trees_, nullptr);
  return count;
}

void PrefixCache::FreeDropped(std::int64_t most) {
  while (most-- > 0 && FreeOneDropped()) {
  }
}

// The index goes along, so that none of it is left for the end.
bool PrefixCache::FreeOneDropped() {
  while (!dropped_.empty()) {
    Tree& tree = *dropped_.back();
    if (tree.by_use.empty()) {
      dropped_.pop_back();
      continue;
    }
    pages_.SetCached(tree.by_use.back()->page, false);
    tree.by_use.pop_back();
    if (!tree.whole.empty()) tree.whole.erase(tree.whole.begin());
    return true;
  }
  return false;
}

std::int64_t PrefixCache::entries() const {
  std::int64_t count = 0;
  for (const auto& tree : trees_) count += tree->ready_count;
  return count;
}

}  // namespace bascule
