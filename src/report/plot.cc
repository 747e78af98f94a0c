#include "report/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/escape_html.h"
#include "report/html_page.h"

namespace loopspec {
namespace {

constexpr double kLeft = 66, kRight = 16, kTop = 36, kBottom = 50;
constexpr double kLegendRow = 20;  // height of one row of the legend
constexpr double kLegendLetter =
    9.2;  // width of a letter, about, in a narrow window, where they are larger

// A number as an axis shows it: no more digits than it needs.
std::string Label(double value) {
  const double size = std::fabs(value);
  if (size != 0 && (size < 1e-3 || size >= 1e6)) return fmt::format("{:.3g}", value);
  return fmt::format("{:.6g}", value);
}

// From values to places along an axis of the picture.
struct Scale {
  double low = 0, high = 1;  // values at the ends; logarithms on a logarithmic axis
  bool log = false;
  bool cut = false;         // begins above 0
  double from = 0, to = 1;  // places of the ends

  double At(double value) const {
    const double v = log ? std::log10(value) : value;
    return from + (v - low) / (high - low) * (to - from);
  }
  double LowValue() const { return log ? std::pow(10.0, low) : low; }
  double HighValue() const { return log ? std::pow(10.0, high) : high; }
};

bool Fits(double value, bool log) {
  return std::isfinite(value) && (!log || value > 0);
}

// Ends of an axis over `values`, with some air where the caller did not fix them.
Scale MakeScale(const PlotAxis& axis, const std::vector<double>& values, bool from_zero) {
  Scale scale;
  scale.log = axis.log;
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const double value : values) {
    if (!Fits(value, axis.log)) continue;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  if (low > high) low = axis.log ? 0.1 : 0, high = 1;
  // Zero belongs to a chart unless the data lie far from it.
  from_zero = from_zero || low <= 0.5 * high;
  if (from_zero && !axis.log) low = std::min(low, 0.0), high = std::max(high, 0.0);
  if (axis.low && Fits(*axis.low, axis.log)) low = *axis.low;
  if (axis.high && Fits(*axis.high, axis.log)) high = *axis.high;
  if (axis.log) low = std::log10(low), high = std::log10(high);
  if (!(high > low)) low -= 0.5, high += 0.5;
  const double air = 0.05 * (high - low);
  const bool zero = from_zero && !axis.log && low == 0;
  scale.low = axis.low || zero ? low : low - air;
  scale.cut = !axis.log && scale.low > 0;
  scale.high = axis.high ? high : high + air;
  return scale;
}

struct LegendEntry {
  std::string name;
  int colour;  // of bars: with every turn of the colours, a paler one
  PlotMark mark;
  bool bar;
};

std::string BarClass(int colour) {
  return fmt::format("fill s{}{}", colour % kPlotColours, colour < kPlotColours ? "" : " pale");
}

// Rows that the legend takes in a picture of this width.
std::vector<std::vector<LegendEntry>> LegendRows(const std::vector<LegendEntry>& entries,
                                                 double width) {
  std::vector<std::vector<LegendEntry>> rows;
  double used = 0;
  for (const LegendEntry& entry : entries) {
    const double wide = 40 + kLegendLetter * static_cast<double>(entry.name.size());
    if (rows.empty() || used + wide > width) rows.emplace_back(), used = 0;
    rows.back().push_back(entry);
    used += wide;
  }
  return rows;
}

std::string Text(double x, double y, const char* anchor, const char* kind,
                 const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" class=\"{}\">{}</text>\n",
                     x, y, anchor, kind, EscapeHtml(text));
}

std::string Line(double x1, double y1, double x2, double y2, const char* kind) {
  return fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\"/>\n", x1, y1, x2,
      y2, kind);
}

