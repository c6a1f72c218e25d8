// Phi-3 and Phi-4: Llama's layer, but the checkpoint itself stores q, k, v and gate, up as one tensor each.
#include "model/architectures/decoder_modules.h"
#include "model/architectures/registry_internal.h"

namespace bascule {
namespace {

std::vector<Module> Layer(const ModelConfig& config, std::int64_t layer) {
  std::vector<Module> modules = LlamaLayer(config, layer);
  for (Module& module : modules) {
    Linear* const linear = std::get_if<Linear>(&module);
    if (linear != nullptr && linear->parts.size() > 1) linear->stored_name = linear->engine_name;
  }
  return modules;
}

}  // namespace

const Architecture kPhi3 = {.name = "Phi3ForCausalLM", .layer = Layer};

}  // namespace bascule
