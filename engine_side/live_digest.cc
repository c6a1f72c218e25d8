#include "engine_side/live_digest.h"

#include <atomic>

#include "base/worker.h"

namespace bascule {
namespace {

// Decode goes on meanwhile: two threads saturate much of a memory bus already.
constexpr int kDigestThreads = 2;

}  // namespace

void NoteEveryBucket(const ReceivePlan& plan, Verifier& verifier) {
  std::atomic<std::size_t> next{0};
  const auto digest_buckets = [&](std::stop_token) {
    for (std::size_t b = next++; b < plan.plan.buckets.size(); b = next++) {
      const Bucket& bucket = plan.plan.buckets[b];
      std::vector<TensorDigest> digests;
      for (const Slice& slice : bucket.slices) digests.push_back(verifier.Digest(slice, plan.engine_rank(bucket)));
      verifier.Note(static_cast<std::uint32_t>(b), std::move(digests));
    }
  };
  std::vector<Worker> workers;
  for (int i = 0; i < kDigestThreads; ++i) workers.emplace_back("live_digest", digest_buckets);
}

Result<ReceivePlan> PlanOfEngine(const Layout& engine_layout) {
  Result<Plan> plan = MakePlan(PlainLayout(engine_layout.tensors), engine_layout, PlanOptions{});
  if (!plan.ok()) {
    return Status::InvalidArgument("bad_layout",
                                   fmt::format("{}: {}", plan.status().reason(), plan.status().message()));
  }
  return MakeReceivePlan(*std::move(plan));
}

MemoryDigest DigestMemory(const TensorMemory& memory, const Layout& engine_layout, const ReceivePlan& plan) {
  Verifier verifier(plan, engine_layout, memory);
  NoteEveryBucket(plan, verifier);
  return {verifier.Totals(), verifier.HeldByRank(), verifier.ReplicaDifferences()};
}

}  // namespace bascule