// What every chart has: the frame, the title, the legend, and its place.
class Frame {
 public:
  Frame(const std::string& title, int width, int height, const std::vector<LegendEntry>& legend)
      : width_(width), height_(height) {
    const auto rows = LegendRows(legend, width - kLeft - kRight);
    top_ = kTop + kLegendRow * static_cast<double>(rows.size());
    svg_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" role=\"img\" "
        "aria-label=\"{}\">\n",
        width, height, EscapeHtml(title));
    svg_ += Text(kLeft, 20, "start", "title", title);
    double y = kTop + 4;
    for (const auto& row : rows) {
      double x = kLeft;
      for (const LegendEntry& entry : row) {
        AddKey(x, y, entry);
        svg_ += Text(x + 28, y + 4, "start", "soft", entry.name);
        x += 40 + kLegendLetter * static_cast<double>(entry.name.size());
      }
      y += kLegendRow;
    }
  }

  double left() const { return kLeft; }
  double right() const { return width_ - kRight; }
  double top() const { return top_; }
  double bottom() const { return height_ - kBottom; }

  void Add(const std::string& markup) { svg_ += markup; }
  std::string Finish() { return svg_ + "</svg>\n"; }

  void AddYAxis(Scale& scale, const std::string& label) {
    scale.from = bottom();
    scale.to = top();
    for (const double tick : PlotTicks(scale.LowValue(), scale.HighValue(), scale.log)) {
      const double y = scale.At(tick);
      svg_ += Line(left(), y, right(), y, "grid");
      svg_ += Text(left() - 8, y + 4, "end", "soft", Label(tick));
    }
    svg_ += Line(left(), top(), left(), bottom(), "axis");
    svg_ += fmt::format(
        "<text transform=\"translate(16 {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
        (top() + bottom()) / 2,
        EscapeHtml(label + (scale.cut ? fmt::format(" (from {:.3g})", scale.low) : "")));
    if (scale.cut)  // the usual zigzag of an axis that does not begin at 0
      svg_ += fmt::format("<path d=\"M{:.1f} {:.1f}l-6 -4l12 -4l-6 -4\" class=\"axis cut\"/>\n",
                          left(), bottom() - 2);
  }

  void AddXAxis(Scale& scale, const std::string& label) {
    scale.from = left();
    scale.to = right();
    for (const double tick : PlotTicks(scale.LowValue(), scale.HighValue(), scale.log)) {
      const double x = scale.At(tick);
      svg_ += Line(x, top(), x, bottom(), "grid");
      svg_ += Text(x, bottom() + 18, "middle", "soft", Label(tick));
    }
    AddXLine(label);
  }

  void AddXLine(const std::string& label) {
    svg_ += Line(left(), bottom(), right(), bottom(), "axis");
    svg_ += Text((left() + right()) / 2, height_ - 10, "middle", "", label);
  }

  void SayEmpty() {
    svg_ += Text((left() + right()) / 2, (top() + bottom()) / 2, "middle", "soft", "no data");
  }

 private:
  void AddKey(double x, double y, const LegendEntry& entry) {
    if (entry.bar) {
      svg_ +=
          fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"14\" height=\"12\" class=\"{}\"/>\n",
                      x + 6, y - 6, BarClass(entry.colour));
      return;
    }
    if (entry.mark != PlotMark::kPoints) {
      svg_ += fmt::format("<path d=\"M{:.1f} {:.1f}h22\" class=\"line s{}{}\"/>\n", x, y,
                          entry.colour, entry.mark == PlotMark::kDashes ? " dashes" : "");
    }
    if (entry.mark == PlotMark::kPoints || entry.mark == PlotMark::kLineAndPoints) {
      svg_ += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" class=\"fill dot s{}\"/>\n",
                          x + 11, y, entry.colour);
    }
  }

  double width_, height_, top_ = 0;
  std::string svg_;
};

int ColourOf(const PlotSeries& series, size_t place) {
  return (series.colour >= 0 ? series.colour : static_cast<int>(place)) % kPlotColours;
}

// A line breaks where a point is left out.
std::string SeriesMarkup(const PlotSeries& series, int colour, const Scale& x, const Scale& y) {
  std::string line, dots;
  bool open = false;
  for (const PlotPoint& point : series.points) {
    if (!Fits(point.x, x.log) || !Fits(point.y, y.log)) {
      open = false;
      continue;
    }
    const double px = x.At(point.x), py = y.At(point.y);
    line += fmt::format("{}{:.1f} {:.1f}", open ? "L" : "M", px, py);
    open = true;
    const std::string note =
        point.note.empty() ? fmt::format("{}: {}, {}", series.name, Label(point.x), Label(point.y))
                           : point.note;
    dots += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4.2\" class=\"fill dot "
        "s{}\"><title>{}</title></circle>\n",
        px, py, colour, EscapeHtml(note));
  }
  std::string out;
  if (series.mark != PlotMark::kPoints && !line.empty()) {
    out += fmt::format("<path d=\"{}\" class=\"line s{}{}\"/>\n", line, colour,
                       series.mark == PlotMark::kDashes ? " dashes" : "");
  }
  if (series.mark == PlotMark::kPoints || series.mark == PlotMark::kLineAndPoints) out += dots;
  return out;
}

