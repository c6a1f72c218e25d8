"""Copies of product sources with one rule of the protocol left out, for the simulation to find.

    mutate.py --list                 names and files, for CMake: "name;path" a line
    mutate.py NAME ROOT OUTPUT       writes the copy; fails unless every replaced text is there, once

Shipped sources carry nothing of this.
"""
import pathlib
import sys

MUTANTS = {
    # name: (file, what the product then does wrong, [(text, replacement), ...])
    "skip_proof": (
        "engine_side/receive_session.cc", "flips what was not verified",
        [("RETURN_IF_ERROR(verifier_->Check(terms_.offer.manifest, seal));", "static_cast<void>(seal);")]),
    "forget_fence": (
        "engine_side/receive_session.cc", "places buckets of a session that is over",
        [("if (IsOver(state_) || state_ == SessionState::kOffered) return BucketVerdict::kFenced;",
          "if (!staging_) return BucketVerdict::kFenced;"),
         ("  CHECK(state_ == SessionState::kReceiving);  // beyond it every bucket has arrived\n", "")]),
    "accept_duplicate": (
        "engine_side/receive_session.cc", "counts a bucket twice",
        [("if (coverage_.HasArrived(header.bucket)) return BucketVerdict::kDuplicate;", "static_cast<void>(header);")]),
    "forget_slot": (
        "engine_side/receive_session.cc", "keeps the shadow slot of a session that failed",
        [("if (slot) parts_.slots.ReleaseShadow(*slot);", "")]),
    "label_first": (
        "engine_side/status_board.cc", "shows a version as live while it is staged",
        [("  status_.live = slots_.live();\n  status_.kept",
          "  status_.live = slots_.live();\n"
          "  if (status_.session && status_.session->state == SessionState::kReady) status_.live = status_.session->version;\n"
          "  status_.kept")]),
    "accept_stale": (
        "engine_side/version_ledger.cc", "takes numbers that were committed before",
        [("if (starts || live_run.empty()) return OkStatus();", "if (starts || !offer.run.empty()) return OkStatus();")]),
    "ignore_leases": (
        "engine_side/weight_slots.cc", "writes to a slot that somebody reads",
        [("return exchanging_ || at(slot).leases > 0;", "return exchanging_;")]),
    "ignore_deadline": (
        "engine_side/connection.cc", "waits for a publisher beyond the session's time",
        [("if (session != nullptr && !session->over()) return session->terms().deadline;", "")]),
    "packed_early": (
        "bridge/send/publish_session.cc", "lets the trainer change tensors that are still read",
        [("  Status status = SendBuckets(sending);\n", "  on_sealed_();\n  Status status = SendBuckets(sending);\n"),
         ("    on_sealed_();\n    status = AwaitDecision();\n", "    status = AwaitDecision();\n")]),
    "believe_the_flip": (
        "bridge/send/publish_session.cc", "reports a commit that the engine has not confirmed",
        [("  ASSIGN_OR_RETURN(const Committed committed, Expect<Committed>());\n",
          "  const Committed committed{.session = session_, .report = {.version = report_.version}};\n")]),
    "skip_coverage": (
        "engine_side/receive_session.cc", "does not ask whether every bucket is here, and believes the seal",
        [("if (Staged() || state_ != SessionState::kReceiving) {", "if (true) {"),
         ("if (!lent_ || lent_->check || CopiesLent()) {", "if (lent_ && lent_->check) {")]),
    "skip_undo": (
        "engine_side/in_place_flip.cc", "serves a mix after a flip in place that failed half-way",
        [("Status undone = exchange.Undo();", "Status undone;"),
         ("if (undone.ok()) undone = Proof(live, changed);", "static_cast<void>(live);")]),
    "flip_before_journal": (
        "trainer_side/commit_barrier.cc", "tells replicas of a decision that is not written down yet",
        [("if (version == first) return Decide(hooks_.write_down(version));",
          "if (version == first) {\n    Decide(OkStatus());\n    static_cast<void>(hooks_.write_down(version));\n    return;\n  }")]),
    "decide_alone": (
        "trainer_side/commit_barrier.cc", "decides when the first replica is ready",
        [("if (version == version_ && std::find(ready_.begin(), ready_.end(), false) != ready_.end()) return;", "")]),
    "ignore_the_gate": (
        "trainer_side/policy_run.cc", "promotes a canary that the gate has refused",
        [("if (verdict.ok()) return ForEach(rest,", "if (verdict.ok() || !rest.empty()) return ForEach(rest,")]),
    "keep_the_refused": (
        "engine_side/flip_gate.cc", "keeps a version that a gate has refused, for a later rollback to go to",
        [("  if (live.ok() && refused) slots_.ForgetKept();\n", "  static_cast<void>(refused);\n")]),
    "leave_the_rest": (
        "engine_side/staging.cc", "digests what a scope leaves out where it is live, and does not copy it",
        [("  return Place(part.engine_rank, part.slices, from, slots_.work().OnHost() ? FrameMemory::kHost : FrameMemory::kDevice);\n",
          "  std::vector<SlotSource> live_boxes;\n"
          "  for (std::size_t s = 0; s < from.size(); ++s) {\n"
          "    const Slice& slice = part.slices[s];\n"
          "    live_boxes.push_back({BoxOfSlice(plan_, slots_.layout(), slice, part.engine_rank, slice.logical_box), from[s].base});\n"
          "  }\n"
          "  return slots_.work().Digest(live_boxes);\n")]),
    "take_any_base": (
        "engine_side/carry_over.cc", "takes a partial version that builds on another than the live one",
        [("if (live == base) return OkStatus();", "if (live) return OkStatus();")]),
    "again_in_part": (
        "trainer_side/replica_driver.cc", "sends late replicas no more than the scope of the last publish",
        [("scope_ = job.again ? std::vector<std::string>() : job.request.scope;", "if (!job.again) scope_ = job.request.scope;")]),
    "daemon_holds_early": (
        "engine_side/cache_daemon/cache_daemon.cc", "calls itself ready before it holds what is live",
        [("return recorded && recorded->object->version == *status.live ? CachePhase::kHolding : CachePhase::kReceiving;",
          "return CachePhase::kHolding;")]),
    "daemon_memory_changes": (
        "engine_side/cache_daemon/frozen_memory.cc", "leaves memory writable that engines map, and receives into it again",
        [("    if (frozen_) return OkStatus();\n", "    frozen_ = true;\n    return OkStatus();\n")]),
}


def mutated(name: str, root: pathlib.Path) -> str:
    path, _, replacements = MUTANTS[name]
    text = (root / path).read_text()
    for old, new in replacements:
        if text.count(old) != 1:
            sys.exit(f"mutant {name}: {path} has {text.count(old)} times\n{old}\nbring the mutant up to date")
        text = text.replace(old, new)
    return text


def main() -> None:
    if sys.argv[1:] == ["--list"]:
        print("\n".join(f"{name};{mutant[0]}" for name, mutant in MUTANTS.items()))
    else:
        name, root, output = sys.argv[1:]
        pathlib.Path(output).write_text(mutated(name, pathlib.Path(root)))


if __name__ == "__main__":
    main()
