// bascule verify: is the content of two checkpoints, artifacts or running engines the same?
#include <fmt/core.h>

#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/net_address.h"
#include "bridge/send/source_digest.h"
#include "tools/artifact_check.h"
#include "tools/command.h"
#include "tools/grpc/version_status_client.h"
#include "tools/logical_checkpoint.h"
#include "tools/options.h"
#include "tools/read_option.h"
#include "tools/security_options.h"

namespace bascule {
namespace {

struct VerifyOptions {
  std::string a, b;
  ReadOptions read;
  Duration timeout = std::chrono::minutes(2);
  SecurityOptions security;
};

// One side of the comparison: files, whose bytes can be digested in another type, or the digests of an engine.
struct Content {
  std::string name;
  std::optional<LogicalCheckpoint> files;
  std::map<std::string, TensorSpec> tensors;
  std::map<std::string, TensorDigest> digests;  // of files: once it is known in which types
  // Of an artifact: what its manifest says otherwise. Of an engine: replicas that differ.
  std::vector<Artifact::Altered> altered;
};

// By tensor, the first reason found.
using Differences = std::map<std::string, std::string>;

Result<Content> ReadEngine(Program& program, const std::string& address, const VerifyOptions& options,
                           Deadline deadline) {
  ASSIGN_OR_RETURN(const ClientSecurity security, ClientSecurityOf(options.security));
  ASSIGN_OR_RETURN(const auto client, VersionStatusClient::Connect(address, deadline, security));
  ASSIGN_OR_RETURN(const LiveDigests live, client->DigestLive(deadline, program.interrupt.token()));
  Content content{address, std::nullopt, {}, {}, {}};
  for (std::size_t t = 0; t < live.tensors.size(); ++t) {
    content.tensors[live.tensors[t].name] = live.tensors[t];
    content.digests[live.tensors[t].name] = live.digests[t];
  }
  for (const auto& [tensor, what] : live.replica_differences) {
    content.altered.push_back({tensor, fmt::format("{}: {}", address, what)});
  }
  return content;
}

Result<Content> ReadFiles(const std::string& path, const ReadOptions& read) {
  ASSIGN_OR_RETURN(LogicalCheckpoint files, LogicalCheckpoint::Open(path, read));
  Content content{path, std::move(files), {}, {}, {}};
  for (const TensorSpec& tensor : content.files->tensors()) content.tensors[tensor.name] = tensor;
  if (const Artifact* artifact = content.files->artifact(); artifact != nullptr) {
    ASSIGN_OR_RETURN(ArtifactCheck check, CheckArtifact(*artifact));
    content.altered = std::move(check.altered);
  }
  return content;
}

bool CanConvert(DType from, DType to) {
  return from == to || (from == DType::kF32 && to == DType::kBf16) || (from == DType::kBf16 && to == DType::kF32);
}

// The type in which a tensor of both sides is compared: what an engine holds cannot be changed any more, and fp32 is
// rounded to bf16 rather than the other way.
std::optional<DType> CommonDType(const Content& a, const Content& b, const std::string& tensor) {
  const DType of_a = a.tensors.at(tensor).dtype;
  const DType of_b = b.tensors.at(tensor).dtype;
  if (of_a == of_b) return of_a;
  if (!CanConvert(of_a, of_b) || (!a.files && !b.files)) return std::nullopt;
  if (!a.files) return of_a;
  return b.files ? DType::kBf16 : of_b;
}

// Digests files, in the types of `common` where it has them.
Status DigestIn(const std::map<std::string, DType>& common, Content& content) {
  if (!content.files) return OkStatus();
  std::vector<TensorSpec> specs = content.files->tensors();
  for (TensorSpec& spec : specs) {
    if (const auto found = common.find(spec.name); found != common.end()) spec.dtype = found->second;
  }
  ASSIGN_OR_RETURN(const std::vector<TensorDigest> digests,
                   DigestSource(content.files->source(), specs, /*threads=*/0));
  for (std::size_t t = 0; t < specs.size(); ++t) content.digests[specs[t].name] = digests[t];
  return OkStatus();
}

void AddOnlyIn(const Content& one, const Content& other, Differences& differences) {
  for (const auto& [name, spec] : one.tensors) {
    if (!other.tensors.contains(name)) differences.emplace(name, fmt::format("only in {}", one.name));
  }
}

// Shapes and types that cannot be compared are differences; what can be compared goes to `common`.
void CompareSpecs(const Content& a, const Content& b, std::map<std::string, DType>& common, Differences& differences) {
  for (const auto& [name, of_a] : a.tensors) {
    const auto found = b.tensors.find(name);
    if (found == b.tensors.end()) continue;
    const TensorSpec& of_b = found->second;
    const std::optional<DType> dtype = CommonDType(a, b, name);
    if (of_a.shape != of_b.shape) {
      differences.emplace(name, fmt::format("shape {} and {}", of_a.shape.ToString(), of_b.shape.ToString()));
    } else if (!dtype) {
      differences.emplace(name, fmt::format("dtype {} and {}", DTypeName(of_a.dtype), DTypeName(of_b.dtype)));
    } else {
      common[name] = *dtype;
    }
  }
}

Result<Differences> Compare(Content& a, Content& b) {
  Differences differences;
  std::map<std::string, DType> common;
  for (const Content* side : {&a, &b}) {
    for (const Artifact::Altered& altered : side->altered) differences.emplace(altered.tensor, altered.why);
  }
  AddOnlyIn(a, b, differences);
  AddOnlyIn(b, a, differences);
  CompareSpecs(a, b, common, differences);
  RETURN_IF_ERROR(DigestIn(common, a));
  RETURN_IF_ERROR(DigestIn(common, b));
  for (const auto& [name, dtype] : common) {
    if (a.digests[name] != b.digests[name]) differences.emplace(name, "digest differs");
  }
  return differences;
}

void ShowTable(Output& out, const Differences& differences) {
  std::vector<std::vector<std::string>> rows = {{"TENSOR", "DIFFERENCE"}};
  constexpr std::size_t kRowsShown = 20;  // --json lists all
  for (const auto& [tensor, why] : differences) {
    if (rows.size() > kRowsShown) break;
    rows.push_back({tensor, why});
  }
  out.PrintText(TableText(rows));
  if (differences.size() > kRowsShown) {
    out.PrintText(fmt::format("... and {} more; --json lists all", differences.size() - kRowsShown));
  }
}

void Show(Output& out, const Differences& differences) {
  if (out.json()) {
    Json list = Json::array();
    for (const auto& [tensor, why] : differences) list.push_back({{"tensor", tensor}, {"why", why}});
    out.PrintObject(Json{{"equal", differences.empty()}, {"differences", std::move(list)}});
  } else if (differences.empty()) {
    out.PrintText(out.Painted(Colour::kGood, "equal"));
  } else {
    ShowTable(out, differences);
  }
}

Outcome RunVerify(Program& program, const VerifyOptions& options) {
  const Deadline deadline = Deadline::After(Clock::Real(), options.timeout);
  const ReadOptions read = UntilInterrupted(options.read, program.interrupt);
  std::vector<Content> sides;
  for (const std::string& side : {options.a, options.b}) {
    std::error_code ignored;
    const bool is_engine = !std::filesystem::exists(side, ignored) && NetAddress::Parse(side).ok();
    auto content = is_engine ? ReadEngine(program, side, options, deadline) : ReadFiles(side, read);
    if (!content.ok()) return {content.status(), is_engine ? side : "", ""};
    sides.push_back(std::move(*content));
  }
  ASSIGN_OR_RETURN(const Differences differences, Compare(sides[0], sides[1]));
  Show(program.out, differences);
  if (differences.empty()) return {};
  return Status::DataLoss("content_differs", fmt::format("{} and {} differ in {} tensors, {} first", options.a,
                                                         options.b, differences.size(), differences.begin()->first));
}

}  // namespace

Command VerifyCommand(CLI::App& parent) {
  CLI::App* app = AddSubcommand(parent, "verify", "Compares the content of checkpoints, artifacts and running engines.",
                                "bascule verify ./checkpoint 127.0.0.1:7000");
  auto options = std::make_shared<VerifyOptions>();
  app->add_option("a", options->a, "a checkpoint, an artifact, or the address of a running engine")->required();
  app->add_option("b", options->b, "likewise")->required();
  AddDuration(*app, "--timeout", options->timeout, "how long to wait for an engine to digest its memory");
  AddReadOptions(*app, options->read);
  AddClientSecurity(*app, options->security);
  return {app, [options](Program& program) { return RunVerify(program, *options); }};
}

}  // namespace bascule
