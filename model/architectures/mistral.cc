// Mistral: the tensors of Llama; the size of a head may be stated apart from the hidden size.
#include <fmt/format.h>

#include "model/architectures/decoder_modules.h"
#include "model/architectures/registry_internal.h"

namespace bascule {
namespace {

// A file that leaves the window out has the usual one; null says that there is none.
constexpr std::int64_t kUsualWindow = 4096;

Status ReadMistral(const ConfigReader& reader, ModelConfig& config) {
  if (!reader.Mentions("sliding_window") && config.max_positions > kUsualWindow) {
    config.attention_window = fmt::format("sliding_window: absent, which stands for {}", kUsualWindow);
  }
  return OkStatus();
}

}  // namespace

const Architecture kMistral = {.name = "MistralForCausalLM", .read = ReadMistral, .layer = LlamaLayer};

}  // namespace bascule
