#include "tests/support/run_python.h"

#include <stdio.h>

#include <array>

#include "base/status.h"

namespace bascule {
namespace {

// One word for the shell, whatever is in it.
std::string ShellWord(std::string_view text) {
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

}  // namespace

std::string RunPython(std::string_view script, const std::vector<std::string>& arguments) {
  std::string command =
      ShellWord(BASCULE_PYTHON) + " " + ShellWord(std::string(BASCULE_PYTHON_SUPPORT "/").append(script));
  for (const std::string& argument : arguments) command += " " + ShellWord(argument);
  FILE* pipe = popen(command.c_str(), "r");
  CHECK(pipe != nullptr);
  std::string output;
  std::array<char, 4096> block;
  for (std::size_t got = 0; (got = fread(block.data(), 1, block.size(), pipe)) > 0;) output.append(block.data(), got);
  CHECK(pclose(pipe) == 0);
  return output;
}

}  // namespace bascule
