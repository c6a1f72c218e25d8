#include "engine_side/live_digest.h"

namespace bascule {

Result<ReceivePlan> PlanOfEngine(const Layout& engine_layout) {
  Result<Plan> plan = MakePlan(PlainLayout(engine_layout.tensors), engine_layout, PlanOptions{});
  if (!plan.ok()) {
    return Status::InvalidArgument("bad_layout",
                                   fmt::format("{}: {}", plan.status().reason(), plan.status().message()));
  }
  return MakeReceivePlan(*std::move(plan));
}

Result<MemoryDigest> DigestMemory(const TensorMemory& memory, const Layout& engine_layout, const ReceivePlan& plan,
                                  SlotWork& work) {
  Verifier verifier(plan, engine_layout, memory, work);
  RETURN_IF_ERROR(verifier.NoteEveryBucket());
  ASSIGN_OR_RETURN(std::vector<Verifier::Difference> differences, verifier.ReplicaDifferences());
  return MemoryDigest{verifier.Totals(), verifier.HeldByRank(), std::move(differences)};
}

}  // namespace bascule
