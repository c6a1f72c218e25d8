// What the trainer ranks say to each other: torch's store for a little text, its gloo process group for sums and
// pieces. The versions do not pass here: the bridge takes from every rank what it holds.
//
// Every rank makes the same calls in the same order. When a rank goes away the calls of the others fail.
//
// Thread-safety: confined to the training loop.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "trainer_side/weight_publisher.h"

namespace at {
class Tensor;
}  // namespace at

namespace bascule::rl_loop {

class Collective {
 public:
  // Rank 0 serves the store at `host`:`port` (port 0: any free one); the others find it there. One rank needs none.
  //
  // Unavailable "rank_unreachable"
  static Result<std::unique_ptr<Collective>> Open(const std::string& host, std::uint16_t port,
                                                  const TrainerGroup& group);
  ~Collective();

  int rank() const { return rank_; }
  int size() const { return size_; }
  std::uint16_t port() const;

  // Rank 0 says something, the others wait to hear it.
  //
  // Unavailable "rank_unreachable"
  Status Say(const std::string& key, const std::string& text);
  Result<std::string> Hear(const std::string& key);

  // Once, before what follows: waits until every rank is here.
  //
  // Unavailable "rank_unreachable"
  Status Join();
  // The one-dimensional tensors of all ranks, which have one size, one behind the other.
  //
  // Unavailable "rank_lost"
  Result<at::Tensor> Gather(const at::Tensor& mine);
  // The sum over all ranks, in place; the same bits on every rank.
  //
  // Unavailable "rank_lost"
  Status Sum(at::Tensor tensor);
  Status Sum(std::span<double> numbers);

 private:
  struct Torch;
  Collective(int rank, int size);

  const int rank_;
  const int size_;
  const std::unique_ptr<Torch> torch_;
};

}  // namespace bascule::rl_loop
