#include "trainer_side/publish_history.h"

#include <gtest/gtest.h>

#include <string>

namespace bascule {
namespace {

PublishReport ReportOf(std::uint64_t number, std::size_t replicas) {
  PublishReport report;
  report.version.number = number;
  report.replicas.resize(replicas);
  return report;
}

TEST(PublishHistoryTest, TheOldestReportsGoWhereThereAreTooManyOfThemOrOfTheirReplicas) {
  PublishHistory history;
  for (std::uint64_t number = 1; number <= PublishHistory::kReports + 1; ++number) history.Add(ReportOf(number, 0));
  ASSERT_EQ(history.Reports().size(), PublishHistory::kReports);
  EXPECT_EQ(history.Reports().front().version.number, 2u);

  for (std::uint64_t number = 1; number <= 12; ++number) history.Add(ReportOf(number, PublishHistory::kReplicas / 10));

  ASSERT_EQ(history.Reports().size(), 10u);
  EXPECT_EQ(history.Reports().front().version.number, 3u);
}

TEST(PublishHistoryTest, TheNewestReportIsKeptWhateverItsFleetAndOfItsErrorsTheBeginning) {
  PublishHistory history;
  PublishReport report = ReportOf(7, PublishHistory::kReplicas + 1);
  report.replicas[0].status = Status::Unavailable("peer_lost", std::string(1 << 20, 'x'));
  history.Add(ReportOf(6, 1));

  history.Add(std::move(report));

  ASSERT_EQ(history.Reports().size(), 1u);
  EXPECT_EQ(history.Reports()[0].version.number, 7u);
  EXPECT_EQ(history.Reports()[0].replicas[0].status.reason(), "peer_lost");
  EXPECT_EQ(history.Reports()[0].replicas[0].status.message().size(), PublishHistory::kTextBytes);
}

}  // namespace
}  // namespace bascule
