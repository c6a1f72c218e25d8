#include "trainer_side/group_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace bascule {
namespace {

using testing::HasSubstr;

Environment Variables(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

TEST(GroupEnvironmentTest, ThePortIsAboveThatOfTorchsStoreUnlessOneIsNamed) {
  std::map<std::string, std::string> variables = {{"RANK", "2"},
                                                  {"WORLD_SIZE", "4"},
                                                  {"MASTER_ADDR", "node-1"},
                                                  {"MASTER_PORT", "29500"},
                                                  {"TORCHELASTIC_RUN_ID", "job"}};

  const auto by_rule = TrainerGroupFrom(Variables(variables));
  variables["BASCULE_PORT"] = "7100";
  const auto by_port = TrainerGroupFrom(Variables(variables));
  variables["BASCULE_LEADER"] = "unix:/run/leader";
  variables["BASCULE_GROUP"] = "mine";
  const auto by_address = TrainerGroupFrom(Variables(variables));

  ASSERT_TRUE(by_rule.ok() && by_port.ok() && by_address.ok());
  EXPECT_EQ(by_rule->rank, 2);
  EXPECT_EQ(by_rule->world_size, 4);
  EXPECT_EQ(by_rule->leader, "node-1:30500");
  EXPECT_EQ(by_rule->name, "job");
  EXPECT_EQ(by_port->leader, "node-1:7100");
  EXPECT_EQ(by_address->leader, "unix:/run/leader");
  EXPECT_EQ(by_address->name, "mine");
}

TEST(GroupEnvironmentTest, WhatIsMissingOrNoNumberIsNamed) {
  const std::map<std::string, std::string> good = {
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "::1"}, {"MASTER_PORT", "29500"}};
  ASSERT_EQ(TrainerGroupFrom(Variables(good))->leader, "[::1]:30500");
  const auto with = [&](const std::string& name, std::optional<std::string> value) {
    std::map<std::string, std::string> changed = good;
    changed.erase(name);
    if (value) changed[name] = *value;
    const Status status = TrainerGroupFrom(Variables(changed)).status();
    EXPECT_EQ(status.reason(), "bad_environment");
    return status.message();
  };

  for (const auto& [name, value] : good) EXPECT_THAT(with(name, std::nullopt), HasSubstr(name));
  EXPECT_THAT(with("RANK", "2"), HasSubstr("RANK=2 is no number in [0, 1]"));
  EXPECT_THAT(with("RANK", "1x"), HasSubstr("RANK=1x"));
  EXPECT_THAT(with("WORLD_SIZE", "0"), HasSubstr("WORLD_SIZE=0"));
  EXPECT_THAT(with("WORLD_SIZE", "99999999999"), HasSubstr("WORLD_SIZE=99999999999"));
  EXPECT_THAT(with("MASTER_PORT", "65000"), HasSubstr("MASTER_PORT=65000"));
}

TEST(GroupEnvironmentTest, OfAListTheFirstLeads) {
  const auto group = TrainerGroupFrom({"a:1", "b:1", "c:1"}, 2);

  ASSERT_TRUE(group.ok());
  EXPECT_EQ(group->rank, 2);
  EXPECT_EQ(group->world_size, 3);
  EXPECT_EQ(group->leader, "a:1");
  EXPECT_EQ(TrainerGroupFrom({"a:1"}, 1).status().reason(), "bad_environment");
}

}  // namespace
}  // namespace bascule
