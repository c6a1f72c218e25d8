#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "base/hex.h"
#include "trainer_side/decision_text_internal.h"

namespace bascule {
namespace {

constexpr std::string_view kMagic = "bascule-journal 1";
constexpr std::string_view kTakenBack = "taken-back";
constexpr std::string_view kEnd = "end ";

// One word: blanks, '%' and control characters as %XX.
std::string WordOf(std::string_view text) {
  std::string word;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte <= ' ' || byte == '%' || byte == 0x7f) {
      word += fmt::format("%{:02x}", byte);
    } else {
      word += c;
    }
  }
  return word;
}

std::optional<std::string> TextOf(std::string_view word) {
  std::string text;
  for (std::size_t i = 0; i < word.size(); ++i) {
    if (word[i] != '%') {
      text += word[i];
      continue;
    }
    const auto byte = BytesOfHex(word.substr(i + 1, 2));
    if (!byte.ok() || byte->size() != 1) return std::nullopt;
    text += static_cast<char>(byte->front());
    i += 2;
  }
  return text;
}

std::string_view TakeWord(std::string_view& line) {
  const std::size_t end = std::min(line.find(' '), line.size());
  const std::string_view word = line.substr(0, end);
  line.remove_prefix(std::min(end + 1, line.size()));
  return word;
}

bool ReadVersion(std::string_view words, WeightVersion& version) {
  const std::string_view number = TakeWord(words);
  const auto [end, error] = std::from_chars(number.begin(), number.end(), version.number);
  const auto digest = BytesOfHex(TakeWord(words));
  const auto run = TextOf(TakeWord(words));
  if (error != std::errc() || end != number.end() || !digest.ok() || digest->size() != version.digest.bytes.size() ||
      !run || !words.empty()) {
    return false;
  }
  std::copy(digest->begin(), digest->end(), version.digest.bytes.begin());
  version.run = *run;
  return true;
}

// The lines of a journal: the first says what the file is, the second what was decided, the next perhaps that it was
// taken back, one more for each replica.
class DecisionReader {
 public:
  // False: the line has no place there.
  bool Read(std::string_view line) {
    ++lines_;
    if (lines_ == 1) return line == kMagic;
    if (lines_ == 3 && line == kTakenBack) return decision_.taken_back = true;
    const std::string_view key = TakeWord(line);
    return lines_ == 2 ? key == "commit" && ReadVersion(line, decision_.version) : ReadReplica(key, line);
  }
  bool complete() const { return lines_ >= 2; }
  int lines() const { return lines_; }
  const CommitDecision& decision() const { return decision_; }

 private:
  bool ReadReplica(std::string_view state, std::string_view word) {
    const auto address = TextOf(word);
    if (!address || (state != "replica" && state != "live")) return false;
    if (!named_.insert(*address).second) return false;  // twice
    decision_.replicas.push_back(*address);
    if (state == "live") decision_.live.insert(*address);
    return true;
  }

  CommitDecision decision_;
  std::set<std::string> named_;
  int lines_ = 0;
};

}  // namespace

std::string DecisionText(const CommitDecision& decision) {
  std::string text = fmt::format("{}\ncommit {} {} {}\n", kMagic, decision.version.number,
                                 decision.version.digest.ToHex(), WordOf(decision.version.run));
  if (decision.taken_back) text += fmt::format("{}\n", kTakenBack);
  for (const std::string& address : decision.replicas) {
    text += fmt::format("{} {}\n", decision.has(address) ? "live" : "replica", WordOf(address));
  }
  return text + fmt::format("{}{}\n", kEnd, Sha256Of(text).ToHex());
}

Result<CommitDecision> ParseDecision(std::string_view text) {
  const std::size_t end = text.rfind(kEnd);
  if (end == std::string_view::npos ||
      text.substr(end) != fmt::format("{}{}\n", kEnd, Sha256Of(text.substr(0, end)).ToHex())) {
    return Status::DataLoss("bad_journal", "its hash is missing, or another");
  }
  text = text.substr(0, end);
  DecisionReader reader;
  while (!text.empty() || !reader.complete()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (!reader.Read(line)) {
      return Status::DataLoss("bad_journal", fmt::format("line {} has no place there", reader.lines()));
    }
  }
  return reader.decision();
}

}  // namespace bascule
