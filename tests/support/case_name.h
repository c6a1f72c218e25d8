// Names of a test's cases, from how the cases print: what a name may not hold becomes '_', and a number tells equal
// ones apart.
#pragma once

#include <gtest/gtest.h>

#include <cctype>
#include <string>

namespace bascule {

template <typename Case>
std::string NameOfCase(const testing::TestParamInfo<Case>& info) {
  std::string name = testing::PrintToString(info.param) + "_" + std::to_string(info.index);
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

}  // namespace bascule
