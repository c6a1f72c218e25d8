#include "tests/support/fake_cuda/devices.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <set>
#include <sstream>
#include <string>

namespace bascule::fake_cuda {
namespace {

thread_local int current_ordinal = 0;
std::array<std::atomic<bool>, 16> set_up;

}  // namespace

const std::vector<int>& VisibleDevices() {
  static const auto* const devices = [] {
    const char* const listed = std::getenv("BASCULE_FAKE_CUDA_DEVICES");
    std::istringstream words(listed == nullptr ? "0" : listed);
    auto* const all = new std::vector<int>;
    for (std::string word; std::getline(words, word, ',');) all->push_back(std::atoi(word.c_str()));
    return all;
  }();
  return *devices;
}

int CurrentOrdinal() { return current_ordinal; }
void UseOrdinal(int ordinal) { current_ordinal = ordinal; }
int CurrentDevice() { return VisibleDevices().at(static_cast<std::size_t>(current_ordinal)); }

int OrdinalOf(int device) {
  const std::vector<int>& devices = VisibleDevices();
  return static_cast<int>(std::ranges::find(devices, device) - devices.begin());
}

void SetUp(int ordinal) { set_up.at(static_cast<std::size_t>(ordinal)) = true; }
bool IsSetUp(int ordinal) { return set_up.at(static_cast<std::size_t>(ordinal)); }
int CountSetUp() {
  return static_cast<int>(std::ranges::count_if(set_up, [](const auto& one) { return one.load(); }));
}
void ForgetSetUp() {
  for (std::atomic<bool>& one : set_up) one = false;
}

bool AreNear(int device, int other) {
  static const auto* const far_apart = [] {
    const char* const listed = std::getenv("BASCULE_FAKE_CUDA_FAR");
    std::istringstream words(listed == nullptr ? "" : listed);
    auto* const all = new std::set<std::string>;
    for (std::string word; words >> word;) all->insert(word);
    return all;
  }();
  return device == other ||
         !far_apart->contains(fmt::format("{}-{}", std::min(device, other), std::max(device, other)));
}

void Describe(int device, cudaDeviceProp* properties) {
  std::memset(properties, 0, sizeof *properties);
  const std::string name = fmt::format("Fake device {}", device);
  std::memcpy(properties->name, name.data(), name.size());
  std::memcpy(properties->uuid.bytes, "\xfa\x4e\xfa\x4e\xfa\x4e", 6);
  properties->uuid.bytes[15] = static_cast<char>(device);
  properties->totalGlobalMem = std::size_t{1} << 30;
  properties->major = 9;
  const char* const multiprocessors = std::getenv("BASCULE_FAKE_CUDA_MULTIPROCESSORS");
  properties->multiProcessorCount = multiprocessors == nullptr ? 132 : std::atoi(multiprocessors);
}

}  // namespace bascule::fake_cuda
