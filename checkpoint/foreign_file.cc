#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "checkpoint/foreign_file_internal.h"

namespace bascule {
namespace {

using namespace std::string_view_literals;

struct Signature {
  std::string_view magic;
  std::string_view kind;
};

constexpr std::array kSignatures = {
    Signature{"PK\x03\x04"sv, "a zip archive, as torch.save writes"},
    Signature{"PK\x05\x06"sv, "an empty zip archive"},
    Signature{"\x1f\x8b"sv, "a gzip file"},
    Signature{"\x28\xb5\x2f\xfd"sv, "a zstd file"},
    Signature{"\xfd"
              "7zXZ\0"sv,
              "an xz file"},
    Signature{"BZh"sv, "a bzip2 file"},
    Signature{"\x80\x02"sv, "a Python pickle"},
    Signature{"\x80\x03"sv, "a Python pickle"},
    Signature{"\x80\x04"sv, "a Python pickle"},
    Signature{"\x80\x05"sv, "a Python pickle"},
    Signature{"GGUF"sv, "a GGUF file"},
    Signature{"\x93NUMPY"sv, "a NumPy file"},
    Signature{"\x89HDF\r\n"sv, "an HDF5 file"},
    Signature{"\x7f"
              "ELF"sv,
              "an ELF program"},
};

// "version https://git-lfs...\noid sha256:...\nsize 988097824\n"
std::string LfsPointer(std::string_view text) {
  constexpr std::string_view kSize = "\nsize ";
  const std::size_t at = text.find(kSize);
  if (at == text.npos) return "a git-lfs pointer: the real file was not downloaded";
  const std::string_view rest = text.substr(at + kSize.size());
  return fmt::format("a git-lfs pointer: the real file, of {} bytes, was not downloaded",
                     rest.substr(0, std::min(rest.find_first_not_of("0123456789"), rest.size())));
}

// Of ASCII or UTF-8 text.
bool IsTextByte(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return (byte >= 0x20 && byte != 0x7f && byte < 0xf5) || c == '\n' || c == '\r' || c == '\t';
}

}  // namespace

std::string ForeignKind(std::span<const std::byte> head) {
  const std::string_view text(reinterpret_cast<const char*>(head.data()), std::min(head.size(), kForeignHeadBytes));
  if (text.empty()) return "";
  if (text.starts_with("version https://git-lfs")) return LfsPointer(text);
  for (const Signature& signature : kSignatures) {
    if (text.starts_with(signature.magic)) return std::string(signature.kind);
  }
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first != text.npos && text[first] == '<') return "an HTML or XML page: the download failed";
  if (text.size() > 8 && text.find_first_not_of('\0') == text.npos) {
    return "a file that begins with zeros: the download was set up but not carried out";
  }
  if (std::all_of(text.begin(), text.end(), IsTextByte)) return "a text file";
  return "";
}

}  // namespace bascule
