#include <algorithm>

#include "device/cuda/error.h"
#include "kernels/cublas/cublas.h"
#include "kernels/gemm_device.h"

namespace bascule {
namespace {

constexpr std::int64_t kMostPartial = std::int64_t{16} << 20;  // floats of pieces' results at once, as a rule
constexpr int kPieces = 3;

class CublasGemm final : public DeviceGemm {
 public:
  static Result<std::unique_ptr<DeviceGemm>> Make(Device& device, const DeviceGemmLimits& limits) {
    ASSIGN_OR_RETURN(const Cublas* const cublas, LoadCublas());
    std::unique_ptr<CublasGemm> gemm(new CublasGemm(*cublas, device.description(), limits));
    const auto pieces = static_cast<std::size_t>(gemm->pieces_);
    ASSIGN_OR_RETURN(gemm->workspace_, device.memory().Allocate(static_cast<std::size_t>(limits.workspace_bytes)));
    ASSIGN_OR_RETURN(gemm->split_, device.memory().Allocate(pieces * static_cast<std::size_t>(limits.activations) * 2));
    if (pieces > 1) {
      const auto partial = static_cast<std::size_t>(gemm->most_partial_);
      ASSIGN_OR_RETURN(gemm->partial_, device.memory().Allocate(partial * sizeof(float)));
    }
    USE_DEVICE(device.description());
    RETURN_IF_ERROR(gemm->ToStatus(cublas->create(&gemm->handle_), "cublasCreate"));
    return std::unique_ptr<DeviceGemm>(std::move(gemm));
  }
  ~CublasGemm() override {
    const UseDevice use(device_.ordinal);
    if (handle_ != nullptr) static_cast<void>(cublas_.destroy(handle_));
  }
  CublasGemm(const CublasGemm&) = delete;
  CublasGemm& operator=(const CublasGemm&) = delete;

  Status Multiply(const DeviceGemmProblem& problem, StreamHandle stream) override {
    if (problem.rows == 0 || problem.outputs == 0) return OkStatus();
    USE_DEVICE(device_);
    RETURN_IF_ERROR(Use(stream));
    if (problem.w.type == WeightType::kF32) {
      return Product({CUDA_R_32F, problem.x, problem.rows}, problem, 0, problem.outputs,
                     {problem.y, problem.y_stride, problem.accumulate});
    }
    const std::int64_t activations = problem.rows * problem.k;
    CHECK(activations <= limits_.activations);
    RETURN_IF_ERROR(SplitIntoBf16OnDevice(problem.x, activations, pieces_, Split(), stream));
    if (pieces_ == 1) {
      return Product({CUDA_R_16BF, Split(), problem.rows}, problem, 0, problem.outputs,
                     {problem.y, problem.y_stride, problem.accumulate});
    }
    return MultiplyPieces(problem, stream);
  }

 private:
  struct Left {
    cudaDataType type;
    const void* x;
    std::int64_t rows;
  };
  struct Target {
    float* y;
    std::int64_t stride;
    bool accumulate;
  };

  CublasGemm(const Cublas& cublas, const DeviceDescription& device, const DeviceGemmLimits& limits)
      : cublas_(cublas),
        device_(device),
        limits_(limits),
        pieces_(limits.precision == ActivationPrecision::kFull ? kPieces : 1),
        most_partial_(std::min(kPieces * limits.results, kMostPartial)) {}

  Status ToStatus(cublasStatus_t answer, std::string_view call) const {
    return cublas_.ToStatus(answer, call, device_);
  }
  std::uint16_t* Split() const { return reinterpret_cast<std::uint16_t*>(split_->bytes().data()); }
  float* Partial() const { return reinterpret_cast<float*>(partial_->bytes().data()); }

  // A handle that gets another stream forgets its workspace.
  Status Use(StreamHandle stream) {
    if (in_use_ && stream_.native == stream.native) return OkStatus();
    in_use_ = false;
    RETURN_IF_ERROR(ToStatus(cublas_.set_stream(handle_, static_cast<cudaStream_t>(stream.native)), "cublasSetStream"));
    RETURN_IF_ERROR(ToStatus(cublas_.set_workspace(handle_, workspace_->bytes().data(), workspace_->bytes().size()),
                             "cublasSetWorkspace"));
    stream_ = stream;
    in_use_ = true;
    return OkStatus();
  }

  // As many outputs at a time as the pieces' results have room for; how many depends on sizes only.
  Status MultiplyPieces(const DeviceGemmProblem& problem, StreamHandle stream) {
    const std::int64_t rows = kPieces * problem.rows;
    const std::int64_t at_once = std::min(most_partial_ / rows, problem.outputs);
    CHECK(at_once > 0);
    for (std::int64_t first = 0; first < problem.outputs; first += at_once) {
      const std::int64_t count = std::min(at_once, problem.outputs - first);
      RETURN_IF_ERROR(Product({CUDA_R_16BF, Split(), rows}, problem, first, count, {Partial(), count, false}));
      RETURN_IF_ERROR(SumPiecesOnDevice(Partial(), problem.rows, count, problem.y + first, problem.y_stride,
                                        problem.accumulate, stream));
    }
    return OkStatus();
  }

  // cuBLAS counts by columns: our rows of weights are its columns, transposed, and our rows of `x` and `y` its columns.
  Status Product(const Left& left, const DeviceGemmProblem& problem, std::int64_t first, std::int64_t outputs,
                 const Target& target) {
    const float one = 1, beta = target.accumulate ? 1.0f : 0.0f;
    const cudaDataType weights = problem.w.type == WeightType::kF32 ? CUDA_R_32F : CUDA_R_16BF;
    return ToStatus(
        cublas_.gemm(handle_, CUBLAS_OP_T, CUBLAS_OP_N, outputs, left.rows, problem.k, &one,
                     problem.w.From(first * problem.k).data, weights, problem.k, left.x, left.type, problem.k, &beta,
                     target.y, CUDA_R_32F, target.stride, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "cublasGemmEx");
  }

  const Cublas& cublas_;
  const DeviceDescription& device_;
  const DeviceGemmLimits limits_;
  const int pieces_;
  const std::int64_t most_partial_;
  cublasHandle_t handle_ = nullptr;
  std::unique_ptr<DeviceBuffer> workspace_, split_, partial_;
  StreamHandle stream_;
  bool in_use_ = false;
};

}  // namespace
}  // namespace bascule

const bascule::DeviceGemmPart* bascule_cuda_gemm() {
  static constexpr bascule::DeviceGemmPart part = {.make = bascule::CublasGemm::Make};
  return &part;
}
