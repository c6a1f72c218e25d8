// SessionMessages as bytes (proto/bascule/v1/session.proto) and back.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/status.h"
#include "bridge/session/messages.h"

namespace bascule {

// Forty thousand tensors with names of two hundred characters take a sixth of it.
inline constexpr std::size_t kMaxSessionMessageBytes = std::size_t{64} << 20;
// Messages within a message, texts, and every eighth number of a list: a row of a map that maps nothing takes two bytes
// on the wire and hundreds in memory. Layouts that fill a message have names and boxes, and stay below this.
inline constexpr std::size_t kMaxSessionMessageParts = std::size_t{4} << 20;

std::string EncodeSessionMessage(const SessionMessage& message);

// Every count, length and number is checked: what this returns can be used without a look at where it came from.
// Whether layouts and manifests make sense is for CheckLayout and CheckOffer.
//
// DataLoss "bad_message"  names the field
Result<SessionMessage> DecodeSessionMessage(std::string_view bytes);

}  // namespace bascule
