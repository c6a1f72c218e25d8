#include "tests/simulation/runner.h"

#include <fmt/format.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

namespace bascule::simulation {
namespace {

// What a child process tells its parent.
struct Board {
  Tally tally;
  std::uint64_t seed = 0;            // of the schedule under way
  std::atomic<bool> failed = false;  // at the seed
  char what[8192] = {};

  void Note(const Status& status) {
    const std::string text = fmt::format("{}: {}", status.reason(), status.message());
    std::strncpy(what, text.c_str(), sizeof what - 1);
    failed = true;
  }
};

class SharedBoard {
 public:
  SharedBoard() {
    void* const memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    board_ = new (memory) Board;
  }
  ~SharedBoard() { munmap(board_, sizeof(Board)); }
  SharedBoard(const SharedBoard&) = delete;
  SharedBoard& operator=(const SharedBoard&) = delete;
  Board* operator->() const { return board_; }
  Board& operator*() const { return *board_; }

 private:
  Board* board_;
};

// A child that works and exits; nothing of the parent is torn down in it.
template <typename Work>
pid_t Fork(const Work& work) {
  std::fflush(nullptr);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child > 0) return child;
  // Every schedule wants the same memory again: the kernel need not have it back in between.
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  work();
  std::fflush(nullptr);
  _exit(0);
}

// What the board and the child's end say of it.
std::optional<Finding> Await(pid_t child, const Board& board) {
  int end = 0;
  CHECK(waitpid(child, &end, 0) == child);
  if (board.failed) return Finding{board.seed, board.what};
  if (WIFEXITED(end) && WEXITSTATUS(end) == 0) return std::nullopt;
  return Finding{board.seed, WIFSIGNALED(end) ? fmt::format("crash: signal {}", WTERMSIG(end))
                                              : fmt::format("crash: exit {}", WEXITSTATUS(end))};
}

// Ends where one of the boards has a finding of a lower seed: the first of all is what counts.
void RunSome(const std::vector<SharedBoard>& boards, std::size_t own, const Campaign& campaign) {
  Board& board = *boards[own];
  const std::uint64_t end = campaign.first_seed + campaign.schedules;
  for (std::uint64_t seed = campaign.first_seed + own; seed < end; seed += boards.size()) {
    if (std::ranges::any_of(boards, [seed](const SharedBoard& b) { return b->failed && b->seed < seed; })) return;
    board.seed = seed;
    const Outcome outcome = RunSchedule(seed, MakeFaultSchedule(seed), board.tally);
    if (!outcome.status.ok()) board.Note(outcome.status);
  }
}

struct TallyTable {
  std::string_view what;
  std::vector<std::string_view> names;
  std::span<const std::array<std::uint64_t, kFaultKinds>> rows;
};

template <typename Row>
TallyTable TableOf(std::string_view what, std::string_view (*name)(Row),
                   std::span<const std::array<std::uint64_t, kFaultKinds>> rows) {
  TallyTable table{what, {}, rows};
  for (std::size_t row = 0; row < rows.size(); ++row) table.names.push_back(name(static_cast<Row>(row)));
  return table;
}

std::vector<TallyTable> TablesOf(const Tally& tally) {
  TallyTable partial = TableOf("struck in part", &SessionStateName, tally.in_partial);
  partial.names.erase(partial.names.begin());  // no session is idle
  partial.rows = partial.rows.subspan(1);
  return {TableOf("struck in state", &SessionStateName, tally.in_state),
          TableOf("struck at", &MomentName, tally.at_moment), TableOf("struck a", &RoleName, tally.on_role),
          std::move(partial)};
}

// What can become of a partial version.
std::vector<std::pair<std::string_view, std::uint64_t>> PartialCounts(const Tally& tally) {
  return {{"partial", tally.partial},
          {"committed_everywhere", tally.partial_committed},
          {"flips", tally.partial_flips},
          {"wrong_base", tally.wrong_base},
          {"superseded", tally.superseded}};
}

std::string KindOf(const std::string& what) { return what.substr(0, what.find(':')); }

}  // namespace

std::optional<Finding> RunCampaign(const Campaign& campaign, Tally& tally) {
  const std::vector<SharedBoard> boards(static_cast<std::size_t>(campaign.processes));
  std::vector<pid_t> children;
  for (std::size_t i = 0; i < boards.size(); ++i) {
    children.push_back(Fork([&] { RunSome(boards, i, campaign); }));
  }
  std::optional<Finding> first;
  for (std::size_t i = 0; i < children.size(); ++i) {
    const std::optional<Finding> found = Await(children[i], *boards[i]);
    tally.Add(boards[i]->tally);
    if (found && (!first || found->seed < first->seed)) first = found;
  }
  return first;
}

std::optional<Finding> RunAlone(std::uint64_t seed, const FaultSchedule& faults) {
  const SharedBoard board;
  board->seed = seed;
  return Await(Fork([&] {
                 const Outcome outcome = RunSchedule(seed, faults, board->tally);
                 if (!outcome.status.ok()) board->Note(outcome.status);
               }),
               *board);
}

FaultSchedule Shrink(const Finding& finding) {
  FaultSchedule faults = MakeFaultSchedule(finding.seed);
  for (std::size_t i = faults.size(); i-- > 0;) {
    FaultSchedule fewer = faults;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
    const std::optional<Finding> found = RunAlone(finding.seed, fewer);
    if (found && KindOf(found->what) == KindOf(finding.what)) faults = std::move(fewer);
  }
  return faults;
}

std::string Summary(const Tally& tally) {
  std::string text = fmt::format(
      "schedules={} publishes={} committed_everywhere={} flips={} faults={} switches={}\n"
      "followed={} caught_up={} let_through={} refused={}\n",
      tally.schedules, tally.publishes, tally.committed, tally.flips, tally.faults, tally.switches, tally.followed,
      tally.caught_up, tally.let_through, tally.refused);
  for (const auto& [what, count] : PartialCounts(tally)) text += fmt::format("{}={} ", what, count);
  text.back() = '\n';
  for (const TallyTable& table : TablesOf(tally)) {
    text += fmt::format("{:16}", table.what);
    for (const std::string_view name : table.names) text += fmt::format("{:>11}", name);
    for (std::size_t kind = 0; kind < kFaultKinds; ++kind) {
      text += fmt::format("\n{:16}", FaultName(static_cast<FaultKind>(kind)));
      for (const auto& row : table.rows) text += fmt::format("{:11}", row[kind]);
    }
    text += "\n";
  }
  return text;
}

std::string Unreached(const Tally& tally) {
  const std::vector<TallyTable> tables = TablesOf(tally);
  std::string text;
  const TallyTable& states = tables.front();
  for (std::size_t row = 0; row < states.rows.size(); ++row) {
    for (std::size_t kind = 0; kind < kFaultKinds; ++kind) {
      if (states.rows[row][kind] > 0) continue;
      text += fmt::format(" {}x{}", states.names[row], FaultName(static_cast<FaultKind>(kind)));
    }
  }
  for (const TallyTable& table : std::span(tables).subspan(1)) {
    for (std::size_t row = 0; row < table.rows.size(); ++row) {
      if (std::ranges::all_of(table.rows[row], [](std::uint64_t count) { return count == 0; })) {
        text += fmt::format(" {}", table.names[row]);
      }
    }
  }
  for (const auto& [what, count] : PartialCounts(tally)) {
    if (count == 0) text += fmt::format(" partial:{}", what);
  }
  return text;
}

}  // namespace bascule::simulation
