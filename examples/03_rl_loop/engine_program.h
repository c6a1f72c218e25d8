// `bascule engine` as a child process. It ends with its parent, however that ends.
//
// Thread-safety: confined to the thread that starts it.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace bascule::rl_loop {

struct EngineProgramOptions {
  std::string program;                 // path of `bascule`
  std::vector<std::string> arguments;  // after `engine`; --json is added
  std::string log_path;                // takes its stderr
};

class EngineProgram {
 public:
  // Returns once it has said `ready`.
  //
  // Unavailable "engine_failed"  it ended before; its log says why
  // DeadlineExceeded "deadline"; Internal "cannot_spawn"
  static Result<std::unique_ptr<EngineProgram>> Start(const EngineProgramOptions& options, Deadline deadline);
  // Kills it where Stop has not ended it.
  ~EngineProgram();
  EngineProgram(const EngineProgram&) = delete;
  EngineProgram& operator=(const EngineProgram&) = delete;

  pid_t pid() const { return pid_; }
  // Where it serves.
  const std::string& address() const { return address_; }

  // Asks it to stop and waits until it has. Unavailable "engine_failed"  its exit code was not 0, or it had to be
  // killed
  Status Stop(Deadline deadline);

 private:
  EngineProgram(pid_t pid, int stdout_fd, std::string log_path);
  Status AwaitReady(Deadline deadline);
  Result<std::string> ReadLine(Deadline deadline);
  int Reap();

  pid_t pid_;  // 0 once it has ended
  const int stdout_fd_;
  const std::string log_path_;
  std::string unread_;
  std::string address_;
};

}  // namespace bascule::rl_loop
