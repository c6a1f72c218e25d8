#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>

#include "base/hex.h"
#include "trainer_side/decision_text_internal.h"

namespace bascule {
namespace {

constexpr std::string_view kMagic = "bascule-journal 1";
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
      !run) {
    return false;
  }
  std::copy(digest->begin(), digest->end(), version.digest.bytes.begin());
  version.run = *run;
  return true;
}

// False: the line has no place in a journal.
bool ReadLine(std::string_view line, CommitDecision& decision) {
  const std::string_view key = TakeWord(line);
  if (key == "commit") return ReadVersion(line, decision.version);
  const auto address = TextOf(line);
  if (!address || (key != "replica" && key != "live")) return false;
  decision.replicas.push_back(*address);
  return key == "replica" || decision.live.insert(*address).second;
}

}  // namespace

std::string DecisionText(const CommitDecision& decision) {
  std::string text = fmt::format("{}\ncommit {} {} {}\n", kMagic, decision.version.number,
                                 decision.version.digest.ToHex(), WordOf(decision.version.run));
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
  CommitDecision decision;
  for (int number = 1; !text.empty(); ++number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (number == 1 ? line == kMagic : ReadLine(line, decision)) continue;
    return Status::DataLoss("bad_journal", fmt::format("line {} has no place there", number));
  }
  return decision;
}

}  // namespace bascule
