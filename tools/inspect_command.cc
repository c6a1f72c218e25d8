// bascule inspect: what the headers of a checkpoint, a file or an artifact say.
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "checkpoint/artifact.h"
#include "checkpoint/checkpoint.h"
#include "tools/command.h"
#include "tools/options.h"
#include "tools/read_option.h"

namespace bascule {
namespace {

struct Listed {
  TensorSpec spec;
  std::string file;
};

struct Inspection {
  std::size_t files = 0;
  std::vector<Listed> tensors;  // by name, then by file
  std::string config_json;
};

Inspection InspectionOf(const std::vector<std::unique_ptr<SafetensorsFile>>& files, const std::string& config_json) {
  Inspection inspection{.files = files.size(), .tensors = {}, .config_json = config_json};
  for (const auto& file : files) {
    const std::string name = std::filesystem::path(file->path()).filename().string();
    for (const StoredTensor& tensor : file->header().tensors) inspection.tensors.push_back({tensor.spec, name});
  }
  std::stable_sort(inspection.tensors.begin(), inspection.tensors.end(),
                   [](const Listed& a, const Listed& b) { return a.spec.name < b.spec.name; });
  return inspection;
}

Result<Inspection> Inspect(const std::string& path, const ReadOptions& read) {
  if (const Directory directory = Directory::At(path); Artifact::IsArtifact(directory)) {
    ASSIGN_OR_RETURN(const auto artifact, Artifact::Open(directory, read));
    return InspectionOf(artifact->files(), artifact->manifest().config_json);
  }
  ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(path, read));
  return InspectionOf(checkpoint->files(), checkpoint->config_json());
}

// As config.json names it, known or not.
Json ArchitectureJson(const std::string& config_json) {
  const Json config = Json::parse(config_json, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object() || !config.contains("architectures")) return nullptr;
  const Json& names = config["architectures"];
  return names.is_array() && !names.empty() && names[0].is_string() ? names[0] : Json(nullptr);
}

// All but the list, which people get as a table.
Json SummaryJson(const Inspection& inspection) {
  std::int64_t parameters = 0;
  std::int64_t data_bytes = 0;
  std::map<std::string, int> dtypes;
  for (const Listed& tensor : inspection.tensors) {
    parameters += tensor.spec.Elements();
    data_bytes += tensor.spec.Bytes();
    ++dtypes[std::string(DTypeName(tensor.spec.dtype))];
  }
  return {{"files", inspection.files}, {"tensors", inspection.tensors.size()},
          {"parameters", parameters},  {"data_bytes", data_bytes},
          {"dtypes", dtypes},          {"architecture", ArchitectureJson(inspection.config_json)}};
}

Json ListJson(const Inspection& inspection) {
  Json list = Json::array();
  for (const Listed& tensor : inspection.tensors) {
    list.push_back({{"name", tensor.spec.name},
                    {"dtype", DTypeName(tensor.spec.dtype)},
                    {"shape", std::vector<std::int64_t>(tensor.spec.shape.begin(), tensor.spec.shape.end())},
                    {"bytes", tensor.spec.Bytes()},
                    {"file", tensor.file}});
  }
  return list;
}

std::string InspectionText(const Inspection& inspection, const Json& summary) {
  std::vector<std::vector<std::string>> rows = {{"TENSOR", "DTYPE", "SHAPE", "BYTES", "FILE"}};
  for (const Listed& tensor : inspection.tensors) {
    rows.push_back({tensor.spec.name, std::string(DTypeName(tensor.spec.dtype)), tensor.spec.shape.ToString(),
                    BytesText(tensor.spec.Bytes()), tensor.file});
  }
  const std::string architecture =
      summary["architecture"].is_null() ? "no known architecture" : summary["architecture"].get<std::string>();
  return TableText(rows) + fmt::format("\n\n{}: {} tensors in {} files, {} parameters, {}", architecture,
                                       summary["tensors"].dump(), summary["files"].dump(), summary["parameters"].dump(),
                                       BytesText(summary["data_bytes"].get<std::int64_t>()));
}

struct InspectOptions {
  std::string checkpoint;
  ReadOptions read;
};

Outcome RunInspect(Program& program, const InspectOptions& options) {
  ASSIGN_OR_RETURN(const Inspection inspection,
                   Inspect(options.checkpoint, UntilInterrupted(options.read, program.interrupt)));
  Json summary = SummaryJson(inspection);
  if (program.out.json()) {
    summary["tensor_list"] = ListJson(inspection);
    program.out.PrintObject(summary);
  } else {
    program.out.PrintText(InspectionText(inspection, summary));
  }
  return {};
}

}  // namespace

Command InspectCommand(CLI::App& parent) {
  CLI::App* app =
      AddSubcommand(parent, "inspect", "Lists a checkpoint's tensors and checks its files; reads headers, not weights.",
                    "bascule inspect ./checkpoint");
  auto options = std::make_shared<InspectOptions>();
  app->add_option("checkpoint", options->checkpoint, "a checkpoint, a .safetensors file or an artifact")->required();
  AddLeniency(*app, options->read);
  return {app, [options](Program& program) { return RunInspect(program, *options); }};
}

}  // namespace bascule
