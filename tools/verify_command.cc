// bascule verify: is the content of two checkpoints, or of a checkpoint and a running engine, the same?
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/net_address.h"
#include "tools/command.h"
#include "tools/grpc/version_status_client.h"
#include "tools/logical_checkpoint.h"
#include "tools/options.h"
#include "tools/read_option.h"

namespace bascule {
namespace {

struct VerifyOptions {
  std::string a, b;
  ReadOptions read;
  Duration timeout = std::chrono::minutes(2);
};

// One side of the comparison: a checkpoint, whose bytes can be digested in another type, or the digests of an engine.
struct Content {
  std::string name;
  std::optional<LogicalCheckpoint> checkpoint;
  std::map<std::string, TensorSpec> tensors;
  std::map<std::string, TensorDigest> digests;  // of a checkpoint: once it is known in which types
};

struct Difference {
  std::string tensor;
  std::string why;
};

Result<Content> ReadEngine(Program& program, const std::string& address, Deadline deadline) {
  ASSIGN_OR_RETURN(const auto client, VersionStatusClient::Connect(address, deadline));
  ASSIGN_OR_RETURN(const LiveDigests live, client->DigestLive(deadline, program.interrupt.token()));
  Content content{address, std::nullopt, {}, {}};
  for (std::size_t t = 0; t < live.tensors.size(); ++t) {
    content.tensors[live.tensors[t].name] = live.tensors[t];
    content.digests[live.tensors[t].name] = live.digests[t];
  }
  return content;
}

Result<Content> ReadCheckpoint(const std::string& path, const ReadOptions& read) {
  ASSIGN_OR_RETURN(LogicalCheckpoint checkpoint, LogicalCheckpoint::Open(path, read));
  Content content{path, std::move(checkpoint), {}, {}};
  for (const TensorSpec& tensor : content.checkpoint->tensors()) content.tensors[tensor.name] = tensor;
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
  if (!CanConvert(of_a, of_b) || (!a.checkpoint && !b.checkpoint)) return std::nullopt;
  if (!a.checkpoint) return of_a;
  return b.checkpoint ? DType::kBf16 : of_b;
}

// Digests a checkpoint, in the types of `common` where it has them.
Status DigestIn(const std::map<std::string, DType>& common, Content& content) {
  if (!content.checkpoint) return OkStatus();
  std::vector<TensorSpec> specs = content.checkpoint->tensors();
  for (TensorSpec& spec : specs) {
    if (const auto found = common.find(spec.name); found != common.end()) spec.dtype = found->second;
  }
  ASSIGN_OR_RETURN(const CheckpointDigest digest, DigestCheckpoint(*content.checkpoint, std::move(specs)));
  for (std::size_t t = 0; t < digest.tensors.size(); ++t) content.digests[digest.tensors[t].name] = digest.digests[t];
  return OkStatus();
}

void AddOnlyIn(const Content& one, const Content& other, std::vector<Difference>& differences) {
  for (const auto& [name, spec] : one.tensors) {
    if (!other.tensors.contains(name)) differences.push_back({name, fmt::format("only in {}", one.name)});
  }
}

// Shapes and types that cannot be compared are differences; what can be compared goes to `common`.
void CompareSpecs(const Content& a, const Content& b, std::map<std::string, DType>& common,
                  std::vector<Difference>& differences) {
  for (const auto& [name, of_a] : a.tensors) {
    const auto found = b.tensors.find(name);
    if (found == b.tensors.end()) continue;
    const TensorSpec& of_b = found->second;
    const std::optional<DType> dtype = CommonDType(a, b, name);
    if (of_a.shape != of_b.shape) {
      differences.push_back({name, fmt::format("shape {} and {}", of_a.shape.ToString(), of_b.shape.ToString())});
    } else if (!dtype) {
      differences.push_back({name, fmt::format("dtype {} and {}", DTypeName(of_a.dtype), DTypeName(of_b.dtype))});
    } else {
      common[name] = *dtype;
    }
  }
}

Result<std::vector<Difference>> Compare(Content& a, Content& b) {
  std::vector<Difference> differences;
  std::map<std::string, DType> common;
  AddOnlyIn(a, b, differences);
  AddOnlyIn(b, a, differences);
  CompareSpecs(a, b, common, differences);
  RETURN_IF_ERROR(DigestIn(common, a));
  RETURN_IF_ERROR(DigestIn(common, b));
  for (const auto& [name, dtype] : common) {
    if (a.digests[name] != b.digests[name]) differences.push_back({name, "digest differs"});
  }
  std::sort(differences.begin(), differences.end(), [](const auto& x, const auto& y) { return x.tensor < y.tensor; });
  return differences;
}

void Show(Output& out, const std::vector<Difference>& differences) {
  if (out.json()) {
    Json list = Json::array();
    for (const Difference& d : differences) list.push_back({{"tensor", d.tensor}, {"why", d.why}});
    out.PrintObject(Json{{"equal", differences.empty()}, {"differences", std::move(list)}});
  } else if (differences.empty()) {
    out.PrintText(out.Painted(Colour::kGood, "equal"));
  } else {
    std::vector<std::vector<std::string>> rows = {{"TENSOR", "DIFFERENCE"}};
    constexpr std::size_t kRowsShown = 20;  // --json lists all
    for (const Difference& d : differences) {
      if (rows.size() > kRowsShown) break;
      rows.push_back({d.tensor, d.why});
    }
    out.PrintText(TableText(rows));
    if (differences.size() > kRowsShown) {
      out.PrintText(fmt::format("... and {} more; --json lists all", differences.size() - kRowsShown));
    }
  }
}

Outcome RunVerify(Program& program, const VerifyOptions& options) {
  const Deadline deadline = Deadline::After(Clock::Real(), options.timeout);
  std::vector<Content> sides;
  for (const std::string& side : {options.a, options.b}) {
    std::error_code ignored;
    const bool is_engine = !std::filesystem::exists(side, ignored) && NetAddress::Parse(side).ok();
    auto content = is_engine ? ReadEngine(program, side, deadline) : ReadCheckpoint(side, options.read);
    if (!content.ok()) return {content.status(), is_engine ? side : "", ""};
    sides.push_back(std::move(*content));
  }
  ASSIGN_OR_RETURN(const std::vector<Difference> differences, Compare(sides[0], sides[1]));
  Show(program.out, differences);
  if (differences.empty()) return {};
  return Status::DataLoss("content_differs", fmt::format("{} and {} differ in {} tensors, {} first", options.a,
                                                         options.b, differences.size(), differences[0].tensor));
}

}  // namespace

Command VerifyCommand(CLI::App& parent) {
  CLI::App* app = AddSubcommand(parent, "verify", "Compares the content of checkpoints and of running engines.",
                                "bascule verify ./checkpoint 127.0.0.1:7000");
  auto options = std::make_shared<VerifyOptions>();
  app->add_option("a", options->a, "a checkpoint, or the address of a running engine")->required();
  app->add_option("b", options->b, "likewise")->required();
  AddDuration(*app, "--timeout", options->timeout, "how long to wait for an engine to digest its memory");
  AddReadOptions(*app, options->read);
  return {app, [options](Program& program) { return RunVerify(program, *options); }};
}

}  // namespace bascule
