// config.json from anywhere: what is read has sizes that can be told in one line, and is judged without a surprise.
#include <cstdint>
#include <string_view>

#include "base/status.h"
#include "model/model_config.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto config = bascule::ParseModelConfig({reinterpret_cast<const char*>(data), size});
  if (!config.ok()) return 0;
  CHECK(!config->Description().empty() && config->Description().size() < (std::size_t{1} << 20));
  (void)bascule::CheckDecodable(*config);
  return 0;
}
