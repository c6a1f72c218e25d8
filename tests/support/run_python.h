// Runs the scripts of tests/support/python: oracles and fixtures that share no code with the product.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace bascule {

// What `script` (a file name of that folder) prints on stdout. A script that fails is a failed CHECK: its stderr shows
// why.
std::string RunPython(std::string_view script, const std::vector<std::string>& arguments);

}  // namespace bascule
