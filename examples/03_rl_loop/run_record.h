// What a run did, step by step: the live table, the CSV, and the summary.
//
// Thread-safety: thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "examples/03_rl_loop/trainer.h"
#include "examples/03_rl_loop/version_publisher.h"

namespace bascule::rl_loop {

struct StepRecord {
  int step = 0;  // from 1
  double reward = 0;
  double staleness = 0;  // mean over the tokens learned from: the masters' version minus the token's
  std::int64_t tokens = 0;
  std::int64_t stale_tokens = 0;
  LearnReport learn;
  std::optional<PublishedVersion> published;  // nothing with --no-publish
};

struct RunRecord {
  std::vector<StepRecord> steps;
  double seconds = 0;  // of all steps
};

struct RunSummary {
  int steps = 0;
  double first_reward = 0;
  double last_reward = 0;  // mean of the last ten steps, or of all where there are fewer
  int versions = 0;
  std::int64_t tokens = 0;
  std::int64_t stale_tokens = 0;
  std::uint64_t tokens_meanwhile = 0;
  double parity_max = 0;  // over the versions
  int flips_while_decoding = 0;
  double stall_us_p50 = 0, stall_us_p99 = 0, stall_us_max = 0;  // over the flips while decoding
  double seconds = 0;
};

// The smallest value that a share `part` of all does not exceed. 0 of none.
double Percentile(std::vector<double> values, double part);

RunSummary Summarize(const RunRecord& record);

std::string TableHeading();
std::string TableRow(const StepRecord& step);
std::string SummaryText(const RunSummary& summary);
std::string CsvText(const RunRecord& record);

// Unavailable "cannot_write"
Status WriteText(const std::string& path, const std::string& text);

}  // namespace bascule::rl_loop
