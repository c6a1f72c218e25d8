// Charts as SVG text, one panel under another.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <string>
#include <vector>

namespace bascule::rl_loop {

enum class ChartForm {
  kLine,     // from 0 to 1
  kLogBars,  // from 1 to the next power of ten above all values; no bar where a value is below 1
};

struct ChartPanel {
  std::string title;
  ChartForm form = ChartForm::kLine;
  std::string unit;            // of the values; empty: none
  std::vector<double> values;  // one a step, from step 1 on
  double mark = 0;             // a dashed line here; 0: none
};

std::string SvgOf(const std::vector<ChartPanel>& panels);

}  // namespace bascule::rl_loop
