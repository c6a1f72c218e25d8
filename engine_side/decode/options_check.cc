#include "engine_side/decode/options_check.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/thread_priority.h"

namespace bascule {
namespace {

constexpr std::int64_t kDefaultKvBytes = std::int64_t{1} << 30;

}  // namespace

Status CheckOptions(const DecodeOptions& options) {
  const auto bad = [](std::string what) { return Status::InvalidArgument("bad_options", std::move(what)); };
  const ModelConfig& config = options.config;
  for (const std::int64_t size : {config.layers, config.hidden, config.query_heads, config.kv_heads, config.head_size,
                                  config.ffn, config.vocabulary, config.max_positions}) {
    if (size < 1) return bad("a size of the model is not positive: " + config.Description());
  }
  if (config.query_heads % config.kv_heads != 0 || config.head_size % 2 != 0) {
    return bad("heads do not divide: " + config.Description());
  }
  if (options.tensors.layers.size() != static_cast<std::size_t>(config.layers)) {
    return bad(fmt::format("tensors of {} layers, the model has {}", options.tensors.layers.size(), config.layers));
  }
  std::vector<DType> dtypes = options.dtypes;
  dtypes.push_back(options.dtype);
  for (const DType dtype : dtypes) {
    if (dtype == DType::kBf16 || dtype == DType::kF32) continue;
    return bad(fmt::format("dtype={} want=BF16|F32", DTypeName(dtype)));
  }
  if (options.page_tokens < 1 || options.page_tokens % kKvGroup != 0) {
    return bad(fmt::format("page_tokens={} want a multiple of {}", options.page_tokens, kKvGroup));
  }
  if (!options.drains && options.kv_policy == KvPolicy::kDrain) return bad("kv_policy=drain needs flip mode shadow");
  if (options.max_waiting_tokens < 1 || options.time_limit <= Duration::zero()) {
    return bad(
        fmt::format("max_waiting_tokens={} time_limit_ms={}", options.max_waiting_tokens, MsOf(options.time_limit)));
  }
  if (options.threads < 1 || options.threads > 1024 || options.kv_pages < 0 || options.max_running < 1 ||
      options.max_waiting < 1 || options.max_step_tokens < 1) {
    return bad(fmt::format("threads={} kv_pages={} max_running={} max_waiting={} max_step_tokens={}", options.threads,
                           options.kv_pages, options.max_running, options.max_waiting, options.max_step_tokens));
  }
  if (!options.devices.empty() && std::ssize(options.devices.devices) != options.ranks) {
    return bad(fmt::format("devices={} ranks={}: one for each", options.devices.devices.size(), options.ranks));
  }
  return CheckCores(options.cores);
}

std::int64_t KvPageCount(const DecodeOptions& options, const KvShape& shape) {
  if (options.kv_pages > 0) return options.kv_pages;
  const std::int64_t of_request = (options.config.max_positions + shape.page_tokens - 1) / shape.page_tokens;
  const std::int64_t page_bytes = shape.PageFloats().value_or(kDefaultKvBytes) * std::int64_t{sizeof(float)};
  const std::int64_t fitting = kDefaultKvBytes / shape.ranks / page_bytes;
  return std::max(std::int64_t{1}, std::min(options.max_running * of_request, fitting));
}

}  // namespace bascule
