#include "kernels/onednn/onednn_gemm.h"

#include <omp.h>

#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <tuple>
#include <vector>

#include "base/mutex.h"

namespace bascule {
namespace {

using dnnl::memory;

constexpr std::int64_t kLeastRows = 8;

// What a product is prepared for; strides in elements.
struct ProductShape {
  std::int64_t rows, k, outputs, y_stride;
  bool accumulate;
  friend auto operator<=>(const ProductShape&, const ProductShape&) = default;
};

// A prepared product, and how it wants its memory described.
struct Product {
  Product(const ProductShape& shape, const dnnl::engine& engine)
      : x({shape.rows, shape.k}, memory::data_type::bf16, memory::dims{PackedBf16Width(shape.k), 1}),
        w({shape.k, shape.outputs}, memory::data_type::bf16, memory::dims{1, shape.k}),
        y({shape.rows, shape.outputs}, memory::data_type::f32, memory::dims{shape.y_stride, 1}) {
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);  // the library's own is for one thread at a time
    if (shape.accumulate) {
      dnnl::post_ops then;
      then.append_sum();
      attributes.set_post_ops(then);
    }
    const dnnl::matmul::primitive_desc prepared(dnnl::matmul::desc(x, w, y), attributes, engine);
    scratch = prepared.scratchpad_desc();
    matmul = dnnl::matmul(prepared);
  }
  memory::desc x, w, y, scratch;
  dnnl::matmul matmul;
};

// Grows to the largest product that this thread computes.
std::byte* ScratchOfThread(std::size_t size) {
  thread_local std::vector<std::byte> scratch;
  if (scratch.size() < size) scratch.resize(size);
  return scratch.data();
}

class OneDnnGemm final : public FastGemm {
 public:
  std::int64_t least_rows() const override { return kLeastRows; }

  void Multiply(const FastGemmProblem& problem, std::int64_t first, std::int64_t last) override {
    // Whoever calls has divided the work already; the library would start threads of its own.
    thread_local const bool alone = (omp_set_num_threads(1), true);
    static_cast<void>(alone);
    const Product& product =
        Prepared({RowsComputed(problem.rows), problem.k, last - first, problem.y_stride, problem.accumulate});
    const auto at = [this](const memory::desc& desc, const void* data) {
      return memory(desc, engine_, const_cast<void*>(data));
    };
    dnnl::stream stream(engine_);
    product.matmul.execute(stream,
                           {{DNNL_ARG_SRC, at(product.x, problem.x)},
                            {DNNL_ARG_WEIGHTS, at(product.w, problem.w + first * problem.k * kBf16Bytes)},
                            {DNNL_ARG_DST, at(product.y, problem.y + first)},
                            {DNNL_ARG_SCRATCHPAD, at(product.scratch, ScratchOfThread(product.scratch.get_size()))}});
    stream.wait();
  }

 private:
  static constexpr std::int64_t kBf16Bytes = 2;

  const Product& Prepared(const ProductShape& shape) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return products_.try_emplace(shape, shape, engine_).first->second;
  }

  const dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  Mutex mu_;
  std::map<ProductShape, Product> products_ GUARDED_BY(mu_);  // a few dozen shapes of one model
};

}  // namespace

Result<std::unique_ptr<FastGemm>> MakeOneDnnGemm() try {
  auto gemm = std::make_unique<OneDnnGemm>();
  // Whether there is a product at all is the same for every shape.
  const std::vector<std::uint16_t> operands(16 * 32);
  std::vector<float> y(16 * 16);
  const auto* const bytes = reinterpret_cast<const std::byte*>(operands.data());
  gemm->Multiply({.x = bytes, .rows = 16, .k = 32, .w = bytes, .y = y.data(), .y_stride = 16}, 0, 16);
  return std::unique_ptr<FastGemm>(std::move(gemm));
} catch (const dnnl::error& error) {
  return Status::Unimplemented("numerics_unsupported",
                               fmt::format("oneDNN has no bf16 product for this processor: {}", error.what()));
}

}  // namespace bascule
