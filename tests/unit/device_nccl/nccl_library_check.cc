// Prints the version of the NCCL that is found, or why there is none.
#include <cstdio>

#include "device/communicator.h"

namespace {

bascule::Status Check() {
  ASSIGN_OR_RETURN(bascule::Communicators* const communicators, bascule::LoadCommunicators());
  RETURN_IF_ERROR(communicators->NewId().status());
  std::printf("OK: %s\n", communicators->version().c_str());
  return bascule::OkStatus();
}

}  // namespace

int main() {
  const bascule::Status status = Check();
  if (!status.ok()) std::printf("%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
