#include "benchmarks/row_message.h"

#include <fmt/format.h>

#include <sstream>

namespace bascule {

std::string EncodeRow(const BenchmarkRow& row) {
  return fmt::format("{}\n{}\n{}\n{} {}", row.name, row.unit, row.limit_what, row.value, row.limit);
}

BenchmarkRow DecodeRow(const std::string& message) {
  BenchmarkRow row;
  std::istringstream fields(message);
  std::getline(fields, row.name);
  std::getline(fields, row.unit);
  std::getline(fields, row.limit_what);
  CHECK(fields >> row.value >> row.limit);
  return row;
}

}  // namespace bascule
