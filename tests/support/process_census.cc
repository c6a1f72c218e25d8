#include "tests/support/process_census.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

namespace bascule {
namespace {

std::size_t Entries(const char* folder) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

}  // namespace

std::size_t OpenDescriptors() { return Entries("/proc/self/fd") - 1; }  // the listing itself holds one

std::size_t RunningThreads() { return Entries("/proc/self/task"); }

std::size_t MappingsOf(std::string_view name_part) {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find(name_part) != std::string::npos ? 1 : 0;
  return count;
}

bool Eventually(const std::function<bool()>& condition, Deadline deadline) {
  Clock& clock = Clock::Real();
  while (!condition()) {
    if (deadline.Passed(clock)) return false;
    clock.SleepUntil(clock.Now() + std::chrono::milliseconds(1), {});
  }
  return true;
}

}  // namespace bascule