double LongestLabel(const std::vector<std::string>& labels) {
  size_t longest = 0;
  for (const std::string& label : labels) longest = std::max(longest, label.size());
  return static_cast<double>(longest);
}

// Heights that the bars of a plot reach, for its axis.
std::vector<double> BarHeights(const BarPlot& plot) {
  std::vector<double> heights;
  for (size_t c = 0; c < plot.categories.size(); ++c) {
    double sum = 0;
    for (const BarSeries& series : plot.series) {
      if (c >= series.values.size() || !series.values[c]) continue;
      const BarValue& bar = *series.values[c];
      sum = plot.stacked ? sum + bar.value : bar.value;
      heights.push_back(sum);
      if (bar.low) heights.push_back(*bar.low);
      if (bar.high) heights.push_back(*bar.high);
    }
  }
  return heights;
}

std::string BarMarkup(const BarSeries& series, const BarValue& bar, const std::string& category,
                      int colour, double x, double width, double from, double to) {
  return fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" class=\"{}\">"
      "<title>{}</title></rect>\n",
      x, std::min(from, to), width, std::fabs(from - to), BarClass(colour),
      EscapeHtml(fmt::format("{}, {}: {}", category, series.name, Label(bar.value))));
}

}  // namespace

std::vector<double> PlotTicks(double low, double high, bool log, int wanted) {
  std::vector<double> ticks;
  if (!(high > low) || (log && low <= 0)) return ticks;
  if (log) {
    const double decades = std::log10(high / low);
    // Powers of ten alone, three to a decade, or within a decade one more.
    const std::vector<double> steps = decades > 0.8 * wanted ? std::vector<double>{1}
                                      : decades >= 1         ? std::vector<double>{1, 2, 5}
                                                             : std::vector<double>{1, 2, 3, 5};
    const int every = std::max(1, static_cast<int>(std::ceil(decades / wanted)));
    const int first = static_cast<int>(std::floor(std::log10(low)));
    for (int e = first; std::pow(10.0, e) <= high; ++e) {
      if (steps.size() == 1 && (e - first) % every != 0) continue;
      for (const double step : steps) {
        const double tick = step * std::pow(10.0, e);
        if (tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9)) ticks.push_back(tick);
      }
    }
    if (ticks.size() >= 2) return ticks;
    ticks.clear();  // less than a decade: round numbers do
  }
  const double raw = (high - low) / std::max(1, wanted);
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  const double share = raw / power;
  const double step = power * (share <= 1 ? 1 : share <= 2 ? 2 : share <= 5 ? 5 : 10);
  const double first = std::ceil(low / step - 1e-9);
  const double last = std::floor(high / step + 1e-9);
  for (double i = first; i <= last && ticks.size() < 100; ++i)
    ticks.push_back(i == 0 ? 0.0 : i * step);
  return ticks;
}

Histogram BinCounts(const std::vector<int64_t>& counts, int width) {
  Histogram histogram;
  double all = 0;
  for (size_t i = 1; i < counts.size(); ++i) {
    const size_t bin = (i - 1) / static_cast<size_t>(width);
    while (histogram.percent.size() <= bin) {
      const size_t first = histogram.percent.size() * static_cast<size_t>(width) + 1;
      histogram.bins.push_back(fmt::format("{}-{}", first, first + static_cast<size_t>(width) - 1));
      histogram.percent.push_back(0);
    }
    histogram.percent[bin] += static_cast<double>(counts[i]);
    all += static_cast<double>(counts[i]);
  }
  while (!histogram.percent.empty() && histogram.percent.back() == 0) {
    histogram.percent.pop_back();
    histogram.bins.pop_back();
  }
  for (double& share : histogram.percent) share *= all > 0 ? 100 / all : 0;
  return histogram;
}

