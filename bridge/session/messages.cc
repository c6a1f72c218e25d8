#include "bridge/session/messages.h"

#include <array>

#include "bridge/session/session_of.h"

namespace bascule {
namespace {

constexpr std::array<std::string_view, std::variant_size_v<SessionMessage>> kNames = {
    "Hello",     "HelloReply",   "Offer",      "Accept",     "Seal",         "Missing",     "Ready",
    "Flip",      "Committed",    "Abort",      "GroupJoin",  "GroupWelcome", "GroupEnter",  "GroupLayout",
    "GroupPlan", "GroupPlanned", "GroupSend",  "GroupFetch", "GroupSent",    "GroupPacked", "GroupOutcome",
    "Require",   "RollBack",     "RolledBack", "GroupAgain"};

}  // namespace

std::string_view MessageName(const SessionMessage& message) { return kNames.at(message.index()); }

SessionId SessionOf(const SessionMessage& message) {
  return std::visit(
      [](const auto& one) {
        if constexpr (requires { one.session; }) {
          return one.session;
        } else {
          return SessionId{};
        }
      },
      message);
}

}  // namespace bascule
