#include "tools/model_origin.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/sha256.h"

namespace bascule {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 9> kTokenizerFiles = {
    "added_tokens.json",       "chat_template.jinja", "merges.txt",
    "special_tokens_map.json", "tokenizer.json",      "tokenizer.model",
    "tokenizer_config.json",   "vocab.json",          "vocab.txt"};

// The Hugging Face cache: .../snapshots/COMMIT
std::string RevisionOf(const std::string& checkpoint) {
  std::error_code error;
  const fs::path directory = fs::canonical(checkpoint, error);
  const std::string name = directory.filename().string();
  const bool is_commit = name.size() == 40 && name.find_first_not_of("0123456789abcdef") == std::string::npos;
  return !error && is_commit && directory.parent_path().filename() == "snapshots" ? name : "";
}

std::string ModelIdOf(const std::string& config_json) {
  const auto config = nlohmann::json::parse(config_json, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object() || !config.contains("_name_or_path") || !config["_name_or_path"].is_string()) return "";
  return config["_name_or_path"].get<std::string>();
}

Result<Hash256> HashOf(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  Sha256 hash;
  std::array<char, 1 << 16> block;
  while (file.read(block.data(), block.size()), file.gcount() > 0) {
    hash.Add(std::string_view(block.data(), static_cast<std::size_t>(file.gcount())));
  }
  if (!file.eof()) return Status::PermissionDenied("file_not_readable", path.string() + ": cannot be read");
  return hash.Finish();
}

// SHA-256 over name "\n" hash "\n" of each file that is there, by name.
Result<std::string> TokenizerRevisionOf(const std::string& checkpoint) {
  Sha256 all;
  bool any = false;
  for (const std::string_view name : kTokenizerFiles) {
    const fs::path path = fs::path(checkpoint) / name;
    std::error_code error;
    if (!fs::is_regular_file(path, error)) continue;
    ASSIGN_OR_RETURN(const Hash256 hash, HashOf(path));
    all.Add(fmt::format("{}\n{}\n", name, hash.ToHex()));
    any = true;
  }
  return any ? all.Finish().ToHex() : std::string();
}

}  // namespace

Result<ModelOrigin> OriginOf(const std::string& checkpoint, const std::string& config_json) {
  ModelOrigin origin{
      .model_id = ModelIdOf(config_json), .model_revision = RevisionOf(checkpoint), .tokenizer_revision = ""};
  ASSIGN_OR_RETURN(origin.tokenizer_revision, TokenizerRevisionOf(checkpoint));
  return origin;
}

}  // namespace bascule
