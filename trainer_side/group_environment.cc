#include "trainer_side/group_environment.h"

#include <charconv>
#include <cstdlib>

#include "base/net_address.h"
#include "bridge/group/group_leader.h"

namespace bascule {
namespace {

constexpr int kMaxPort = 65535;

Status BadEnvironment(std::string message) { return Status::InvalidArgument("bad_environment", std::move(message)); }

Result<int> NumberOf(const Environment& environment, const std::string& name, int least, int most) {
  const std::optional<std::string> text = environment(name);
  if (!text) return BadEnvironment(name + " is not set");
  int number = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error != std::errc() || end != text->data() + text->size() || number < least || number > most) {
    return BadEnvironment(fmt::format("{}={} is no number in [{}, {}]", name, *text, least, most));
  }
  return number;
}

Result<std::string> LeaderOf(const Environment& environment) {
  if (const auto leader = environment("BASCULE_LEADER")) return *leader;
  const std::optional<std::string> host = environment("MASTER_ADDR");
  if (!host || host->empty()) return BadEnvironment("neither BASCULE_LEADER nor MASTER_ADDR is set");
  NetAddress address{.host = *host, .port = 0, .unix_path = ""};
  if (environment("BASCULE_PORT")) {
    ASSIGN_OR_RETURN(const int port, NumberOf(environment, "BASCULE_PORT", 1, kMaxPort));
    address.port = static_cast<std::uint16_t>(port);
  } else {
    ASSIGN_OR_RETURN(const int port, NumberOf(environment, "MASTER_PORT", 1, kMaxPort - kPortsAboveMaster));
    address.port = static_cast<std::uint16_t>(port + kPortsAboveMaster);
  }
  return address.ToString();
}

}  // namespace

Environment ProcessEnvironment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

Result<TrainerGroup> TrainerGroupFrom(const Environment& environment) {
  TrainerGroup group;
  ASSIGN_OR_RETURN(group.world_size, NumberOf(environment, "WORLD_SIZE", 1, kMaxGroupRanks));
  ASSIGN_OR_RETURN(group.rank, NumberOf(environment, "RANK", 0, group.world_size - 1));
  ASSIGN_OR_RETURN(group.leader, LeaderOf(environment));
  RETURN_IF_ERROR(NetAddress::Parse(group.leader).status());
  group.name = environment("BASCULE_GROUP").value_or(environment("TORCHELASTIC_RUN_ID").value_or(""));
  return group;
}

Result<TrainerGroup> TrainerGroupFrom(const std::vector<std::string>& addresses, int rank) {
  if (rank < 0 || std::cmp_greater_equal(rank, addresses.size())) {
    return BadEnvironment(fmt::format("trainer rank {} of a list of {}", rank, addresses.size()));
  }
  return TrainerGroup{
      .rank = rank, .world_size = static_cast<int>(addresses.size()), .leader = addresses.front(), .name = ""};
}

}  // namespace bascule
