// Which role an RPC asks for: what its .proto says beside it (bascule/v1/access.proto), and of gRPC's own services
// (health, reflection) the role `read`.
//
// Thread-safety: thread-safe.
#pragma once

#include <optional>
#include <string_view>

#include "base/token_table.h"

namespace bascule {

// `path` as it travels: "/bascule.v1.VersionStatus/GetStatus". Nothing: nobody may call it where tokens are asked for.
std::optional<Role> RoleOfRpc(std::string_view path);

}  // namespace bascule
