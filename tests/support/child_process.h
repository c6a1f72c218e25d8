// A program of the test as a child process, killed and reaped at the latest with this.
//
// Thread-safety: confined to one thread.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace bascule {

class ChildProcess {
 public:
  // `prepare` runs in the child before the program does: no more than what may follow a fork.
  explicit ChildProcess(std::vector<std::string> command, const std::function<void()>& prepare = nullptr) {
    std::vector<char*> arguments;
    for (std::string& argument : command) arguments.push_back(argument.data());
    arguments.push_back(nullptr);
    pid_ = fork();
    if (pid_ != 0) return;
    if (prepare) prepare();
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess() { Kill(); }

  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    static_cast<void>(Wait());
  }
  // Until it ends; gives what waitpid(2) says of it.
  int Wait() {
    int status = -1;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return status;
  }

 private:
  pid_t pid_ = -1;
};

}  // namespace bascule
