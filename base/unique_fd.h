// A file descriptor with one owner, which closes it.
//
// Thread-safety: thread-compatible.
#pragma once

#include <unistd.h>

#include <utility>

namespace bascule {

class UniqueFd {
 public:
  UniqueFd() = default;  // none
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd() {
    if (fd_ >= 0) close(fd_);
  }
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

}  // namespace bascule
