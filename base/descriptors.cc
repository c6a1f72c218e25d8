#include "base/descriptors.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

namespace bascule {
namespace {

rlimit Limit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return limit;
}

}  // namespace

void RaiseDescriptorLimit() {
  rlimit limit = Limit();
  limit.rlim_cur = limit.rlim_max;
  // A system that allows less than it says keeps us at what we have.
  static_cast<void>(setrlimit(RLIMIT_NOFILE, &limit));
}

Status CheckDescriptors(int count) {
  std::vector<int> opened;
  int error = 0;
  while (std::cmp_less(opened.size(), count) && error == 0) {
    const int fd = open("/", O_PATH | O_CLOEXEC);
    if (fd >= 0) opened.push_back(fd);
    if (fd < 0 && errno != EINTR) error = errno;
  }
  for (const int fd : opened) close(fd);
  if (error == 0) return OkStatus();
  return Status::ResourceExhausted("descriptors", fmt::format("want={} available={} limit={}: {}", count, opened.size(),
                                                              Limit().rlim_cur, std::strerror(error)));
}

}  // namespace bascule
