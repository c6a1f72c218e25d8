#include "base/error_text.h"

#include <string>

namespace bascule {
namespace {

bool ContinuesACharacter(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U; }

}  // namespace

std::string_view BeginningOf(std::string_view text, std::size_t bytes) {
  if (text.size() <= bytes) return text;
  while (bytes > 0 && ContinuesACharacter(text[bytes])) --bytes;
  return text.substr(0, bytes);
}

Status WithShortText(const Status& status, std::size_t bytes) {
  if (status.message().size() <= bytes) return status;
  return Status(status.code(), status.reason(), std::string(BeginningOf(status.message(), bytes)));
}

}  // namespace bascule
