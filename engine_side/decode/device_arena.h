// Many arrays in one allocation of device memory: reserved first, then allocated together.
//
// Thread-safety: confined to the thread that decodes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/status.h"
#include "device/buffer.h"

namespace bascule {

class DeviceArena {
 public:
  // `place` becomes the address of `count` T, at a 256-byte boundary, when Allocate succeeds; it outlives that.
  template <typename T>
  void Reserve(T*& place, std::int64_t count) {
    const std::int64_t at = bytes_;
    bytes_ += (count * std::int64_t{sizeof(T)} + kBoundary - 1) / kBoundary * kBoundary;
    places_.push_back([&place, at](std::byte* base) { place = reinterpret_cast<T*>(base + at); });
  }
  // ResourceExhausted "device_memory"; errors of the device
  Status Allocate(DeviceMemory& memory) {
    ASSIGN_OR_RETURN(buffer_, memory.Allocate(static_cast<std::size_t>(bytes_)));
    for (const auto& place : places_) place(buffer_->bytes().data());
    places_.clear();
    return OkStatus();
  }
  std::span<std::byte> bytes() { return buffer_->bytes(); }

 private:
  static constexpr std::int64_t kBoundary = 256;
  std::int64_t bytes_ = 0;
  std::vector<std::function<void(std::byte*)>> places_;
  std::unique_ptr<DeviceBuffer> buffer_;
};

// The bytes of `count` T.
template <typename T>
std::span<std::byte> BytesAt(T* at, std::int64_t count) {
  return {reinterpret_cast<std::byte*>(at), static_cast<std::size_t>(count) * sizeof(T)};
}
template <typename T>
std::span<const std::byte> BytesAt(const T* at, std::int64_t count) {
  return {reinterpret_cast<const std::byte*>(at), static_cast<std::size_t>(count) * sizeof(T)};
}

}  // namespace bascule
