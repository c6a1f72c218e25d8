// An event: how often it was recorded, and how many of those marks its streams have reached. Both counts lie in a
// memfd, so that another process may open them.
//
// Thread-safety: thread-safe.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/unique_fd.h"

namespace bascule::fake_cuda {

class Event {
 public:
  // Null: no memory.
  static std::shared_ptr<Event> Make(int device, bool shared);
  // Null: it is no event's handle, its maker is gone, or it was made on another device.
  static std::shared_ptr<Event> Open(const cudaIpcEventHandle_t& handle, int device);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  bool is_shared() const { return is_shared_; }
  void Export(cudaIpcEventHandle_t* handle) const;

  // A new mark; Reach says that a stream has come to it.
  std::uint64_t Record() { return marks_->recorded.fetch_add(1) + 1; }
  void Reach(std::uint64_t mark);
  std::uint64_t latest() const { return marks_->recorded.load(); }
  bool Reached(std::uint64_t mark) const { return marks_->reached.load() >= mark; }

 private:
  struct Marks {
    std::atomic<std::uint64_t> recorded;
    std::atomic<std::uint64_t> reached;
  };
  Event(UniqueFd fd, Marks* marks, int device, bool is_shared)
      : fd_(std::move(fd)), marks_(marks), device_(device), is_shared_(is_shared) {}
  static std::shared_ptr<Event> Map(UniqueFd fd, int device, bool is_shared);

  const UniqueFd fd_;
  Marks* const marks_;
  const int device_;
  const bool is_shared_;
};

}  // namespace bascule::fake_cuda
