// A suite of hand-made files and directories, written by independent Python: each that breaks a rule is refused by that
// rule, each that is only odd is read exactly.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "checkpoint/checkpoint.h"
#include "tests/support/run_python.h"
#include "tests/support/temp_directory.h"

namespace bascule {
namespace {

using Json = nlohmann::json;

// The suite's cases, written below `directory`.
std::vector<Json> Cases(const char* which, const std::string& directory) {
  std::vector<Json> cases;
  std::istringstream lines(RunPython("malformed_files.py", {which, directory}));
  for (std::string line; std::getline(lines, line);) cases.push_back(Json::parse(line));
  return cases;
}

std::string HexOf(std::span<const std::byte> bytes) {
  std::string hex;
  for (const std::byte b : bytes) hex += fmt::format("{:02x}", std::to_integer<unsigned>(b));
  return hex;
}

Json TensorsOf(const Checkpoint& checkpoint) {
  Json tensors = Json::array();
  for (std::size_t t = 0; t < checkpoint.tensors().size(); ++t) {
    const TensorSpec& spec = checkpoint.tensors()[t];
    tensors.push_back({{"name", spec.name},
                       {"dtype", DTypeName(spec.dtype)},
                       {"shape", std::vector<std::int64_t>(spec.shape.begin(), spec.shape.end())},
                       {"data", HexOf(checkpoint.Data(static_cast<int>(t)))}});
  }
  return tensors;
}

bool ByName(const Json& a, const Json& b) { return a["name"].get<std::string>() < b["name"].get<std::string>(); }

TEST(MalformedFilesTest, EveryBrokenFileIsRefusedByItsRuleWithFileAndTensorNamed) {
  const TempDirectory dir;
  const std::vector<Json> cases = Cases("refused", dir.path());
  ASSERT_GE(cases.size(), 100U);
  for (const Json& c : cases) {
    SCOPED_TRACE(c["name"].get<std::string>());

    const Status status = Checkpoint::Open(c["path"].get<std::string>()).status();

    EXPECT_EQ(status.reason(), c["reason"].get<std::string>()) << status.ToString();
    for (const std::string part : c["message"]) {
      EXPECT_NE(status.message().find(part), std::string::npos) << "want=" << part << " in " << status.message();
    }
  }
}

TEST(MalformedFilesTest, EveryOddButValidFileIsReadExactly) {
  const TempDirectory dir;
  const std::vector<Json> cases = Cases("accepted", dir.path());
  ASSERT_GE(cases.size(), 30U);
  for (const Json& c : cases) {
    SCOPED_TRACE(c["name"].get<std::string>());

    const auto checkpoint = Checkpoint::Open(c["path"].get<std::string>());

    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
    Json wanted = c["tensors"];
    std::sort(wanted.begin(), wanted.end(), ByName);
    EXPECT_TRUE(TensorsOf(**checkpoint) == wanted);
  }
}

}  // namespace
}  // namespace bascule
