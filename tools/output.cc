#include "tools/output.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>

namespace bascule {
namespace {

constexpr int kBarColumns = 30;

Json NullWhenEmpty(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

// Bytes from files and peers may be no UTF-8; they are shown with replacement characters instead of thrown over.
std::string Dump(const Json& object) { return object.dump(-1, ' ', false, Json::error_handler_t::replace); }

// Columns on the terminal: bytes that do not continue a UTF-8 character, without colour sequences.
std::size_t WidthOf(std::string_view text) {
  std::size_t width = 0;
  bool in_sequence = false;
  for (const char c : text) {
    if (c == '\x1b') in_sequence = true;
    if (!in_sequence && (static_cast<unsigned char>(c) & 0xC0) != 0x80) ++width;
    if (in_sequence && c == 'm') in_sequence = false;
  }
  return width;
}

}  // namespace

bool Output::on_terminal() const { return isatty(STDOUT_FILENO) == 1; }

bool Output::PrintObject(const Json& object) { return WriteLine(Dump(object)); }
bool Output::PrintText(std::string_view text) { return WriteLine(text); }

bool Output::WriteLine(std::string_view line) {
  MutexLock lock(mu_);
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fputc('\n', stdout);
  return std::fflush(stdout) == 0;
}

void Output::PrintListening(const std::string& address) {
  if (json_) {
    PrintObject(Json{{"event", "listening"}, {"address", address}});
  } else {
    PrintText("listening on " + address);
  }
}

void Output::PrintError(const Outcome& outcome) {
  const Status& status = outcome.status;
  std::string where;
  const auto add = [&](std::string_view what, const std::string& value) {
    const bool said = status.message().find(value) != std::string::npos;
    if (!value.empty() && !said) where += fmt::format(" ({} {})", what, value);
  };
  add("peer", outcome.peer);
  add("phase", outcome.phase);
  const std::string text = fmt::format(
      "bascule: {}{} [{}]\n", status.message().empty() ? status.reason() : status.message(), where, status.reason());
  std::fwrite(text.data(), 1, text.size(), stderr);
  if (!json_) return;
  PrintObject(Json{{"error", ErrorJson(outcome)}});
}

Json ErrorJson(const Outcome& outcome) {
  return {{"code", StatusCodeName(outcome.status.code())},
          {"reason", outcome.status.reason()},
          {"message", outcome.status.message()},
          {"peer", NullWhenEmpty(outcome.peer)},
          {"phase", NullWhenEmpty(outcome.phase)}};
}

std::string Output::Painted(Colour colour, std::string_view text) const {
  const char* no_color = std::getenv("NO_COLOR");
  const bool plain = colour == Colour::kPlain || !on_terminal() || (no_color != nullptr && *no_color != '\0');
  if (plain) return std::string(text);
  const int code = colour == Colour::kGood ? 32 : colour == Colour::kBad ? 31 : 2;
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

void Output::ClearScreen() {
  if (on_terminal()) std::fputs("\x1b[H\x1b[2J", stdout);
}

std::string TableText(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], WidthOf(row[c]));
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      line += row[c];
      if (c + 1 < row.size()) line.append(widths[c] - WidthOf(row[c]) + 2, ' ');
    }
    text += (text.empty() ? "" : "\n") + line;
  }
  return text;
}

ProgressBar::ProgressBar(bool wanted) : visible_(wanted && isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  if (drawn_) std::fputs("\r\x1b[2K", stderr);
}

void ProgressBar::Draw(std::string_view what, std::int64_t done_bytes, std::int64_t total_bytes) {
  if (!visible_) return;
  const double share = total_bytes > 0 ? static_cast<double>(done_bytes) / static_cast<double>(total_bytes) : 0;
  const int full = static_cast<int>(std::clamp(share, 0.0, 1.0) * kBarColumns);
  const std::string text = fmt::format("\r\x1b[2K{:<12} [{:<{}}] {} of {}", what, std::string(full, '#'), kBarColumns,
                                       BytesText(done_bytes), BytesText(total_bytes));
  std::fputs(text.c_str(), stderr);
  drawn_ = true;
}

std::string BytesText(std::int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "kB", "MB", "GB", "TB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1000 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.3g} {}", value, kUnits[unit]);
}

}  // namespace bascule
