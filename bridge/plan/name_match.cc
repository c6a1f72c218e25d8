#include "bridge/plan/name_match_internal.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <unordered_map>

#include "bridge/plan/nearest_name.h"
#include "bridge/plan/planner.h"

namespace bascule {
namespace {

using NameIndex = std::unordered_map<std::string_view, std::int32_t>;

NameIndex IndexOf(const std::vector<TensorSpec>& tensors) {
  NameIndex index;
  index.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) index.emplace(tensors[i].name, static_cast<std::int32_t>(i));
  return index;
}

// The longest text between two '*' of a pattern: whatever the pattern matches has it somewhere.
std::string_view LongestPiece(std::string_view pattern) {
  std::string_view longest;
  while (!pattern.empty()) {
    const std::string_view piece = pattern.substr(0, pattern.find('*'));
    if (piece.size() > longest.size()) longest = piece;
    pattern.remove_prefix(std::min(pattern.size(), piece.size() + 1));
  }
  return longest;
}

// Finds which of many pieces of text occur in a name, in one walk from each of its letters.
class PieceTrie {
 public:
  void Add(std::string_view piece, std::size_t pattern) {
    std::size_t node = 0;
    for (const char letter : piece) {
      const auto [next, is_new] = nodes_[node].next.try_emplace(letter, nodes_.size());
      node = next->second;
      if (is_new) nodes_.emplace_back();
    }
    nodes_[node].patterns.push_back(pattern);
  }

  // Calls `found` for every pattern whose piece occurs, perhaps more than once.
  template <typename Found>
  void Find(std::string_view name, const Found& found) const {
    for (std::size_t begin = 0; begin <= name.size(); ++begin) {
      std::size_t node = 0;
      for (std::size_t at = begin;; ++at) {
        for (const std::size_t pattern : nodes_[node].patterns) found(pattern);
        if (at == name.size()) break;
        const auto next = nodes_[node].next.find(name[at]);
        if (next == nodes_[node].next.end()) break;
        node = next->second;
      }
    }
  }

 private:
  struct Node {
    std::map<char, std::size_t> next;
    std::vector<std::size_t> patterns;  // whose piece ends here
  };
  std::deque<Node> nodes_{1};
};

// Which patterns match, and whether each has matched at all. Only patterns whose longest piece a name has are tried on
// it, so that one pattern for each of many experts costs no more than one for all.
class PatternList {
 public:
  explicit PatternList(const std::vector<std::string>& patterns) : patterns_(patterns), matched_(patterns.size()) {
    for (std::size_t i = 0; i < patterns.size(); ++i) pieces_.Add(LongestPiece(patterns[i]), i);
  }

  bool Matches(std::string_view name) {
    bool any = false;
    pieces_.Find(name, [&](std::size_t i) {
      if (any && matched_[i]) return;
      ++tests_;
      if (MatchesPattern(patterns_[i], name)) matched_[i] = any = true;
    });
    return any;
  }

  std::vector<std::string> Unmatched() const {
    std::vector<std::string> unmatched;
    for (std::size_t i = 0; i < patterns_.size(); ++i) {
      if (!matched_[i]) unmatched.push_back(patterns_[i]);
    }
    return unmatched;
  }
  std::int64_t tests() const { return tests_; }

 private:
  const std::vector<std::string>& patterns_;
  std::vector<bool> matched_;
  PieceTrie pieces_;
  std::int64_t tests_ = 0;
};

std::vector<std::string_view> ViewsOf(const std::vector<std::string>& names) { return {names.begin(), names.end()}; }

std::vector<std::string_view> NamesOf(const std::vector<TensorSpec>& tensors) {
  std::vector<std::string_view> names;
  for (const TensorSpec& tensor : tensors) names.push_back(tensor.name);
  return names;
}

// Each name with the nearest of `likely`, else of `known`. Only names that will be printed are looked up.
std::vector<std::string> WithNearest(const std::vector<std::string>& names, const std::vector<std::string>& likely,
                                     const std::vector<TensorSpec>& known, std::size_t printed) {
  const std::vector<std::string_view> first = ViewsOf(likely);
  const std::vector<std::string_view> second = NamesOf(known);
  std::vector<std::string> described = names;
  for (std::size_t i = 0; i < std::min(names.size(), printed); ++i) {
    std::string_view nearest = NearestName(names[i], first);
    if (nearest.empty()) nearest = NearestName(names[i], second);
    if (!nearest.empty()) described[i] += fmt::format(" (nearest: {})", nearest);
  }
  return described;
}

// What takes part: names that one of the patterns matches, or all where there is none.
class Scope {
 public:
  explicit Scope(const std::vector<std::string>& patterns) : is_all_(patterns.empty()), patterns_(patterns) {}

