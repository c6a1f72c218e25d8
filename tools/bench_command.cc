// bascule bench: the numbers that README quotes, each beside its physical limit measured in the same run.
#include <memory>
#include <nlohmann/json.hpp>

#include "benchmarks/benchmark.h"
#include "tools/command.h"
#include "tools/options.h"

namespace bascule {
namespace {

struct BenchOptions {
  std::string name;
  std::int64_t bytes = static_cast<std::int64_t>(BenchmarkScale{}.bytes);
  int rounds = BenchmarkScale{}.rounds;
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

std::string BenchmarkNames() {
  std::string text = "\nBenchmarks:";
  for (const Benchmark& benchmark : AllBenchmarks()) {
    text += fmt::format("\n  {:<18} {}", benchmark.name, benchmark.summary);
  }
  return text;
}

Outcome RunBench(Program& program, const BenchOptions& options) {
  const BenchmarkScale scale{.bytes = static_cast<std::size_t>(options.bytes), .rounds = options.rounds};
  return RunBenchmarks(options.name, scale, [&](const BenchmarkRow& row) { ShowRow(program.out, row); });
}

}  // namespace

Command BenchCommand(CLI::App& parent) {
  CLI::App* app = AddSubcommand(parent, "bench", "Measures what README quotes, each beside its physical limit.",
                                "bascule bench digest");
  app->footer(app->get_footer() + "\n" + BenchmarkNames());
  auto options = std::make_shared<BenchOptions>();
  app->add_option("name", options->name, "one benchmark; all when left out");
  AddBytes(*app, "--bytes", options->bytes, "that a benchmark moves");
  app->add_option("--rounds", options->rounds, "whose median counts")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  return {app, [options](Program& program) { return RunBench(program, *options); }};
}

}  // namespace bascule
