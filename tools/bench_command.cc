// bascule bench: the numbers that README quotes, each beside its physical limit measured in the same run.
#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "benchmarks/benchmark.h"
#include "tools/command.h"
#include "tools/options.h"

namespace bascule {
namespace {

struct BenchOptions {
  std::string name;
  bool list = false;
  std::int64_t bytes = static_cast<std::int64_t>(BenchmarkScale{}.bytes);
  std::int64_t model_bytes = BenchmarkScale{}.model_bytes;
  int rounds = BenchmarkScale{}.rounds;
};

// What runs now, on a terminal: some benchmarks say nothing for a minute.
class RunningLine {
 public:
  explicit RunningLine(bool wanted) : visible_(wanted && isatty(STDERR_FILENO) == 1) {}
  ~RunningLine() { Clear(); }
  RunningLine(const RunningLine&) = delete;
  RunningLine& operator=(const RunningLine&) = delete;
  void Show(const Benchmark& benchmark) {
    if (visible_) fmt::print(stderr, "\r\x1b[2K{}: {} ...", benchmark.name, benchmark.summary);
  }
  void Clear() {
    if (visible_) fmt::print(stderr, "\r\x1b[2K");
  }

 private:
  const bool visible_;
};

void ShowRow(Output& out, const BenchmarkRow& row) {
  if (out.json()) {
    out.PrintObject(Json{{"name", row.name},
                         {"value", row.value},
                         {"unit", row.unit},
                         {"limit", row.limit},
                         {"limit_what", row.limit_what},
                         {"ratio", row.ratio()}});
  } else {
    out.PrintText(fmt::format("{:<32} {:>10.4g} {:<6} {:>6.2f} of {:.4g} {} ({})", row.name, row.value, row.unit,
                              row.ratio(), row.limit, row.unit, row.limit_what));
  }
}

void ListBenchmarks(Output& out) {
  for (const Benchmark& benchmark : AllBenchmarks()) {
    if (out.json()) {
      out.PrintObject(Json{{"name", benchmark.name}, {"summary", benchmark.summary}});
    } else {
      out.PrintText(fmt::format("{:<20}  {}", benchmark.name, benchmark.summary));
    }
  }
}

Outcome RunBench(Program& program, const BenchOptions& options) {
  if (options.list) {
    ListBenchmarks(program.out);
    return {};
  }
  const BenchmarkScale scale{
      .bytes = static_cast<std::size_t>(options.bytes), .model_bytes = options.model_bytes, .rounds = options.rounds};
  RunningLine line(!program.out.json());
  for (const Benchmark& benchmark : AllBenchmarks()) {
    if (!options.name.empty() && options.name != benchmark.name) continue;
    line.Show(benchmark);
    const auto on_row = [&](const BenchmarkRow& row) {
      line.Clear();
      ShowRow(program.out, row);
    };
    const Status status = RunBenchmarks(benchmark.name, scale, on_row, program.interrupt.token());
    if (program.interrupt.requested()) return InterruptedError();
    if (!status.ok()) return status;
  }
  return {};
}

// Empty for a benchmark that there is.
std::string WhyNoBenchmark(const std::string& name) {
  std::string names;
  for (const Benchmark& benchmark : AllBenchmarks()) {
    if (name == benchmark.name) return "";
    names += fmt::format(" {}", benchmark.name);
  }
  return fmt::format("no benchmark '{}'; there are:{}", name, names);
}

}  // namespace

Command BenchCommand(CLI::App& parent) {
  CLI::App* app = AddSubcommand(parent, "bench", "Measures what README quotes, each beside its physical limit.",
                                "bascule bench sync_shm");
  auto options = std::make_shared<BenchOptions>();
  app->add_option("name", options->name, "one benchmark; all when left out")->check(WhyNoBenchmark);
  app->add_flag("--list", options->list, "say which benchmarks there are, and run none");
  AddBytes(*app, "--bytes", options->bytes, "of memory that a kernel goes through");
  AddBytes(*app, "--model-bytes", options->model_bytes, "of the model that is published");
  app->add_option("--rounds", options->rounds, "whose median counts")->capture_default_str()->check(AtLeast(1));
  return {app, [options](Program& program) { return RunBench(program, *options); }};
}

}  // namespace bascule
