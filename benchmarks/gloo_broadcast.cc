#include "benchmarks/gloo_broadcast.h"

#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <cstring>
#include <exception>

namespace bascule {
namespace {

constexpr int kRanks = 2;
constexpr std::chrono::seconds kTimeout(60);

// Gloo throws; here that ends.
template <typename Work>
Status Guarded(const Work& work) {
  try {
    work();
    return OkStatus();
  } catch (const std::exception& error) {
    return Status::Unavailable("gloo", error.what());
  }
}

class Rank final : public GlooRank {
 public:
  explicit Rank(std::shared_ptr<gloo::rendezvous::Context> context) : context_(std::move(context)) {}

  Status Broadcast(std::span<const std::byte> weights, const std::vector<std::int64_t>& tensor_bytes) override {
    return Guarded([&] {
      auto* at = reinterpret_cast<char*>(const_cast<std::byte*>(weights.data()));  // gloo only reads rank 0's
      for (const std::int64_t bytes : tensor_bytes) {
        BroadcastOne(at, static_cast<std::size_t>(bytes));
        at += bytes;
      }
      Meet();
    });
  }

  Status TakeBroadcast(std::span<std::byte> place, std::span<std::byte> staging,
                       const std::vector<std::int64_t>& tensor_bytes) override {
    return Guarded([&] {
      std::byte* at = place.data();
      for (const std::int64_t bytes : tensor_bytes) {
        BroadcastOne(reinterpret_cast<char*>(staging.data()), static_cast<std::size_t>(bytes));
        std::memcpy(at, staging.data(), static_cast<std::size_t>(bytes));
        at += bytes;
      }
      Meet();
    });
  }

 private:
  void BroadcastOne(char* memory, std::size_t bytes) {
    gloo::BroadcastOptions options(context_);
    options.setOutput(memory, bytes);
    options.setRoot(0);
    gloo::broadcast(options);
  }
  void Meet() {
    gloo::BarrierOptions options(context_);
    gloo::barrier(options);
  }

  const std::shared_ptr<gloo::rendezvous::Context> context_;
};

}  // namespace

Result<std::unique_ptr<GlooRank>> GlooRank::Join(int rank, const std::string& directory) {
  std::unique_ptr<GlooRank> joined;
  RETURN_IF_ERROR(Guarded([&] {
    gloo::transport::tcp::attr loopback;
    loopback.iface = "lo";
    auto device = gloo::transport::tcp::CreateDevice(loopback);
    gloo::rendezvous::FileStore store(directory);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, kRanks);
    context->setTimeout(kTimeout);
    context->connectFullMesh(store, device);
    joined = std::make_unique<Rank>(std::move(context));
  }));
  return joined;
}

}  // namespace bascule
