#include "tools/options.h"

#include <fmt/format.h>

#include "base/net_address.h"
#include "base/status.h"
#include "tools/units.h"

namespace bascule {
namespace {

// CLI11 takes the text of what is wrong, empty when nothing is.
std::string Complaint(const Status& status) { return status.message(); }

template <typename T, typename Parse>
CLI::Option* AddParsed(CLI::App& app, const std::string& name, T& target, const std::string& what, Parse parse) {
  const auto store = [&target, parse](const std::string& text) {
    if (auto value = parse(text); value.ok()) target = *value;
  };
  return app.add_option_function<std::string>(name, store, what)->check([parse](const std::string& text) {
    return Complaint(parse(text).status());
  });
}

template <typename T>
CLI::Option* AddRanks(CLI::App& app, T& target) {
  constexpr int kRanksMax = 1024;
  return app.add_option("--tp", target, "engine ranks that share every layer")
      ->type_name("N")
      ->check(CLI::Range(1, kRanksMax));
}

std::string DurationText(Duration time) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
  return ms % 1000 == 0 ? fmt::format("{}s", ms / 1000) : fmt::format("{}ms", ms);
}

}  // namespace

CLI::App* AddSubcommand(CLI::App& parent, const std::string& name, const std::string& what,
                        const std::string& example) {
  CLI::App* app = parent.add_subcommand(name, what);
  app->footer("Options of every command: --json --log-level --log-json --config (see bascule --help)\n\nExample:\n  " +
              example);
  return app;
}

CLI::Option* AddNumber(CLI::App& app, const std::string& name, std::uint64_t& target, const std::string& what) {
  return AddParsed(app, name, target, what, ParseNumber)->type_name("N")->default_str(std::to_string(target));
}

CLI::Option* AddNumber(CLI::App& app, const std::string& name, std::optional<std::uint64_t>& target,
                       const std::string& what) {
  return AddParsed(app, name, target, what, ParseNumber)->type_name("N");
}

CLI::Option* AddDuration(CLI::App& app, const std::string& name, Duration& target, const std::string& what) {
  return AddParsed(app, name, target, what, ParseDuration)->type_name("TIME")->default_str(DurationText(target));
}

CLI::Option* AddBytes(CLI::App& app, const std::string& name, std::int64_t& target, const std::string& what) {
  return AddParsed(app, name, target, what, ParseBytes)->type_name("SIZE")->default_str(std::to_string(target));
}

CLI::Option* AddTokens(CLI::App& app, const std::string& name, std::vector<std::int32_t>& target,
                       const std::string& what) {
  return AddParsed(app, name, target, what, ParseTokens)->type_name("ID,..");
}

CLI::Option* AddAddress(CLI::App& app, const std::string& name, std::string& target, const std::string& what) {
  return app.add_option(name, target, what)->type_name("ADDRESS")->check([](const std::string& text) {
    return Complaint(NetAddress::Parse(text).status());
  });
}

CLI::Option* AddAddresses(CLI::App& app, const std::string& name, std::vector<std::string>& target,
                          const std::string& what) {
  return app.add_option(name, target, what)
      ->delimiter(',')
      ->type_name("ADDRESS,..")
      ->check([](const std::string& text) { return Complaint(NetAddress::Parse(text).status()); });
}

CLI::Validator AtLeast(int minimum) {
  const auto complaint = [minimum](const std::string& text) -> std::string {
    double value = 0;
    if (!CLI::detail::lexical_cast(text, value)) return fmt::format("'{}' is no number", text);
    return value >= minimum ? "" : fmt::format("{} is less than {}", text, minimum);
  };
  return CLI::Validator(complaint, minimum == 0 ? "NONNEGATIVE" : "POSITIVE");
}

CLI::Option* AddTensorParallel(CLI::App& app, int& target) { return AddRanks(app, target); }
CLI::Option* AddTensorParallel(CLI::App& app, std::optional<int>& target) { return AddRanks(app, target); }

CLI::Option* AddPeer(CLI::App& app, std::string& target) {
  return AddAddress(app, "address", target, "where it listens: host:port, [v6]:port or unix:/path")->required();
}

CLI::Option* AddTimeout(CLI::App& app, Duration& target) {
  return AddDuration(app, "--timeout", target, "how long to wait for an answer");
}

}  // namespace bascule
