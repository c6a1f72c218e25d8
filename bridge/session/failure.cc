#include "bridge/session/failure.h"

#include <array>

namespace bascule {
namespace {

using enum StatusCode;

constexpr std::array kFailures = {
    FailureReason{kFailedPrecondition, "address_in_use", "another server listens at the address"},
    FailureReason{kDataLoss, "bad_ack", "an acknowledgement of a bucket that was not sent"},
    FailureReason{kInvalidArgument, "bad_address", "no host:port, [v6]:port or unix:/path"},
    FailureReason{kInvalidArgument, "bad_layout", "a layout contradicts itself or does not cover its tensors"},
    FailureReason{kDataLoss, "bad_message", "the peer's bytes are no message, or break a bound"},
    FailureReason{kInvalidArgument, "bad_offer", "a number of the offer is outside its limits"},
    FailureReason{kInvalidArgument, "bad_options", "the receiver was set up with numbers outside their limits"},
    FailureReason{kFailedPrecondition, "bad_transition", "the session's state does not allow this message"},
    FailureReason{kDataLoss, "bucket_damaged", "a bucket came damaged twice: checksum, slice digest or header"},
    FailureReason{kDataLoss, "bucket_outside_plan",
                  "a bucket is not in the plan, or came on a route that is not its own"},
    FailureReason{kDataLoss, "buckets_missing", "planned buckets are missing at the second seal"},
    FailureReason{kCancelled, "cancelled", "this side itself ended the wait"},
    FailureReason{kDeadlineExceeded, "deadline", "the session's time is over, or a wait's"},
    FailureReason{kResourceExhausted, "descriptors", "the process may open no more files and sockets"},
    FailureReason{kDataLoss, "digest_mismatch", "what lies in engine memory is not what the sender digested"},
    FailureReason{kCancelled, "engine_stopping", "the receiver shuts down"},
    FailureReason{kFailedPrecondition, "families_differ",
                  "publisher and engine have other quantised weights, or under other schemes"},
    FailureReason{kAborted, "fenced", "a newer session of this publisher, or a takeover, replaced the session"},
    FailureReason{kAborted, "finalize_failed", "the engine could not make its derived tensors of the version"},
    FailureReason{kFailedPrecondition, "flip_in_progress", "a flip or a rollback is under way"},
    FailureReason{kAborted, "flip_undone", "a flip in place failed half-way and was taken back"},
    FailureReason{kResourceExhausted, "frame_memory", "memory for the frames of a route cannot be had"},
    FailureReason{kFailedPrecondition, "full_tensors_only",
                  "the engine takes full tensors from one sender, not parts of them"},
    FailureReason{kDeadlineExceeded, "group_incomplete", "a trainer rank did not enter the publish in time"},
    FailureReason{kFailedPrecondition, "live_leased",
                  "somebody reads the live weights, which a flip in place would write"},
    FailureReason{kDataLoss, "live_lost", "a flip in place failed and so did its undo: load a version anew"},
    FailureReason{kFailedPrecondition, "manifest_mismatch", "the offer's tensors or sender layout are not the plan's"},
    FailureReason{kFailedPrecondition, "no_kept_version", "there is no version to roll back to"},
    FailureReason{kFailedPrecondition, "nothing_live", "no version is live yet"},
    FailureReason{kResourceExhausted, "peer_busy", "it sends its version to as many others as it may"},
    FailureReason{kUnavailable, "peer_lost", "the other end of the channel or of a route went away"},
    FailureReason{kUnavailable, "peer_unreachable", "nobody answers at the address"},
    FailureReason{kPermissionDenied, "permission_denied", "the caller's token lacks the role that the call wants"},
    FailureReason{kFailedPrecondition, "plan_mismatch", "the two sides made different plans"},
    FailureReason{kUnavailable, "publisher_busy", "another publisher's session is open; a takeover would end it"},
    FailureReason{kUnavailable, "rank_lost", "the process of a trainer rank went away"},
    FailureReason{kUnavailable, "rank_taken", "another process is this trainer rank"},
    FailureReason{kAborted, "replica_not_ready", "another replica did not get ready, so nobody flips"},
    FailureReason{kDataLoss, "replicas_differ", "two holders of the same elements hold different bytes"},
    FailureReason{kUnavailable, "route_lost", "a route of this connection is gone; connect again"},
    FailureReason{kDeadlineExceeded, "shadow_leased", "a reader held the shadow slot until the deadline"},
    FailureReason{kFailedPrecondition, "shadow_reserved", "a session holds the shadow slot already"},
    FailureReason{kResourceExhausted, "slot_memory", "memory for the slots cannot be had"},
    FailureReason{kFailedPrecondition, "stale_version", "the number is below one committed in this run"},
    FailureReason{kFailedPrecondition, "stall_over_budget",
                  "a flip would stop decoding for longer than the engine allows"},
    FailureReason{kAborted, "superseded", "the publisher has a newer version and sends that instead"},
    FailureReason{kResourceExhausted, "thread_limit", "the process may have no more threads"},
    FailureReason{kUnauthenticated, "tls_failed", "a certificate is not believed, or only one side speaks TLS"},
    FailureReason{kInvalidArgument, "token_in_the_clear", "tokens leave a host only over TLS"},
    FailureReason{kUnimplemented, "transport_unavailable", "the engine does not take the wanted transport"},
    FailureReason{kUnauthenticated, "unauthenticated", "the call brings no token, or one that nobody knows"},
    FailureReason{kInvalidArgument, "unexpected_message", "the message has no place here, e.g. Offer before Hello"},
    FailureReason{kFailedPrecondition, "unknown_run", "another run is live and the offer does not say that one starts"},
    FailureReason{kNotFound, "unknown_session", "this connection has no such session"},
    FailureReason{kFailedPrecondition, "version_differs", "trainer ranks publish under different numbers"},
    FailureReason{kNotFound, "version_not_kept", "the kept version has another number"},
    FailureReason{kFailedPrecondition, "version_not_live", "what should be rolled back is not what is live"},
    FailureReason{kFailedPrecondition, "version_reused", "the number was committed in this run before"},
    FailureReason{kFailedPrecondition, "wire_version", "the peers speak different wire versions"},
    FailureReason{kFailedPrecondition, "wrong_group", "another trainer group, or another size or rank of it"},
    FailureReason{kFailedPrecondition, "wrong_model", "publisher and engine have different models"},
};

}  // namespace

std::span<const FailureReason> SessionFailures() { return kFailures; }

}  // namespace bascule
