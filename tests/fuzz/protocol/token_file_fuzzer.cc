// Token files from anywhere: a table has no more tokens than lines, and no error quotes what may be a token.
#include <algorithm>
#include <cstdint>
#include <string_view>

#include "base/net_address.h"
#include "base/token_table.h"

namespace bascule {
namespace {

void Run(std::string_view text) {
  const Result<TokenTable> table = TokenTable::Parse(text);
  if (!table.ok()) {
    CHECK(table.status().reason() == "bad_token_file");
    // A byte that no message of ours has.
    CHECK(table.status().message().find('~') == std::string::npos);
  } else {
    CHECK(!table->RolesOf("") && !table->RolesOf(text.substr(0, text.find('\n') + 1)));
  }
  const Result<NetAddress> address = NetAddress::Parse(std::string(text));
  if (address.ok()) CHECK(*NetAddress::Parse(address->ToString()) == *address);
}

}  // namespace
}  // namespace bascule

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  bascule::Run({reinterpret_cast<const char*>(data), size});
  return 0;
}
