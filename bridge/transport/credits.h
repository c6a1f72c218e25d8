// Which frames of a route are free. Both ends keep such a book: the sender to know what it may fill, the receiver to
// refuse a peer that announces a frame twice.
//
// Thread-safety: confined to the thread of its end.
#pragma once

#include <cstdint>
#include <vector>

namespace bascule {

class Credits {
 public:
  explicit Credits(std::int32_t count);
  bool AnyFree() const { return !free_.empty(); }
  // A free frame; there is one. The one freed last, whose memory is still warm in the caches.
  std::uint32_t Next() const;
  // False, and nothing changes, when there is no such frame or it is not free (Return: not taken).
  [[nodiscard]] bool Take(std::uint64_t frame);
  [[nodiscard]] bool Return(std::uint64_t frame);

 private:
  std::vector<bool> taken_;
  std::vector<std::uint32_t> free_;  // a stack
};

}  // namespace bascule
