#include <gtest/gtest.h>

#include "engine_side/history.h"
#include "engine_side/staging.h"
#include "engine_side/version_ledger.h"

namespace bascule {
namespace {

ManifestOffer OfferOf(const std::string& run, std::uint64_t number, bool new_run = false) {
  ManifestOffer offer;
  offer.run = run;
  offer.number = number;
  offer.new_run = new_run;
  return offer;
}

Hash256 DigestOf(int content) {
  Hash256 digest;
  digest.bytes[0] = static_cast<std::byte>(content);
  return digest;
}

TEST(VersionLedgerTest, AnythingMayComeWhileNothingIsLive) {
  EXPECT_TRUE(VersionLedger().Check(OfferOf("any", 0), "").ok());
}

TEST(VersionLedgerTest, TellsANumberThatWasCommittedFromOneThatIsMerelyOld) {
  VersionLedger ledger;
  ledger.Commit(OfferOf("run", 3), DigestOf(1), /*was_live=*/true);
  ledger.Commit(OfferOf("run", 7), DigestOf(1), /*was_live=*/true);

  EXPECT_EQ(ledger.Check(OfferOf("run", 3), "run").reason(), "version_reused");
  EXPECT_EQ(ledger.Check(OfferOf("run", 7), "run").reason(), "version_reused");
  EXPECT_EQ(ledger.Check(OfferOf("run", 5), "run").reason(), "stale_version");
  EXPECT_TRUE(ledger.Check(OfferOf("run", 8), "run").ok());
  EXPECT_EQ(ledger.Highest("run"), 7u);
  EXPECT_EQ(ledger.Highest("other"), 0u);
  EXPECT_EQ(ledger.Highest(""), 7u) << "where nothing is live";
}

TEST(VersionLedgerTest, RemembersABoundedNumberOfCommitsAndStillRefusesTheOldest) {
  VersionLedger ledger;
  for (std::uint64_t number = 1; number <= 10'001; ++number)
    ledger.Commit(OfferOf("run", number), DigestOf(1), /*was_live=*/true);

  EXPECT_EQ(ledger.Check(OfferOf("run", 1), "run").reason(), "stale_version");
  EXPECT_EQ(ledger.Check(OfferOf("run", 2), "run").reason(), "version_reused");
}

TEST(VersionLedgerTest, I3ARunThatIsLiveDoesNotStartWhateverAnOfferSays) {
  VersionLedger ledger;
  ledger.Commit(OfferOf("run", 2), DigestOf(1), /*was_live=*/true);

  EXPECT_EQ(ledger.Check(OfferOf("run", 2, true), "run").reason(), "version_reused");
  EXPECT_EQ(ledger.Check(OfferOf("run", 1, true), "run").reason(), "stale_version");
  EXPECT_TRUE(ledger.Check(OfferOf("run", 3, true), "run").ok());
}

TEST(VersionLedgerTest, ARunThatStartsAnewForgetsItsEarlierNumbers) {
  VersionLedger ledger;
  ledger.Commit(OfferOf("run", 100), DigestOf(1), /*was_live=*/true);

  EXPECT_TRUE(ledger.Check(OfferOf("run", 1, true), "other").ok());
  ledger.Commit(OfferOf("run", 1, true), DigestOf(1), /*was_live=*/true);

  EXPECT_TRUE(ledger.Check(OfferOf("run", 2), "run").ok());
}

TEST(VersionLedgerTest, I3WhoHasLostItsWeightsIsBroughtTheSameBytesUnderANumberOrNone) {
  VersionLedger ledger;
  ledger.Commit(OfferOf("run", 4), DigestOf(4), /*was_live=*/true);
  ledger.Commit(OfferOf("run", 5), DigestOf(5), /*was_live=*/true);
  // The publisher says that the run starts, since nothing is live.
  const ManifestOffer again = OfferOf("run", 5, /*new_run=*/true);

  EXPECT_TRUE(ledger.Check(again, "").ok());
  EXPECT_TRUE(ledger.CheckDigest(again, DigestOf(5), "").ok());
  EXPECT_EQ(ledger.CheckDigest(again, DigestOf(6), "").reason(), "version_reused");
  EXPECT_TRUE(ledger.CheckDigest(OfferOf("run", 6), DigestOf(6), "").ok());

  ledger.Commit(again, DigestOf(5), /*was_live=*/false);
  EXPECT_EQ(ledger.Check(OfferOf("run", 4), "run").reason(), "version_reused");
}

TEST(VersionLedgerTest, ARunOfAnEarlierNameMayStartAnewAfterALoss) {
  VersionLedger ledger;
  ledger.Commit(OfferOf("run", 5), DigestOf(5), /*was_live=*/true);
  ledger.Commit(OfferOf("other", 1, true), DigestOf(1), /*was_live=*/true);

  EXPECT_TRUE(ledger.CheckDigest(OfferOf("run", 5, true), DigestOf(6), "").ok());
  ledger.Commit(OfferOf("run", 1, true), DigestOf(6), /*was_live=*/false);

  EXPECT_TRUE(ledger.Check(OfferOf("run", 2), "run").ok());
}

HistoryEntry Row(HistoryEntry::Kind kind, bool committed, double stall_us) {
  HistoryEntry row;
  row.kind = kind;
  row.committed = committed;
  row.flip_stall_us = stall_us;
  return row;
}

TEST(HistoryTest, StallsAreOverFlipsAndRollbacksByNearestRank) {
  History history;
  history.Add(Row(HistoryEntry::Kind::kInitial, true, 1e6));
  history.Add(Row(HistoryEntry::Kind::kFull, false, 1e6));
  for (int i = 1; i <= 99; ++i) history.Add(Row(HistoryEntry::Kind::kFull, true, i));
  history.Add(Row(HistoryEntry::Kind::kRollback, true, 100));

  const StallSummary stalls = history.Stalls();

  EXPECT_EQ(stalls.flip_count, 100u);
  EXPECT_EQ(stalls.us_p50, 50);
  EXPECT_EQ(stalls.us_p99, 99);
  EXPECT_EQ(stalls.us_max, 100);
}

TEST(HistoryTest, TheNewestTenThousandRowsAreKeptOldestFirst) {
  History history;
  for (int i = 0; i < 10'003; ++i) history.Add(Row(HistoryEntry::Kind::kFull, true, i));

  const std::vector<HistoryEntry> rows = history.Rows();

  ASSERT_EQ(rows.size(), 10'000u);
  EXPECT_EQ(rows.front().flip_stall_us, 3);
  EXPECT_EQ(rows.back().flip_stall_us, 10'002);
  EXPECT_EQ(history.Stalls().flip_count, 10'003u);
}

TEST(CoverageLedgerTest, IsCompleteWhenEachBucketHasArrivedAndNamesWhatIsMissing) {
  CoverageLedger ledger(3);
  ledger.Arrived(1);

  EXPECT_EQ(ledger.Missing(), (std::vector<std::uint32_t>{0, 2}));
  EXPECT_FALSE(ledger.complete());

  ledger.Arrived(0);
  ledger.Arrived(2);
  EXPECT_TRUE(ledger.complete());
  EXPECT_TRUE(CoverageLedger(0).complete());
}

}  // namespace
}  // namespace bascule
