#include "base/token_table.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/private_file.h"

namespace bascule {
namespace {

constexpr std::array<std::string_view, 4> kRoleNames = {"read", "generate", "operate", "publish"};
constexpr std::string_view kBlank = " \t\r";
constexpr std::size_t kMaxFileBytes = 4 << 20;

Status BadFile(std::size_t line, std::string_view why) {
  return Status::InvalidArgument("bad_token_file", fmt::format("line {}: {}", line, why));
}

// The text before the first of `separators`, which is taken off `rest` with it.
std::string_view Cut(std::string_view& rest, std::string_view separators) {
  const std::size_t end = std::min(rest.find_first_of(separators), rest.size());
  const std::string_view head = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return head;
}

std::string_view Trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

Result<RoleSet> ParseRoles(std::string_view text, std::size_t line) {
  if (text.empty() || text.back() == ',') return BadFile(line, "no role; want TOKEN ROLE[,ROLE]");
  RoleSet roles;
  while (!text.empty()) {
    const std::string_view name = Trimmed(Cut(text, ","));
    const auto found = std::find(kRoleNames.begin(), kRoleNames.end(), name);
    // What stands there may be a token with a space in it: it is not told.
    if (found == kRoleNames.end()) return BadFile(line, "unknown role; there are read, generate, operate and publish");
    roles.Add(static_cast<Role>(found - kRoleNames.begin()));
  }
  return roles;
}

std::uint8_t Differences(const Hash256& a, const Hash256& b) {
  std::byte all{};
  for (std::size_t i = 0; i < a.bytes.size(); ++i) all |= a.bytes[i] ^ b.bytes[i];
  return static_cast<std::uint8_t>(all);
}

}  // namespace

std::string_view RoleName(Role role) { return kRoleNames[static_cast<std::size_t>(role)]; }

RoleSet RoleSet::If(bool taken) const {
  RoleSet result;
  result.bits_ = static_cast<std::uint8_t>(bits_ * static_cast<unsigned>(taken));
  return result;
}

Status CheckToken(std::string_view token) {
  const bool printable = std::all_of(token.begin(), token.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (!token.empty() && token.size() <= kMaxTokenBytes && printable) return OkStatus();
  return Status::InvalidArgument(
      "bad_token",
      fmt::format("a token of {} bytes: want 1 to {}, printable ASCII without a space", token.size(), kMaxTokenBytes));
}

Result<TokenTable> TokenTable::Parse(std::string_view text) {
  TokenTable table;
  std::map<Hash256, std::size_t> line_of;
  for (std::size_t line = 1; !text.empty(); ++line) {
    std::string_view rest = Trimmed(Cut(text, "\n"));
    if (rest.empty() || rest.front() == '#') continue;
    const std::string_view token = Cut(rest, kBlank);
    if (const Status status = CheckToken(token); !status.ok()) return BadFile(line, status.message());
    ASSIGN_OR_RETURN(const RoleSet roles, ParseRoles(Trimmed(rest), line));
    const auto [first, is_new] = line_of.emplace(Sha256Of(token), line);
    if (!is_new) return BadFile(line, fmt::format("the same token as in line {}", first->second));
    table.entries_.push_back({first->first, roles});
    if (table.entries_.size() > kMaxTokens) return BadFile(line, fmt::format("more than {} tokens", kMaxTokens));
  }
  if (table.entries_.empty()) return BadFile(1, "no token in the whole file");
  return table;
}

Result<TokenTable> TokenTable::Read(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadPrivateFile(path, kMaxFileBytes));
  Result<TokenTable> table = Parse(text);
  if (!table.ok()) return table.status().WithContext(path);
  return table;
}

std::optional<RoleSet> TokenTable::RolesOf(std::string_view token) const {
  const Hash256 wanted = Sha256Of(token);
  RoleSet roles;
  bool known = false;
  for (const Entry& entry : entries_) {
    const bool same = Differences(entry.token, wanted) == 0;
    roles.Add(entry.roles.If(same));
    known |= same;
  }
  return known ? std::optional(roles) : std::nullopt;
}

}  // namespace bascule
