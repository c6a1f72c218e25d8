// What Python trainers do on CPUs: gloo's broadcast of each tensor into a staging buffer, and a copy into place. Two
// ranks, each in a process of its own, joined over TCP on the loopback interface. Gloo stays out of this header.
//
// Thread-safety: confined to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace bascule {

class GlooRank {
 public:
  // Waits until the other rank is there as well: both meet in `directory`.
  //
  // Unavailable "gloo"  with its own words
  static Result<std::unique_ptr<GlooRank>> Join(int rank, const std::string& directory);
  virtual ~GlooRank() = default;

  // Rank 0: sends `weights`, tensor after tensor, and returns when rank 1 has all of them in place.
  //
  // Unavailable "gloo"
  virtual Status Broadcast(std::span<const std::byte> weights, const std::vector<std::int64_t>& tensor_bytes) = 0;
  // Rank 1: the other end of that, into `place`. `staging` holds the largest tensor.
  virtual Status TakeBroadcast(std::span<std::byte> place, std::span<std::byte> staging,
                               const std::vector<std::int64_t>& tensor_bytes) = 0;
};

}  // namespace bascule
