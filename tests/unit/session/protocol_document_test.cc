// docs/protocol.md is what others implement against: its tables are compared with the code, row by row.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "bridge/session/failure.h"
#include "bridge/session/messages.h"
#include "bridge/session/session_state.h"

namespace bascule {
namespace {

using Row = std::vector<std::string>;

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// A table cell without its blanks and backquotes.
std::string CellText(std::string cell) {
  std::erase(cell, '`');
  const std::size_t begin = cell.find_first_not_of(' ');
  if (begin == std::string::npos) return "";
  return cell.substr(begin, cell.find_last_not_of(' ') - begin + 1);
}

// The rows of the first table under the heading, without its head.
std::vector<Row> TableUnder(const std::string& heading) {
  std::istringstream text(ReadFile(std::filesystem::path(BASCULE_SOURCE) / "docs/protocol.md"));
  std::vector<Row> rows;
  bool inside = false;
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with("## ")) inside = line == "## " + heading;
    if (!inside || !line.starts_with("|")) continue;
    Row row;
    std::istringstream cells(line.substr(1));
    for (std::string cell; std::getline(cells, cell, '|');) row.push_back(CellText(cell));
    rows.push_back(std::move(row));
  }
  if (rows.size() > 2) rows.erase(rows.begin(), rows.begin() + 2);
  return rows;
}

template <std::size_t... I>
std::vector<std::string> NamesOfAllMessages(std::index_sequence<I...>) {
  return {std::string(MessageName(std::variant_alternative_t<I, SessionMessage>{}))...};
}

TEST(ProtocolDocumentTest, ItsMessagesAreTheMessages) {
  std::vector<std::string> documented;
  for (const Row& row : TableUnder("Messages")) documented.push_back(row.at(0));

  EXPECT_EQ(documented, NamesOfAllMessages(std::make_index_sequence<std::variant_size_v<SessionMessage>>()));
}

TEST(ProtocolDocumentTest, ItsSessionTableIsTheTransitionTable) {
  std::set<Row> documented;
  for (const Row& row : TableUnder("Session states")) documented.insert({row.at(0), row.at(1), row.at(2)});
  std::set<Row> coded;
  for (const SessionTransition& row : SessionTable()) {
    coded.insert({std::string(SessionStateName(row.from)), std::string(SessionEventName(row.event)),
                  std::string(SessionStateName(row.to))});
  }

  EXPECT_EQ(documented, coded);
}

TEST(ProtocolDocumentTest, ItsFailuresAreTheListOfReasons) {
  std::set<Row> documented;
  for (const Row& row : TableUnder("Failures")) documented.insert({row.at(0), row.at(1), row.at(2)});
  std::set<Row> coded;
  for (const FailureReason& failure : SessionFailures()) {
    coded.insert(
        {std::string(failure.reason), std::string(StatusCodeName(failure.code)), std::string(failure.meaning)});
  }

  EXPECT_EQ(documented, coded);
}

TEST(ProtocolDocumentTest, EveryInvariantIsNamedByATestThatExists) {
  std::string tests;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(std::filesystem::path(BASCULE_SOURCE) / "tests/unit")) {
    if (entry.path().extension() == ".cc") tests += ReadFile(entry.path());
  }
  const std::vector<Row> rows = TableUnder("Invariants");
  ASSERT_EQ(rows.size(), 10u);

  for (const Row& row : rows) {
    std::istringstream names(row.at(2));
    int count = 0;
    for (std::string name; std::getline(names, name, ',');) {
      name = CellText(name);
      EXPECT_TRUE(name.starts_with(row.at(0))) << name;
      EXPECT_NE(tests.find(", " + name + ")"), std::string::npos) << "no test is called " << name;
      ++count;
    }
    EXPECT_GT(count, 0) << row.at(0);
  }
}

}  // namespace
}  // namespace bascule
