// What the loop says about a run: rollouts as plain numbers, the summary, and the chart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include "examples/03_rl_loop/background.h"
#include "examples/03_rl_loop/engine_program.h"
#include "examples/03_rl_loop/run_record.h"
#include "examples/03_rl_loop/svg_chart.h"

namespace bascule::rl_loop {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(SampledBatchTest, StalenessCountsVersionsBehindTheMasters) {
  SampledBatch batch;
  batch.response_tokens = 2;
  batch.logprobs.resize(4);
  batch.rewards = {1, 0, 1, 1};
  batch.token_versions = {7, 8, 9, 9};

  EXPECT_EQ(batch.rows(), 2);
  EXPECT_DOUBLE_EQ(batch.MeanReward(), 0.75);
  EXPECT_DOUBLE_EQ(batch.MeanStaleness(9), 0.75);
  EXPECT_EQ(batch.StaleTokens(9), 2);
}

TEST(RunRecordTest, PercentilesAreValuesThatWereMeasured) {
  EXPECT_EQ(Percentile({3, 1, 2}, 0.5), 2);
  EXPECT_EQ(Percentile({3, 1, 2}, 0.99), 3);
  EXPECT_EQ(Percentile({3, 1, 2}, 0.0), 1);
  EXPECT_EQ(Percentile({}, 0.5), 0);
}

TEST(RunRecordTest, TheSummaryTakesTheLastTenStepsAndOnlyFlipsThatStoppedDecode) {
  RunRecord record;
  for (int step = 1; step <= 12; ++step) {
    StepRecord& added = record.steps.emplace_back();
    added.step = step;
    added.reward = step <= 2 ? 0.0 : 0.5;
    added.tokens = 100;
    added.stale_tokens = 10;
    added.published = PublishedVersion{
        .parity = step == 3 ? 2e-6 : 1e-7, .stall_us = step % 2 == 0 ? 40.0 : 0.0, .tokens_meanwhile = 5};
  }
  record.steps.back().reward = 1.0;

  const RunSummary summary = Summarize(record);

  EXPECT_EQ(summary.first_reward, 0.0);
  EXPECT_NEAR(summary.last_reward, 0.55, 1e-9);
  EXPECT_EQ(summary.versions, 12);
  EXPECT_EQ(summary.flips_while_decoding, 6);
  EXPECT_EQ(summary.stall_us_p50, 40.0);
  EXPECT_EQ(summary.tokens, 1200);
  EXPECT_EQ(summary.stale_tokens, 120);
  EXPECT_EQ(summary.tokens_meanwhile, 60U);
  EXPECT_EQ(summary.parity_max, 2e-6);
}

// A panel's axis runs from y = 224 up to y = 44; two steps share the width between x = 70 and x = 740.
TEST(SvgChartTest, ALineLiesOnAnAxisFromZeroToOne) {
  const std::string svg = SvgOf({{.title = "t", .values = {0, 1}}});

  EXPECT_THAT(svg, HasSubstr("points=\"237.5,224.0 572.5,44.0\""));
}

TEST(SvgChartTest, BarsLieOnALogarithmicAxisThatEndsAtAPowerOfTen) {
  const std::string svg = SvgOf({{.title = "t", .form = ChartForm::kLogBars, .unit = "µs", .values = {0, 10, 500}}});

  EXPECT_THAT(svg, HasSubstr(">1000 µs<"));
  EXPECT_THAT(svg, Not(HasSubstr(">10000 µs<")));
  EXPECT_THAT(svg, HasSubstr("height=\"0.0\""));    // nothing stood still
  EXPECT_THAT(svg, HasSubstr("height=\"60.0\""));   // one of three decades, of 180
  EXPECT_THAT(svg, HasSubstr("height=\"161.9\""));  // log10(500) of three
}

TEST(BackgroundTest, AStopReachesTheThreadThatMakesTheValue) {
  std::stop_source stop;
  Background<int> value("value", [](const std::stop_token& token) -> Result<int> {
    Clock::Real().SleepUntil(TimePoint::max(), token);
    return Status::Cancelled("cancelled");
  });

  stop.request_stop();

  EXPECT_EQ(value.Take(stop.get_token()).status().reason(), "cancelled");
}

TEST(EngineProgramTest, AProgramThatEndsBeforeItIsReadyIsAnError) {
  const std::string log = testing::TempDir() + fmt::format("/engine-{}.log", getpid());

  const auto engine = EngineProgram::Start({.program = "/bin/false", .arguments = {}, .log_path = log},
                                           Deadline::After(Clock::Real(), std::chrono::seconds(60)));

  EXPECT_EQ(engine.status().reason(), "engine_failed");
  EXPECT_THAT(engine.status().message(), HasSubstr(log));
}

}  // namespace
}  // namespace bascule::rl_loop
