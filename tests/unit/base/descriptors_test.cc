#include "base/descriptors.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "base/start_worker.h"
#include "tests/support/process_census.h"

namespace bascule {
namespace {

class DescriptorsTest : public testing::Test {
 protected:
  DescriptorsTest() { getrlimit(RLIMIT_NOFILE, &before_); }
  ~DescriptorsTest() override { setrlimit(RLIMIT_NOFILE, &before_); }
  rlim_t Limit() const {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    return limit.rlim_cur;
  }
  void SetLimit(rlim_t most) const {
    const rlimit limit{most, before_.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  rlimit before_{};
};

TEST_F(DescriptorsTest, WhatIsAskedForIsThereAndIsGivenBack) {
  const std::size_t open = OpenDescriptors();

  EXPECT_TRUE(CheckDescriptors(16).ok());

  EXPECT_EQ(OpenDescriptors(), open);
}

TEST_F(DescriptorsTest, TooFewAreAnErrorWithTheLimit) {
  SetLimit(32);
  const std::size_t open = OpenDescriptors();

  const Status status = CheckDescriptors(64);

  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(status.reason(), "descriptors");
  EXPECT_NE(status.message().find("want=64"), std::string::npos);
  EXPECT_NE(status.message().find("limit=32"), std::string::npos);
  EXPECT_EQ(OpenDescriptors(), open);
}

TEST_F(DescriptorsTest, ALowLimitIsRaisedToWhatIsAllowed) {
  SetLimit(32);

  RaiseDescriptorLimit();

  EXPECT_EQ(Limit(), before_.rlim_max);
}

TEST(StartWorkerTest, AThreadRunsAndIsJoinedLikeAnyWorker) {
  bool ran = false;
  {
    Result<Worker> worker = StartWorker("test", [&](std::stop_token) { ran = true; });
    ASSERT_TRUE(worker.ok());
  }
  EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace bascule
