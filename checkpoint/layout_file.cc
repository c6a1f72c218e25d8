#include "checkpoint/layout_file.h"

#include <fmt/format.h>

#include <filesystem>
#include <set>

#include "checkpoint/directory.h"
#include "checkpoint/layout_json_internal.h"

namespace bascule {
namespace {

constexpr std::string_view kFormat = "bascule-layout";
constexpr int kFormatVersion = 1;
constexpr std::string_view kReason = "bad_layout_file";
constexpr int kDepthMax = 8;  // the format has six levels

// The document, which names no member twice and is no deeper than the format.
Result<OrderedJson> Parsed(std::string_view text, const std::string& where) {
  std::vector<std::set<std::string>> names(kDepthMax + 1);
  std::string fault;
  const auto inspect = [&](int depth, OrderedJson::parse_event_t event, OrderedJson& value) {
    using Event = OrderedJson::parse_event_t;
    if (!fault.empty()) return false;
    if (depth >= kDepthMax && (event == Event::object_start || event == Event::array_start)) {
      fault = fmt::format("nested deeper than {}", kDepthMax);
    } else if (event == Event::object_start) {
      names[static_cast<std::size_t>(depth) + 1].clear();
    } else if (event == Event::key && !names[static_cast<std::size_t>(depth)].insert(value.get<std::string>()).second) {
      fault = fmt::format("member \"{}\" twice in one object", value.get<std::string>());
    }
    return fault.empty();
  };
  OrderedJson json = OrderedJson::parse(text, inspect, /*allow_exceptions=*/false);
  if (fault.empty() && json.is_discarded()) fault = "not JSON";
  if (!fault.empty()) return Status::DataLoss(kReason, fmt::format("{}: {}", where, fault));
  return json;
}

Status CheckFormat(const Fields& root) {
  ASSIGN_OR_RETURN(const std::string format, root.Text("format"));
  ASSIGN_OR_RETURN(const Fields version, root.Of("format_version"));
  ASSIGN_OR_RETURN(const std::int64_t number, version.AsCount());
  if (format == kFormat && number == kFormatVersion) return OkStatus();
  return root.Bad(fmt::format("format {} {}, this program reads {} {}", format, number, kFormat, kFormatVersion));
}

}  // namespace

std::string WriteLayout(const Layout& layout) {
  OrderedJson tensors = OrderedJson::array();
  for (const TensorSpec& tensor : layout.tensors) tensors.push_back(LayoutSpecJson(tensor));
  OrderedJson ranks = OrderedJson::array();
  for (const RankLayout& rank : layout.ranks) AddMap(rank, ranks.emplace_back(OrderedJson::object()));
  const OrderedJson root = {{"format", kFormat},
                            {"format_version", kFormatVersion},
                            {"tensors", std::move(tensors)},
                            {"ranks", std::move(ranks)}};
  return root.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

Result<Layout> ReadLayout(std::string_view text, const std::string& where) {
  ASSIGN_OR_RETURN(const OrderedJson json, Parsed(text, where));
  const Fields root(json, where, kReason);
  RETURN_IF_ERROR(CheckFormat(root));
  Layout layout;
  ASSIGN_OR_RETURN(const std::vector<Fields> tensors, root.List("tensors"));
  for (const Fields& tensor : tensors) RETURN_IF_ERROR(ReadLayoutSpec(tensor, layout.tensors.emplace_back()));
  ASSIGN_OR_RETURN(const std::vector<Fields> ranks, root.List("ranks"));
  for (const Fields& rank : ranks) {
    ASSIGN_OR_RETURN(RankLayout map, ReadMap(rank));
    layout.ranks.push_back(std::move(map));
  }
  if (const Status status = CheckLayout(layout); !status.ok()) return root.Bad(status.message());
  return layout;
}

Result<Layout> ReadLayoutFile(const std::string& path) {
  const std::filesystem::path file(path);
  const std::string parent = file.parent_path().empty() ? "." : file.parent_path().string();
  ASSIGN_OR_RETURN(const std::string text,
                   Directory::At(parent).ReadText(file.filename().string(), kLayoutFileBytesMax));
  return ReadLayout(text, path);
}

}  // namespace bascule
