#include <fmt/format.h>

#include <iterator>

#include "bridge/plan/plan.h"

namespace bascule {
namespace {

struct RouteTotals {
  std::int64_t bytes = 0;
  std::size_t slices = 0;
  std::size_t buckets = 0;
};

std::vector<RouteTotals> TotalsByRoute(const Plan& plan) {
  std::vector<RouteTotals> totals(plan.routes.size());
  for (const Bucket& bucket : plan.buckets) {
    RouteTotals& route = totals[static_cast<std::size_t>(bucket.route)];
    ++route.buckets;
    route.slices += bucket.slices.size();
    for (const Slice& slice : bucket.slices) route.bytes += slice.payload_bytes;
  }
  return totals;
}

void AppendNames(std::string_view set, const std::vector<std::string>& names, std::string& text) {
  constexpr std::size_t kNamesMax = 5;
  fmt::format_to(std::back_inserter(text), "{:<11} {}", set, names.size());
  for (std::size_t i = 0; i < names.size() && i < kNamesMax; ++i) text += (i == 0 ? ": " : ", ") + names[i];
  text += names.size() > kNamesMax ? ", ...\n" : "\n";
}

}  // namespace

std::string PlanText(const Plan& plan) {
  std::string text = fmt::format("plan {}\n{} tensors, {} bytes in {} buckets on {} routes\n", plan.digest.ToHex(),
                                 plan.tensors.size(), plan.payload_bytes, plan.buckets.size(), plan.routes.size());
  const std::vector<RouteTotals> totals = TotalsByRoute(plan);
  for (std::size_t i = 0; i < totals.size(); ++i) {
    fmt::format_to(std::back_inserter(text), "sender {} -> engine {}: {} bytes, {} slices in {} buckets\n",
                   plan.routes[i].sender_rank, plan.routes[i].engine_rank, totals[i].bytes, totals[i].slices,
                   totals[i].buckets);
  }
  AppendNames("expected", plan.names.expected, text);
  AppendNames("loaded", plan.names.loaded, text);
  AppendNames("ignored", plan.names.ignored, text);
  AppendNames("unexpected", plan.names.unexpected, text);
  if (plan.scope.empty()) return text;
  std::vector<std::string> carried;
  for (const std::int32_t tensor : plan.carried) carried.push_back(plan.tensors[static_cast<std::size_t>(tensor)].name);
  AppendNames("scope", plan.scope, text);
  AppendNames("carried", carried, text);
  return text;
}

}  // namespace bascule
