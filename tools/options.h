// Typed options on CLI11: each checks its text while the command line is read, so that a typo is wrong usage (exit code
// 2) before anything starts. Targets outlive the parse.
//
// Thread-safety: confined to the main thread.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"

namespace bascule {

CLI::App* AddSubcommand(CLI::App& parent, const std::string& name, const std::string& what, const std::string& example);
// A whole number from 0 on.
CLI::Option* AddNumber(CLI::App& app, const std::string& name, std::uint64_t& target, const std::string& what);
CLI::Option* AddNumber(CLI::App& app, const std::string& name, std::optional<std::uint64_t>& target,
                       const std::string& what);
CLI::Option* AddDuration(CLI::App& app, const std::string& name, Duration& target, const std::string& what);
CLI::Option* AddBytes(CLI::App& app, const std::string& name, std::int64_t& target, const std::string& what);
CLI::Option* AddTokens(CLI::App& app, const std::string& name, std::vector<std::int32_t>& target,
                       const std::string& what);
CLI::Option* AddAddress(CLI::App& app, const std::string& name, std::string& target, const std::string& what);
CLI::Option* AddAddresses(CLI::App& app, const std::string& name, std::vector<std::string>& target,
                          const std::string& what);

// Lets pass numbers from `minimum` (0 or 1) on. CLI11's own validators answer with the largest double.
CLI::Validator AtLeast(int minimum);

// --tp N: how many engine ranks share every layer.
CLI::Option* AddTensorParallel(CLI::App& app, int& target);
CLI::Option* AddTensorParallel(CLI::App& app, std::optional<int>& target);

// The positional address of a running engine or publisher, as most commands have it.
CLI::Option* AddPeer(CLI::App& app, std::string& target);
// How long to wait for an answer.
CLI::Option* AddTimeout(CLI::App& app, Duration& target);
inline constexpr Duration kAnswerTimeout = std::chrono::seconds(10);

}  // namespace bascule
