// What the program writes on its standard output: JSON objects, one a line, with --json; else text and tables, in
// colour only on a terminal and where NO_COLOR is not set. Logs and progress go to stderr.
//
// Thread-safety: thread-safe; a line is never torn.
#pragma once

#include <cstdio>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "tools/outcome.h"

namespace bascule {

using Json = nlohmann::ordered_json;

enum class Colour { kPlain, kGood, kBad, kDim };

class Output {
 public:
  void set_json(bool json) { json_ = json; }
  bool json() const { return json_; }
  bool on_terminal() const;

  // One line on stdout, flushed: a reader at the other end of a pipe sees it at once. False once nobody reads it.
  bool PrintObject(const Json& object);
  bool PrintText(std::string_view text);
  // Where a server of this process listens.
  void PrintListening(const std::string& address);
  // Says on stderr what went wrong, and with --json as the error object on stdout.
  void PrintError(const Outcome& outcome);
  // `text` in a colour where that is wanted.
  std::string Painted(Colour colour, std::string_view text) const;
  // On a terminal: clears the screen, so that a live table stays in place.
  void ClearScreen();

 private:
  bool WriteLine(std::string_view line) EXCLUDES(mu_);
  bool json_ = false;
  Mutex mu_;
};

// `{"code","reason","message","peer","phase"}`; null where it does not apply.
Json ErrorJson(const Outcome& outcome);

// Columns as wide as their widest cell; the first row is the heading. No line break after the last row.
std::string TableText(const std::vector<std::vector<std::string>>& rows);

// A progress bar on stderr: nothing unless that is a terminal. Cleared when it goes.
//
// Thread-safety: confined to one thread.
class ProgressBar {
 public:
  // `wanted`: false draws nothing (with --json).
  explicit ProgressBar(bool wanted);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  void Draw(std::string_view what, std::int64_t done_bytes, std::int64_t total_bytes);
  bool visible() const { return visible_; }

 private:
  const bool visible_;
  bool drawn_ = false;
};

// "1.19 GB", decimal units.
std::string BytesText(std::int64_t bytes);

}  // namespace bascule
