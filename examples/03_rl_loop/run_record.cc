#include "examples/03_rl_loop/run_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>

namespace bascule::rl_loop {
namespace {

constexpr int kLastSteps = 10;

}  // namespace

double Percentile(std::vector<double> values, double part) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<std::size_t>(std::ceil(part * static_cast<double>(values.size())));
  return values[std::clamp(rank, std::size_t{1}, values.size()) - 1];
}

RunSummary Summarize(const RunRecord& record) {
  RunSummary summary;
  summary.steps = static_cast<int>(record.steps.size());
  summary.seconds = record.seconds;
  if (record.steps.empty()) return summary;
  summary.first_reward = record.steps.front().reward;
  std::vector<double> stalls;
  for (const StepRecord& step : record.steps) {
    summary.tokens += step.tokens;
    summary.stale_tokens += step.stale_tokens;
    if (!step.published) continue;
    ++summary.versions;
    summary.parity_max = std::max(summary.parity_max, step.published->parity);
    summary.tokens_meanwhile += step.published->tokens_meanwhile;
    if (step.published->stall_us > 0) stalls.push_back(step.published->stall_us);
  }
  const int last = std::min(kLastSteps, summary.steps);
  for (int i = summary.steps - last; i < summary.steps; ++i) {
    summary.last_reward += record.steps[static_cast<std::size_t>(i)].reward / last;
  }
  summary.flips_while_decoding = static_cast<int>(stalls.size());
  summary.stall_us_p50 = Percentile(stalls, 0.5);
  summary.stall_us_p99 = Percentile(stalls, 0.99);
  summary.stall_us_max = Percentile(stalls, 1.0);
  return summary;
}

std::string TableHeading() {
  return "step  version  reward  staleness    bytes  stage ms  verify ms  stall µs  tokens meanwhile";
}

std::string TableRow(const StepRecord& step) {
  const std::string learned = fmt::format("{:>6.3f}  {:>9.2f}", step.reward, step.staleness);
  if (!step.published) return fmt::format("{:>4}  {:>7}  {}", step.step, "-", learned);
  const PublishedVersion& published = *step.published;
  return fmt::format("{:>4}  {:>7}  {}  {:>7}  {:>8.2f}  {:>9.2f}  {:>8.1f}  {:>16}", step.step,
                     published.version.number, learned, published.bytes, published.stage_ms, published.verify_ms,
                     published.stall_us, published.tokens_meanwhile);
}

std::string SummaryText(const RunSummary& summary) {
  std::string text = fmt::format("reward      {:.3f} at the start, {:.3f} in the last {} steps (1 is the maximum)\n",
                                 summary.first_reward, summary.last_reward, std::min(kLastSteps, summary.steps));
  if (summary.versions > 0) {
    text += fmt::format(
        "versions    {} published; each one's digest is the same in trainer and engine\n"
        "parity      {:.1e}: the most by which the engine's probabilities differ from the trainer's, of any version\n"
        "stall       p50 {:.1f} µs, p99 {:.1f} µs, max {:.1f} µs over {} flips while decoding\n",
        summary.versions, summary.parity_max, summary.stall_us_p50, summary.stall_us_p99, summary.stall_us_max,
        summary.flips_while_decoding);
  }
  return text + fmt::format(
                    "tokens      {} decoded, {} of them while a version was on its way; {} learned from behind the "
                    "newest version\n"
                    "time        {:.1f} s, {:.0f} tokens/s\n",
                    summary.tokens, summary.tokens_meanwhile, summary.stale_tokens, summary.seconds,
                    static_cast<double>(summary.tokens) / std::max(summary.seconds, 1e-9));
}

std::string CsvText(const RunRecord& record) {
  std::string text =
      "step,reward,staleness,tokens,stale_tokens,ratio_deviation,clipped_share,entropy,version,digest,bytes,stage_ms,"
      "verify_ms,stall_us,recomputed_requests,tokens_meanwhile,parity\n";
  for (const StepRecord& step : record.steps) {
    text +=
        fmt::format("{},{:.6f},{:.6f},{},{},{:.6f},{:.6f},{:.6f},", step.step, step.reward, step.staleness, step.tokens,
                    step.stale_tokens, step.learn.ratio_deviation, step.learn.clipped_share, step.learn.entropy);
    if (!step.published) {
      text += ",,,,,,,,\n";
      continue;
    }
    const PublishedVersion& published = *step.published;
    text += fmt::format("{},{},{},{:.3f},{:.3f},{:.2f},{},{},{:.2e}\n", published.version.number,
                        published.version.digest.ToHex(), published.bytes, published.stage_ms, published.verify_ms,
                        published.stall_us, published.recomputed, published.tokens_meanwhile, published.parity);
  }
  return text;
}

Status WriteText(const std::string& path, const std::string& text) {
  if (std::ofstream out(path); (out << text).flush()) return OkStatus();
  return Status::Unavailable("cannot_write", path);
}

}  // namespace bascule::rl_loop
