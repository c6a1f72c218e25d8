#include "examples/03_rl_loop/engine_program.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

namespace bascule::rl_loop {
namespace {

// True once `fd` can be read; false at the deadline.
bool AwaitReadable(int fd, Deadline deadline) {
  Clock& clock = Clock::Real();
  pollfd waited{fd, POLLIN, 0};
  while (!deadline.Passed(clock)) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.Left(clock)).count();
    if (poll(&waited, 1, static_cast<int>(left)) > 0) return true;
  }
  return false;
}

// Runs in the child, where only async-signal-safe calls are allowed.
[[noreturn]] void Become(char* const* arguments, int stdout_fd, int log_fd, pid_t parent) {
  setpgid(0, 0);  // Ctrl-C on the terminal reaches the parent alone, which then stops this process in order
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(1);  // it ended in between
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  dup2(stdout_fd, STDOUT_FILENO);
  dup2(log_fd, STDERR_FILENO);
  execv(arguments[0], arguments);
  _exit(127);
}

}  // namespace

Result<std::unique_ptr<EngineProgram>> EngineProgram::Start(const EngineProgramOptions& options, Deadline deadline) {
  std::vector<std::string> words = {options.program, "engine"};
  words.insert(words.end(), options.arguments.begin(), options.arguments.end());
  words.emplace_back("--json");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);

  const int log_fd = open(options.log_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (log_fd < 0) return Status::Internal("cannot_spawn", options.log_path + ": " + std::strerror(errno));
  int pipe_fds[2];
  if (pipe2(pipe_fds, O_CLOEXEC) != 0) {
    close(log_fd);
    return Status::Internal("cannot_spawn", std::strerror(errno));
  }
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) Become(arguments.data(), pipe_fds[1], log_fd, parent);
  close(log_fd);
  close(pipe_fds[1]);
  if (pid < 0) {
    close(pipe_fds[0]);
    return Status::Internal("cannot_spawn", std::strerror(errno));
  }
  std::unique_ptr<EngineProgram> engine(new EngineProgram(pid, pipe_fds[0], options.log_path));
  RETURN_IF_ERROR(engine->AwaitReady(deadline));
  return engine;
}

EngineProgram::EngineProgram(pid_t pid, int stdout_fd, std::string log_path)
    : pid_(pid), stdout_fd_(stdout_fd), log_path_(std::move(log_path)) {}

EngineProgram::~EngineProgram() {
  if (pid_ != 0) {
    kill(pid_, SIGKILL);
    Reap();
  }
  close(stdout_fd_);
}

Status EngineProgram::AwaitReady(Deadline deadline) {
  while (true) {
    ASSIGN_OR_RETURN(const std::string line, ReadLine(deadline));
    const auto event = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!event.is_object()) continue;
    const std::string name = event.value("event", "");
    if (name == "listening") address_ = event.value("address", "");
    if (name == "ready") return OkStatus();
  }
}

Result<std::string> EngineProgram::ReadLine(Deadline deadline) {
  while (true) {
    if (const std::size_t end = unread_.find('\n'); end != std::string::npos) {
      std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    if (!AwaitReadable(stdout_fd_, deadline)) {
      return Status::DeadlineExceeded("deadline", "the engine is not ready; see " + log_path_);
    }
    char bytes[512];
    const ssize_t count = read(stdout_fd_, bytes, sizeof(bytes));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0)
      return Status::Unavailable("engine_failed", "the engine ended before it was ready; see " + log_path_);
    unread_.append(bytes, static_cast<std::size_t>(count));
  }
}

Status EngineProgram::Stop(Deadline deadline) {
  if (pid_ == 0) return OkStatus();
  // Readable once the process has ended. glibc 2.36 declares its wrapper for C alone.
  const int pid_fd = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  kill(pid_, SIGTERM);
  const bool ended = pid_fd >= 0 && AwaitReadable(pid_fd, deadline);
  if (pid_fd >= 0) close(pid_fd);
  if (!ended) kill(pid_, SIGKILL);
  const int code = Reap();
  if (ended && code == 0) return OkStatus();
  return Status::Unavailable("engine_failed",
                             ended ? fmt::format("the engine ended with exit code {}; see {}", code, log_path_)
                                   : "the engine did not stop in time and was killed; see " + log_path_);
}

// Its exit code; 128 + the signal that ended it.
int EngineProgram::Reap() {
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = 0;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace bascule::rl_loop
