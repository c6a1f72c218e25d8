// How much a serialised message would unfold to, found out before any of it is built.
#pragma once

#include <cstddef>
#include <string_view>

namespace google::protobuf {
class Descriptor;
}

namespace bascule {

// Whether `bytes`, as a message of `type`, has at most `most` parts: messages within it and texts count one each,
// numbers of packed lists an eighth. False also where the bytes are no such message. Builds nothing and takes time
// linear in them.
bool HasFewParts(const google::protobuf::Descriptor& type, std::string_view bytes, std::size_t most);

}  // namespace bascule
