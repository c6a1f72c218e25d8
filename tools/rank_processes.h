// The other trainer ranks of `publish --trainer-ranks`, or of another program that trains: this very program again,
// once for each, with the same command line; it finds its place in the environment (trainer_side/group_environment.h).
// They end with this process, however that ends, and Ctrl-C on the terminal reaches this process alone.
//
// Thread-safety: confined to the thread that starts them, which is the main one.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "trainer_side/weight_publisher.h"

namespace bascule {

// Says to the program that it is one of those.
inline constexpr const char* kAsTrainerRank = "--as-trainer-rank";

class RankProcesses {
 public:
  // Starts ranks 1 and up of `group`, whose leader can be dialled; `variables`, each NAME=VALUE, are further ones for
  // their environment.
  //
  // Unavailable "cannot_spawn"
  static Result<std::unique_ptr<RankProcesses>> Start(const TrainerGroup& group,
                                                      const std::vector<std::string>& variables = {});
  ~RankProcesses();  // kills and reaps those that have not ended

  // Unavailable "rank_lost"  one has ended, and not well: which, and how
  Status Lost() const;
  // Waits until all have ended, no longer than `deadline`.
  void AwaitEnd(Deadline deadline) const;

 private:
  struct Process {
    int rank = 0;
    pid_t pid = 0;
  };
  RankProcesses() = default;

  std::vector<Process> processes_;
};

}  // namespace bascule