std::string PlotSvg(const Plot& plot) {
  std::vector<LegendEntry> legend;
  std::vector<double> xs, ys;
  for (size_t i = 0; i < plot.series.size(); ++i) {
    const PlotSeries& series = plot.series[i];
    if (!series.name.empty())
      legend.push_back({series.name, ColourOf(series, i), series.mark, false});
    for (const PlotPoint& point : series.points) {
      if (!Fits(point.x, plot.x.log) || !Fits(point.y, plot.y.log)) continue;
      xs.push_back(point.x);
      ys.push_back(point.y);
    }
  }
  Frame frame(plot.title, plot.width, plot.height, legend);
  Scale x = MakeScale(plot.x, xs, false), y = MakeScale(plot.y, ys, false);
  frame.AddYAxis(y, plot.y.label);
  frame.AddXAxis(x, plot.x.label);
  if (xs.empty()) frame.SayEmpty();
  if (plot.diagonal) {
    const double low = std::max(x.LowValue(), y.LowValue());
    const double high = std::min(x.HighValue(), y.HighValue());
    if (high > low) frame.Add(Line(x.At(low), y.At(low), x.At(high), y.At(high), "diagonal"));
  }
  for (size_t i = 0; i < plot.series.size(); ++i)
    frame.Add(SeriesMarkup(plot.series[i], ColourOf(plot.series[i], i), x, y));
  return frame.Finish();
}

std::string BarSvg(const BarPlot& plot) {
  std::vector<LegendEntry> legend;
  for (size_t i = 0; i < plot.series.size(); ++i) {
    if (!plot.series[i].name.empty())
      legend.push_back({plot.series[i].name, static_cast<int>(i), {}, true});
  }
  Frame frame(plot.title, plot.width, plot.height, legend);
  const std::vector<double> heights = BarHeights(plot);
  Scale y = MakeScale(plot.y, heights, true);
  frame.AddYAxis(y, plot.y.label);
  frame.AddXLine(plot.x_label);
  if (heights.empty()) frame.SayEmpty();
  const size_t categories = plot.categories.size();
  const double slot =
      (frame.right() - frame.left()) / static_cast<double>(std::max<size_t>(1, categories));
  const auto beside =
      static_cast<double>(plot.stacked ? 1 : std::max<size_t>(1, plot.series.size()));
  const double bar_width = 0.8 * slot / beside;
  const double ground = y.log || y.low > 0 ? frame.bottom() : y.At(std::min(0.0, y.high));
  const auto place = [&](double value) { return Fits(value, y.log) ? y.At(value) : ground; };
  for (size_t c = 0; c < categories; ++c) {
    const double left = frame.left() + slot * (static_cast<double>(c) + 0.1);
    double sum = 0;
    for (size_t s = 0; s < plot.series.size(); ++s) {
      const BarSeries& series = plot.series[s];
      if (c >= series.values.size() || !series.values[c]) continue;
      const BarValue& bar = *series.values[c];
      if (!std::isfinite(bar.value)) continue;
      const double x = left + (plot.stacked ? 0 : bar_width * static_cast<double>(s));
      const double from = plot.stacked && sum > 0 ? place(sum) : ground;
      sum += bar.value;
      frame.Add(BarMarkup(series, bar, plot.categories[c], static_cast<int>(s), x, bar_width * 0.94,
                          from, place(plot.stacked ? sum : bar.value)));
      if (bar.low && bar.high) {
        const double middle = x + bar_width * 0.47;
        frame.Add(Line(middle, place(*bar.low), middle, place(*bar.high), "spread"));
      }
    }
    // Labels that would run into each other are left out, the first and every second, third, ...
    const double longest = LongestLabel(plot.categories) * kLegendLetter + 6;
    const auto every = static_cast<size_t>(std::max(1.0, std::ceil(longest / slot)));
    if (c % every == 0)
      frame.Add(Text(left + 0.4 * slot, frame.bottom() + 18, "middle", "soft", plot.categories[c]));
  }
  return frame.Finish();
}

}  // namespace loopspec
