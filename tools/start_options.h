// How a process that receives versions starts: the options that `bascule engine` and `bascule daemon` share.
//
// Thread-safety: thread-compatible (values and pure functions).
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "tools/engine_membership.h"
#include "tools/logical_checkpoint.h"
#include "tools/receiving_process.h"
#include "tools/security_options.h"

namespace bascule {

struct StartOptions {
  std::string checkpoint;  // or an artifact
  std::optional<int> tensor_parallel;
  ReadOptions read;
  // What the checkpoint is, once it is live.
  std::string run = "checkpoint";
  std::uint64_t version = 0;
  MembershipOptions membership;
  Duration load_deadline = std::chrono::minutes(30);
  SecurityOptions security;
};

// The model, and where the process listens. Targets outlive the parse.
void AddServing(CLI::App& app, StartOptions& start, ReceivingOptions& process);
// Where versions come from and who may bring them. `what` is the process in a word, for --help.
void AddFirstVersion(CLI::App& app, StartOptions& start, ReceivingOptions& process, std::string_view what);

// Writes into `process` what the shared options say beside the checkpoint that they name.
//
// As ServerSecurityOf and ClientSecurityOf
Status Apply(const StartOptions& start, const LogicalCheckpoint& checkpoint, ReceivingOptions& process);

}  // namespace bascule
