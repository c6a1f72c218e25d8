// Who may do what: access tokens and the roles that each of them carries. The table keeps hashes, never a token.
//
// Thread-safety: thread-compatible (a value).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"
#include "base/status.h"

namespace bascule {

enum class Role : std::uint8_t {
  kRead,      // looks: versions, status, digests
  kGenerate,  // has tokens generated
  kOperate,   // chooses among the versions that are there
  kPublish,   // brings new versions
};

std::string_view RoleName(Role role);  // "read"

class RoleSet {
 public:
  RoleSet() = default;
  void Add(Role role) { bits_ = static_cast<std::uint8_t>(bits_ | (1U << static_cast<unsigned>(role))); }
  void Add(RoleSet other) { bits_ = static_cast<std::uint8_t>(bits_ | other.bits_); }
  bool Has(Role role) const { return (bits_ >> static_cast<unsigned>(role) & 1U) != 0; }
  // These roles where `taken`, none otherwise; without a branch on it.
  RoleSet If(bool taken) const;
  friend bool operator==(RoleSet, RoleSet) = default;

 private:
  std::uint8_t bits_ = 0;
};

// Printable ASCII without a space, so that a token fits a line and a header.
inline constexpr std::size_t kMaxTokenBytes = 512;
inline constexpr std::size_t kMaxTokens = 4096;

// InvalidArgument "bad_token"  empty, too long, or a character that no token has; the token itself is not told
Status CheckToken(std::string_view token);

class TokenTable {
 public:
  // Lines "TOKEN ROLE[,ROLE]" with roles read, generate, operate, publish; empty lines and those that begin with '#'
  // say nothing. No error tells a token: it names the line.
  //
  // InvalidArgument "bad_token_file"  a line of another form, an unknown role, a token twice, no token at all, too many
  static Result<TokenTable> Parse(std::string_view text);
  // As Parse, of a file; its messages begin with `path`.
  //
  // NotFound "no_such_file"; PermissionDenied "loose_permissions"; InvalidArgument "bad_file": as ReadPrivateFile
  static Result<TokenTable> Read(const std::string& path);

  // Nothing: no such token. It takes as long whatever the token has in common with those of the table.
  std::optional<RoleSet> RolesOf(std::string_view token) const;

 private:
  struct Entry {
    Hash256 token;
    RoleSet roles;
  };
  std::vector<Entry> entries_;
};

}  // namespace bascule
