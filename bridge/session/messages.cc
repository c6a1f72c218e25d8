#include "bridge/session/messages.h"

#include <array>

namespace bascule {
namespace {

constexpr std::array<std::string_view, std::variant_size_v<SessionMessage>> kNames = {
    "Hello",     "HelloReply",   "Offer",     "Accept",    "Seal",         "Missing",     "Ready",
    "Flip",      "Committed",    "Abort",     "GroupJoin", "GroupWelcome", "GroupEnter",  "GroupLayout",
    "GroupPlan", "GroupPlanned", "GroupSend", "GroupSent", "GroupPacked",  "GroupOutcome"};

}  // namespace

std::string_view MessageName(const SessionMessage& message) { return kNames.at(message.index()); }

}  // namespace bascule