  bool Has(std::string_view name) { return is_all_ || patterns_.Matches(name); }
  const PatternList& patterns() const { return patterns_; }

 private:
  const bool is_all_;
  PatternList patterns_;
};

// Sets the names and both maps; whether the names will do is the caller's to judge.
NameMatch PairNames(const std::vector<TensorSpec>& sender, const std::vector<TensorSpec>& engine, PatternList& ignored,
                    Scope& scope) {
  NameMatch match{.engine_of_sender = std::vector<std::int32_t>(sender.size(), -1),
                  .sender_of_engine = std::vector<std::int32_t>(engine.size(), -1),
                  .carried = {},
                  .names = {},
                  .pattern_tests = 0};
  const NameIndex known = IndexOf(engine);
  for (std::size_t s = 0; s < sender.size(); ++s) {
    const std::string& name = sender[s].name;
    const bool in_scope = scope.Has(name);
    if (const auto found = known.find(name); found == known.end()) {
      (ignored.Matches(name) || !in_scope ? match.names.ignored : match.names.unexpected).push_back(name);
    } else if (in_scope) {
      match.engine_of_sender[s] = found->second;
      match.sender_of_engine[static_cast<std::size_t>(found->second)] = static_cast<std::int32_t>(s);
    }
  }
  for (std::size_t e = 0; e < engine.size(); ++e) {
    if (match.sender_of_engine[e] >= 0) {
      match.names.loaded.push_back(engine[e].name);
    } else if (scope.Has(engine[e].name)) {
      match.names.expected.push_back(engine[e].name);
    } else {
      match.carried.push_back(static_cast<std::int32_t>(e));
    }
  }
  match.pattern_tests = ignored.tests() + scope.patterns().tests();
  return match;
}

Status NamesDiffer(const NameSets& names, const std::vector<TensorSpec>& sender,
                   const std::vector<TensorSpec>& engine) {
  std::string message;
  if (!names.expected.empty()) {
    message = fmt::format("the engine needs {} that no sender has: {}", names.expected.size(),
                          FirstOf(WithNearest(names.expected, names.unexpected, sender, kListedMax)));
  }
  if (!names.unexpected.empty()) {
    message += fmt::format("{}the sender has {} that the engine does not know: {}", message.empty() ? "" : "; ",
                           names.unexpected.size(),
                           FirstOf(WithNearest(names.unexpected, names.expected, engine, kListedMax)));
  }
  return Status::FailedPrecondition(names.expected.empty() ? "tensor_unexpected" : "tensor_missing",
                                    std::move(message));
}

}  // namespace

// Greedy: after a '*' the earliest place for the rest is as good as any, so only the last '*' is ever tried again.
bool MatchesPattern(std::string_view pattern, std::string_view name) {
  std::size_t p = 0;
  std::size_t n = 0;
  std::size_t star = std::string_view::npos;
  std::size_t resume = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

Result<NameMatch> MatchNames(const std::vector<TensorSpec>& sender, const std::vector<TensorSpec>& engine,
                             const std::vector<std::string>& ignore, const std::vector<std::string>& scope) {
  PatternList ignored(ignore);
  Scope declared(scope);
  NameMatch match = PairNames(sender, engine, ignored, declared);
  if (const std::vector<std::string> unmatched = declared.patterns().Unmatched(); !unmatched.empty()) {
    return Status::FailedPrecondition("scope_matches_nothing",
                                      fmt::format("no tensor of trainer or engine matches {}", FirstOf(unmatched)));
  }
  if (!match.names.expected.empty() || !match.names.unexpected.empty()) {
    return NamesDiffer(match.names, sender, engine);
  }
  if (const std::vector<std::string> unmatched = ignored.Unmatched(); !unmatched.empty()) {
    return Status::FailedPrecondition(
        "ignore_matches_nothing",
        fmt::format("of the names that the engine does not know none matches {}", FirstOf(unmatched)));
  }
  if (!scope.empty() && match.names.loaded.empty()) {
    return Status::FailedPrecondition("scope_matches_nothing", "every tensor in scope is ignored");
  }
  return match;
}

NameSets CompareNames(const std::vector<TensorSpec>& sender, const std::vector<TensorSpec>& engine,
                      const std::vector<std::string>& ignore) {
  PatternList ignored(ignore);
  Scope all({});
  return PairNames(sender, engine, ignored, all).names;
}

}  // namespace bascule
