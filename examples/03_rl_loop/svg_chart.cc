#include "examples/03_rl_loop/svg_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace bascule::rl_loop {
namespace {

constexpr double kWidth = 760;
constexpr double kPanelHeight = 260;
constexpr double kLeft = 70;
constexpr double kRight = 20;
constexpr double kTop = 44;
constexpr double kBottom = 36;
constexpr int kLineGrid = 5;

constexpr std::string_view kStyle =
    "text{font:12px sans-serif;fill:#444}.title{font-size:14px;fill:#111}.grid{stroke:#e4e4e4}.axis{stroke:#888}"
    ".line{fill:none;stroke:#1c6dd0;stroke-width:2}.bar{fill:#d9622b}.mark{stroke:#2a8f4a;stroke-dasharray:5 4}";

// Powers of ten from 1 to the first that is not below any value; at least one.
int DecadesOf(const std::vector<double>& values) {
  const double largest = std::max(10.0, *std::ranges::max_element(values));
  return static_cast<int>(std::ceil(std::log10(largest)));
}

// One panel's place on the page.
class Plot {
 public:
  Plot(const ChartPanel& panel, double top) : panel_(panel), top_(top), decades_(DecadesOf(panel.values)) {}

  std::string Text() const { return Frame() + Mark() + (panel_.form == ChartForm::kLine ? Line() : Bars()); }

 private:
  std::size_t steps() const { return panel_.values.size(); }
  double X(double step) const {
    return kLeft + (step - 0.5) / static_cast<double>(steps()) * (kWidth - kLeft - kRight);
  }
  double Y(double value) const {
    const double share =
        panel_.form == ChartForm::kLine ? value : std::log10(std::max(value, 1.0)) / static_cast<double>(decades_);
    return top_ + kPanelHeight - kBottom - share * (kPanelHeight - kTop - kBottom);
  }

  // Title, a grid line and its number for every fifth or every power of ten, and some steps.
  std::string Frame() const {
    std::string text =
        fmt::format("<text class=\"title\" x=\"{}\" y=\"{}\">{}</text>\n", kLeft, top_ + 24, panel_.title);
    const bool line = panel_.form == ChartForm::kLine;
    for (int i = 0; i <= (line ? kLineGrid : decades_); ++i) {
      const double value = line ? static_cast<double>(i) / kLineGrid : std::pow(10.0, i);
      text += fmt::format(
          "<line class=\"{0}\" x1=\"{1}\" x2=\"{2}\" y1=\"{3:.1f}\" y2=\"{3:.1f}\"/>"
          "<text x=\"{4}\" y=\"{5:.1f}\" text-anchor=\"end\">{6:g}{7}</text>\n",
          i == 0 ? "axis" : "grid", kLeft, kWidth - kRight, Y(value), kLeft - 8, Y(value) + 4, value,
          panel_.unit.empty() ? "" : " " + panel_.unit);
    }
    for (const std::size_t step : std::set{std::size_t{1}, steps() / 4, steps() / 2, steps() * 3 / 4, steps()}) {
      if (step == 0) continue;
      text += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}{}</text>\n",
                          X(static_cast<double>(step)), Y(0) + 18, step == 1 ? "step " : "", step);
    }
    return text;
  }

  std::string Mark() const {
    if (panel_.mark <= 0) return "";
    return fmt::format(
        "<line class=\"mark\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>"
        "<text x=\"{3}\" y=\"{4:.1f}\">{5:g}</text>\n",
        kLeft, kWidth - kRight, Y(panel_.mark), kLeft + 6, Y(panel_.mark) - 5, panel_.mark);
  }

  std::string Line() const {
    std::string points;
    for (std::size_t i = 0; i < steps(); ++i) {
      points += fmt::format("{}{:.1f},{:.1f}", i == 0 ? "" : " ", X(static_cast<double>(i + 1)), Y(panel_.values[i]));
    }
    return fmt::format("<polyline class=\"line\" points=\"{}\"/>\n", points);
  }

  std::string Bars() const {
    std::string text;
    const double width = 0.7 * (X(2) - X(1));
    for (std::size_t i = 0; i < steps(); ++i) {
      const double y = Y(panel_.values[i]);
      text += fmt::format("<rect class=\"bar\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"/>\n",
                          X(static_cast<double>(i + 1)) - width / 2, y, width, Y(0) - y);
    }
    return text;
  }

  const ChartPanel& panel_;
  const double top_;
  const int decades_;  // of kLogBars
};

}  // namespace

std::string SvgOf(const std::vector<ChartPanel>& panels) {
  std::string text = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\">\n"
      "<style>{2}</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
      kWidth, kPanelHeight * static_cast<double>(panels.size()), kStyle);
  double top = 0;
  for (const ChartPanel& panel : panels) {
    if (!panel.values.empty()) text += Plot(panel, top).Text();
    top += kPanelHeight;
  }
  return text + "</svg>\n";
}

}  // namespace bascule::rl_loop
