// A file of known bytes that is as slow, short and broken as the test says.
#pragma once

#include <cerrno>
#include <cstring>
#include <latch>
#include <vector>

#include "base/mutex.h"
#include "checkpoint/byte_file_internal.h"

namespace bascule {

// Thread-safety: thread-safe; the script is set before the first read.
class ScriptedFile final : public ByteFile {
 public:
  struct Call {
    std::int64_t offset = 0;
    std::int64_t bytes = 0;
    friend bool operator==(const Call&, const Call&) = default;
  };

  explicit ScriptedFile(std::int64_t bytes) : path_("scripted.safetensors"), content_(static_cast<std::size_t>(bytes)) {
    for (std::size_t i = 0; i < content_.size(); ++i) content_[i] = ByteAt(static_cast<std::int64_t>(i));
  }

  static std::byte ByteAt(std::int64_t offset) { return static_cast<std::byte>(offset * 131 + (offset >> 8) * 29); }

  // The script: at most so many bytes a call; every n-th call is interrupted; the block at an offset cannot be read;
  // the file ends early; it was written to.
  std::int64_t count_max = std::int64_t{1} << 40;
  std::int64_t interrupt_every = 0;
  std::int64_t broken_offset = -1;
  std::int64_t end = std::int64_t{1} << 40;
  std::int64_t block = 1;
  bool changed = false;
  std::latch* stuck = nullptr;  // no call returns before it opens

  const std::string& path() const override { return path_; }
  std::int64_t bytes() const override { return std::ssize(content_); }
  std::int64_t alignment() const override { return block; }
  Status CheckUnchanged() const override {
    return changed ? Status::DataLoss("file_changed", path_ + ": written to") : OkStatus();
  }

  std::int64_t ReadSome(std::int64_t offset, std::span<std::byte> target) const override {
    if (stuck != nullptr) stuck->wait();
    MutexLock lock(mu_);
    calls_.push_back({offset, std::ssize(target)});
    if (interrupt_every > 0 && std::ssize(calls_) % interrupt_every == 0) return -EINTR;
    const std::int64_t last = std::min({bytes(), end, offset + count_max, offset + std::ssize(target)});
    if (broken_offset >= 0 && offset <= broken_offset && broken_offset < last) {
      if (offset == broken_offset) return -EIO;
      return Copy(offset, broken_offset, target);
    }
    return last <= offset ? 0 : Copy(offset, last, target);
  }

  void Announce(std::int64_t offset, std::int64_t length) const override {
    MutexLock lock(mu_);
    announced_.push_back({offset, length});
  }

  std::vector<Call> calls() const {
    MutexLock lock(mu_);
    return calls_;
  }
  std::vector<Call> announced() const {
    MutexLock lock(mu_);
    return announced_;
  }

 private:
  std::int64_t Copy(std::int64_t begin, std::int64_t last, std::span<std::byte> target) const {
    std::memcpy(target.data(), &content_[static_cast<std::size_t>(begin)], static_cast<std::size_t>(last - begin));
    return last - begin;
  }

  const std::string path_;
  std::vector<std::byte> content_;
  mutable Mutex mu_;
  mutable std::vector<Call> calls_ GUARDED_BY(mu_);
  mutable std::vector<Call> announced_ GUARDED_BY(mu_);
};

}  // namespace bascule
