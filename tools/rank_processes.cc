#include "tools/rank_processes.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <utility>

extern char** environ;

namespace bascule {
namespace {

constexpr const char* kThisProgram = "/proc/self/exe";
constexpr Duration kLookAgain = std::chrono::milliseconds(20);

// What exec wants: pointers to words that live elsewhere, and a null.
std::vector<char*> PointersTo(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> OwnCommandLine() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  return words;
}

std::vector<std::string> EnvironmentOf(const TrainerGroup& group, int rank, std::vector<std::string> own) {
  own.insert(own.end(), {fmt::format("RANK={}", rank), fmt::format("WORLD_SIZE={}", group.world_size),
                         "BASCULE_LEADER=" + group.leader, "BASCULE_GROUP=" + group.name});
  std::vector<std::string> variables = own;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    const bool replaced = std::any_of(own.begin(), own.end(), [&](const std::string& mine) {
      return text.starts_with(mine.substr(0, mine.find('=') + 1));
    });
    if (!replaced) variables.emplace_back(text);
  }
  return variables;
}

// Runs in the child, where only async-signal-safe calls are allowed.
[[noreturn]] void Become(char* const* words, char* const* variables, pid_t parent) {
  setpgid(0, 0);  // the parent cancels in order what the terminal's Ctrl-C would end in disorder
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // it ended in between
  const int nowhere = open("/dev/null", O_RDWR);
  dup2(nowhere, STDIN_FILENO);
  dup2(nowhere, STDOUT_FILENO);
  execve(kThisProgram, words, variables);
  _exit(127);
}

// How a child ended; nothing while it runs. It stays to be reaped.
std::optional<siginfo_t> EndOf(pid_t pid) {
  siginfo_t info{};
  if (waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
    return std::nullopt;
  return info;
}

}  // namespace

Result<std::unique_ptr<RankProcesses>> RankProcesses::Start(const TrainerGroup& group,
                                                            const std::vector<std::string>& own_variables) {
  std::unique_ptr<RankProcesses> ranks(new RankProcesses());
  std::vector<std::string> words = OwnCommandLine();
  words.emplace_back(kAsTrainerRank);
  const std::vector<char*> arguments = PointersTo(words);
  const pid_t parent = getpid();
  for (int rank = 1; rank < group.world_size; ++rank) {
    std::vector<std::string> environment = EnvironmentOf(group, rank, own_variables);
    const std::vector<char*> variables = PointersTo(environment);
    const pid_t pid = fork();
    if (pid == 0) Become(arguments.data(), variables.data(), parent);
    if (pid < 0) return Status::Unavailable("cannot_spawn", std::strerror(errno));
    ranks->processes_.push_back({.rank = rank, .pid = pid});
  }
  return ranks;
}

Status RankProcesses::Lost() const {
  for (const Process& process : processes_) {
    const std::optional<siginfo_t> end = EndOf(process.pid);
    if (!end || (end->si_code == CLD_EXITED && end->si_status == 0)) continue;
    return Status::Unavailable(
        "rank_lost",
        fmt::format("trainer rank {} (process {}) {} {}", process.rank, process.pid,
                    end->si_code == CLD_EXITED ? "ended with exit code" : "was ended by signal", end->si_status));
  }
  return OkStatus();
}

void RankProcesses::AwaitEnd(Deadline deadline) const {
  Clock& clock = Clock::Real();
  const auto ended = [](const Process& process) { return EndOf(process.pid).has_value(); };
  while (!std::all_of(processes_.begin(), processes_.end(), ended) && !deadline.Passed(clock)) {
    static_cast<void>(clock.SleepUntil(clock.Now() + kLookAgain, {}));
  }
}

RankProcesses::~RankProcesses() {
  for (const Process& process : processes_) kill(process.pid, SIGKILL);  // not reaped yet: the id is still its own
  for (const Process& process : processes_) {
    while (waitpid(process.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
}

}  // namespace bascule
