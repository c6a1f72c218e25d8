#include "engine_side/decode/admission_queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace bascule {
namespace {

using Queue = AdmissionQueue<std::unique_ptr<std::string>>;

class AdmissionQueueTest : public testing::Test {
 protected:
  void Add(const std::string& client, const std::string& name, std::int64_t tokens = 1) {
    queue_.Add(client, tokens, std::make_unique<std::string>(name));
  }
  // The next one runs. Requests are named by client and number.
  std::string Admit() {
    const std::string client = (*queue_.Head())->substr(0, 1);
    const std::string name = *queue_.Take(client);
    queue_.Admitted(client, 1);
    return name;
  }

  Queue queue_{{.requests = 8, .tokens = 100}};
};

TEST_F(AdmissionQueueTest, ClientsTakeTurnsHoweverManyRequestsOneHas) {
  for (const char* name : {"a1", "a2", "a3", "a4"}) Add("a", name);
  Add("b", "b1");
  Add("c", "c1");
  Add("b", "b2");

  std::vector<std::string> order;
  while (!queue_.empty()) order.push_back(Admit());

  EXPECT_EQ(order, (std::vector<std::string>{"a1", "b1", "c1", "a2", "b2", "a3", "a4"}));
}

TEST_F(AdmissionQueueTest, AClientWhoseRequestsHaveEndedComesBeforeOneWhoseRequestsRun) {
  for (const char* name : {"a1", "a2", "a3"}) Add("a", name);
  for (const char* name : {"b1", "b2", "b3"}) Add("b", name);
  for (int i = 0; i < 4; ++i) Admit();
  queue_.Left("b");
  queue_.Left("b");

  EXPECT_EQ(Admit(), "b3");
  EXPECT_EQ(Admit(), "a3");
}

TEST_F(AdmissionQueueTest, TheHeadsOfOtherClientsCanBeLookedAtInTurn) {
  for (const char* name : {"a1", "a2"}) Add("a", name);
  Add("b", "b1");

  EXPECT_EQ(**queue_.Head(0), "a1");
  EXPECT_EQ(**queue_.Head(1), "b1");
  EXPECT_EQ(queue_.Head(2), nullptr);
}

TEST_F(AdmissionQueueTest, AFullQueueTakesAClientThatHasLessThanItsShareUpToTwiceTheLimit) {
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(queue_.HasRoom("a", 1));
    Add("a", "a");
  }
  EXPECT_FALSE(queue_.HasRoom("a", 1));

  int of_b = 0;
  for (; queue_.HasRoom("b", 1); ++of_b) Add("b", "b");
  int of_c = 0;
  for (; queue_.HasRoom("c", 1); ++of_c) Add("c", "c");
  int of_more = 0;
  for (char client = 'd'; client <= 'z'; ++client) {
    for (; queue_.HasRoom({client}, 1); ++of_more) Add({client}, {client});
  }

  EXPECT_EQ(of_b, 4);
  EXPECT_EQ(of_c, 2);
  EXPECT_EQ(queue_.requests(), 8 + of_b + of_c + of_more);
  EXPECT_LE(queue_.requests(), 16);
}

TEST_F(AdmissionQueueTest, TokensAreBoundedAsRequestsAre) {
  Add("a", "a1", 60);
  EXPECT_FALSE(queue_.HasRoom("a", 41));
  EXPECT_TRUE(queue_.HasRoom("a", 40));

  EXPECT_TRUE(queue_.HasRoom("b", 50));
  EXPECT_FALSE(queue_.HasRoom("b", 51));
}

TEST_F(AdmissionQueueTest, WhatIsTakenIsCountedUntilItRunsOrIsWithdrawnAndThenForgotten) {
  Add("a", "a1", 5);
  Add("a", "a2", 6);
  auto first = queue_.Take("a");
  EXPECT_EQ(queue_.requests(), 2);
  EXPECT_EQ(queue_.tokens(), 11);
  queue_.Queue("a", std::move(first));  // behind the other now
  EXPECT_EQ(**queue_.Head(), "a2");

  const auto all = queue_.TakeIf([](const auto&) { return true; });
  queue_.Withdrawn("a", 5);
  queue_.Admitted("a", 6);

  EXPECT_EQ(all.size(), 2U);
  EXPECT_EQ(queue_.requests(), 0);
  EXPECT_EQ(queue_.tokens(), 0);
  EXPECT_EQ(queue_.clients(), 1U);  // of whom one runs
  queue_.Left("a");
  EXPECT_EQ(queue_.clients(), 0U);
}

}  // namespace
}  // namespace bascule
