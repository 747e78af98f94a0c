// Charts as inline SVG for the pages that commands write: lines, points and bars, on linear or
// logarithmic axes. Colours, fonts and the dark scheme come from HtmlPage's style sheet: an SVG
// made here names classes only (s0 ... s7 for its series) and belongs on such a page.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace loopspec {

inline constexpr int kPlotColours = 8;  // series beyond these take the same ones again, bars paler

struct PlotAxis {
  std::string label;  // with the unit: "tokens/s"
  bool log = false;
  // Ends of the axis; by default what the data needs, from 0 where that leaves the data most of the
  // room. An axis that begins elsewhere says so. A logarithmic axis leaves out what is not above 0.
  std::optional<double> low, high;
};

struct PlotPoint {
  double x = 0, y = 0;
  std::string note;  // shown when the pointer rests on it; empty: its numbers
};

enum class PlotMark { kLine, kDashes, kPoints, kLineAndPoints };

struct PlotSeries {
  std::string name;  // in the legend; empty: not there
  PlotMark mark = PlotMark::kLineAndPoints;
  std::vector<PlotPoint> points;  // lines join them in this order
  int colour = -1;                // 0 to 7; -1: by the place in the list
};

struct Plot {
  std::string title;  // also what a screen reader says
  PlotAxis x, y;
  std::vector<PlotSeries> series;
  bool diagonal = false;  // draws y = x: prediction against measurement
  int width = 620, height = 400;
};

// Points that are not finite are left out; a plot without any still has its frame and says so.
std::string PlotSvg(const Plot& plot);

struct BarValue {
  double value = 0;
  std::optional<double> low, high;  // a line over the bar: the spread
};

struct BarSeries {
  std::string name;
  std::vector<std::optional<BarValue>> values;  // one for each category, or nothing
};

struct BarPlot {
  std::string title;
  PlotAxis y;  // begins at 0 unless it is logarithmic or `low` is given
  std::vector<std::string> categories;
  std::vector<BarSeries> series;  // side by side within a category
  bool stacked = false;           // ... or on top of each other
  std::string x_label = {};
  int width = 620, height = 360;
};
std::string BarSvg(const BarPlot& plot);

// How often each number of rows was seen, by bins of `width`: "1-10", "11-20", ..., as shares of
// all in percent; counts[i] is for i rows. Bins after the last that holds anything are left out.
struct Histogram {
  std::vector<std::string> bins;
  std::vector<double> percent;
};
Histogram BinCounts(const std::vector<int64_t>& counts, int width);

// Where an axis has its labels: round numbers from `low` to `high`, about `wanted` of them.
// Powers of ten on a logarithmic axis, with 2 and 5 between them where there are few.
std::vector<double> PlotTicks(double low, double high, bool log, int wanted = 6);

}  // namespace loopspec
