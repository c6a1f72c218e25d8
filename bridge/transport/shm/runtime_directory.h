// Where Unix sockets live: a directory that only their owner may enter, so that no other user can even knock.
#pragma once

#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace bascule {

// $XDG_RUNTIME_DIR/bascule, or /tmp/bascule-UID where that is not set. Not made yet.
std::string DefaultRuntimeDirectory();

// Makes the directory (mode 0700) when it is not there, and opens it.
//
// PermissionDenied "runtime_directory"  it is no directory, another user's, or open to others
Result<UniqueFd> OpenPrivateDirectory(const std::string& path);

// InvalidArgument "bad_socket_path"  not absolute, or longer than the 107 bytes that a socket address holds
Status CheckSocketPath(const std::string& path);

// A socket listening at `path`, in a private directory. A socket file that nobody listens at any more is replaced, and
// its like in the same directory go: what killed processes leave does not pile up. Two processes that start at once
// cannot both believe that.
//
// InvalidArgument "bad_socket_path"; PermissionDenied "runtime_directory"; Unavailable "cannot_listen"
// FailedPrecondition "address_in_use"  another process listens there, or the path is no socket
Result<UniqueFd> ListenAt(const std::string& path, Clock& clock);

// The same at a path that an operator has chosen, in a directory that others may enter but not write in, unless it is
// sticky; of sockets there only a dead one at `path` itself is replaced. None but this user may connect.
Result<UniqueFd> ListenAtChosenPath(const std::string& path, Clock& clock);

}  // namespace bascule
