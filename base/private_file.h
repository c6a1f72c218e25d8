// Files that hold secrets: tokens and private keys.
//
// Thread-safety: thread-safe.
#pragma once

#include <string>

#include "base/status.h"

namespace bascule {

// The text of a regular file of at most `max_bytes` that nobody but its owner can read: by its own mode, or because a
// directory on the way to it lets no other user pass. Neither may anybody else write it.
//
// NotFound "no_such_file"; PermissionDenied "loose_permissions"; InvalidArgument "bad_file"; all name the file
Result<std::string> ReadPrivateFile(const std::string& path, std::size_t max_bytes);

// As above, of a file that everybody may read.
//
// NotFound "no_such_file"; InvalidArgument "bad_file"
Result<std::string> ReadSmallFile(const std::string& path, std::size_t max_bytes);

}  // namespace bascule
