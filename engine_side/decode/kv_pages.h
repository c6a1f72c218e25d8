// Who holds which page of the KV cache: the requests that read it, counted, and the prefix cache. A page that neither
// holds is free. A page with more than one holder is never written: whoever has to write there takes a page of its own
// and copies first.
//
// Thread-safety: thread-compatible (the engine guards it).
#pragma once

#include <cstdint>
#include <vector>

namespace bascule {

class KvPages {
 public:
  explicit KvPages(std::int64_t total);

  // A free page, for one request. There is one.
  std::int32_t Take();
  // One request more, or less, reads `page`.
  void Share(std::int32_t page);
  void Release(std::int32_t page);
  // Whether the prefix cache holds `page`.
  void SetCached(std::int32_t page, bool cached);

  bool InUse(std::int32_t page) const { return holds_[static_cast<std::size_t>(page)].requests > 0; }
  std::int64_t free() const { return static_cast<std::int64_t>(free_.size()); }
  std::int64_t total() const { return static_cast<std::int64_t>(holds_.size()); }
  std::int64_t used() const { return used_; }  // by requests: what the prefix cache alone holds is there for the taking

 private:
  struct Holds {
    std::int32_t requests = 0;
    bool cached = false;
  };
  Holds& at(std::int32_t page) { return holds_[static_cast<std::size_t>(page)]; }
  void FreeIfUnheld(std::int32_t page);

  std::vector<Holds> holds_;
  std::vector<std::int32_t> free_;
  std::int64_t used_ = 0;
};

}  // namespace bascule
