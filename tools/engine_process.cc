#include "tools/engine_process.h"

#include <algorithm>
#include <utility>

#include "engine_side/decode/grpc/rollout_service.h"

#if defined(BASCULE_ONEDNN)
#include "kernels/onednn/onednn_gemm.h"
#endif

namespace bascule {
namespace {

constexpr std::int32_t kMostStepTokens = 2048;  // activations have memory for so many

// Norms and routers are often kept in fp32 beside bf16 weights.
Status CheckEngineTypes(const LogicalCheckpoint& checkpoint, WantedDType wanted) {
  for (const TensorSpec& tensor : checkpoint.tensors()) {
    const DType stored = StorageDType(tensor, wanted);
    if (stored == DType::kBf16 || stored == DType::kF32) continue;
    return Status::InvalidArgument(
        "unsupported_dtype", fmt::format("{} is {}; the engine runs BF16 and F32", tensor.name, DTypeName(stored)));
  }
  return OkStatus();
}

ServingStatus ServingOf(const DecodeStatus& decode) {
  return {.running = decode.running,
          .waiting = decode.waiting,
          .kv_pages_used = decode.kv_pages_used,
          .kv_pages_total = decode.kv_pages_total,
          .prefix_entries = decode.prefix_entries,
          .kv_policy = std::string(KvPolicyName(decode.kv_policy)),
          .flip_gaps = decode.flip_gaps,
          .device = decode.device,
          .staging_share = std::nullopt};
}

Result<std::unique_ptr<FastGemm>> MakeFastGemm() {
#if defined(BASCULE_ONEDNN)
  return MakeOneDnnGemm();
#else
  return Status::Unimplemented("numerics_unsupported", "this program was built without oneDNN (Debian: libdnnl-dev)");
#endif
}

}  // namespace

// In the order in which they are made; each may use those before it, and they go the other way.
struct EngineProcess::Parts {
  std::unique_ptr<StagingThrottle> throttle;  // may be null
  std::unique_ptr<FastGemm> fast;             // likewise
  std::unique_ptr<DecodeEngine> decode;
  std::unique_ptr<RolloutService> rollout;
  std::unique_ptr<ReceivingProcess> receiving;

  Status MakeDecoder(const EngineProcessOptions& options, const ModelConfig& config, const EngineLayout& layout);
  ServingStatus Serving() const;
  ~Parts() {
    if (decode != nullptr) decode->Stop();
  }
};

Status EngineProcess::Parts::MakeDecoder(const EngineProcessOptions& options, const ModelConfig& config,
                                         const EngineLayout& layout) {
  DecodeOptions decode_options;
  decode_options.config = config;
  decode_options.tensors = layout.tensors;
  for (const LocalTensor& tensor : layout.layout.ranks.front().tensors) decode_options.dtypes.push_back(tensor.dtype);
  decode_options.ranks = options.parallel.tensor;
  decode_options.threads = options.threads;
  decode_options.kv_pages = options.kv_pages;
  decode_options.max_running = options.max_running;
  decode_options.max_waiting = options.max_waiting;
  decode_options.kv_policy = options.kv_policy;
  decode_options.drains = options.flip == FlipMode::kShadow;
  // A step has room for every request that decodes, and as much again for prompts.
  decode_options.max_step_tokens =
      std::max(decode_options.max_step_tokens, 2 * std::min(options.max_running, kMostStepTokens / 2));
  decode_options.cores = options.decode_cores;
  decode_options.devices = options.decode_devices;
  if (options.fast_numerics && options.decode_devices.empty()) {
    ASSIGN_OR_RETURN(fast, MakeFastGemm());
  } else if (options.fast_numerics) {
    decode_options.devices.precision = ActivationPrecision::kBf16;
  }
  decode_options.fast = fast.get();
  if (options.staging_slowdown > 0) {
    throttle = std::make_unique<StagingThrottle>(options.staging_slowdown, Clock::Real());
  }
  decode_options.staging = throttle.get();
  ASSIGN_OR_RETURN(decode, DecodeEngine::Create(std::move(decode_options)));
  return OkStatus();
}

ServingStatus EngineProcess::Parts::Serving() const {
  ServingStatus serving = ServingOf(decode->status());
  if (throttle != nullptr) serving.staging_share = throttle->share();
  return serving;
}

Result<std::unique_ptr<EngineProcess>> EngineProcess::Start(const EngineProcessOptions& options,
                                                            const LogicalCheckpoint& checkpoint) {
  RETURN_IF_ERROR(checkpoint.config().status());
  RETURN_IF_ERROR(CheckDecodable(*checkpoint.config()));
  RETURN_IF_ERROR(CheckEngineTypes(checkpoint, options.dtype));
  ASSIGN_OR_RETURN(ModelCut cut, CutOf(checkpoint, options.parallel, options.dtype));
  auto parts = std::make_unique<Parts>();
  RETURN_IF_ERROR(parts->MakeDecoder(options, *checkpoint.config(), cut.layout));
  parts->rollout = std::make_unique<RolloutService>(*parts->decode);
  ASSIGN_OR_RETURN(parts->receiving, ReceivingProcess::Create(options, std::move(cut), checkpoint, *parts->decode,
                                                              parts->throttle.get()));
  RETURN_IF_ERROR(
      parts->receiving->Serve([parts = parts.get()] { return parts->Serving(); }, {&parts->rollout->service()}));
  parts->decode->Start([receiver = &parts->receiving->receiver()] { return receiver->AcquireLive(); });
  return std::unique_ptr<EngineProcess>(new EngineProcess(std::move(parts)));
}

EngineProcess::EngineProcess(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

EngineProcess::~EngineProcess() = default;

ReceivingProcess& EngineProcess::receiving() { return *parts_->receiving; }

}  // namespace bascule
