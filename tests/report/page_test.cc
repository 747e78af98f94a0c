// Charts and pages: what is drawn where, and that text cannot break out of its place.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <string>

#include "report/html_page.h"
#include "report/plot.h"

namespace loopspec {
namespace {

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// The centres of the dots, in order.
std::vector<std::pair<double, double>> Dots(const std::string& svg) {
  std::vector<std::pair<double, double>> dots;
  const std::string begin = "<circle cx=\"";
  for (size_t at = svg.find(begin); at != std::string::npos; at = svg.find(begin, at + 1)) {
    double x = 0, y = 0;
    char radius[8] = "";
    if (std::sscanf(svg.c_str() + at, "<circle cx=\"%lf\" cy=\"%lf\" r=\"%7[0-9.]", &x, &y,
                    radius) == 3 &&
        std::string(radius) == "4.2")
      dots.emplace_back(x, y);
  }
  return dots;
}

TEST(Ticks, AreRoundAndWithinTheAxis) {
  EXPECT_EQ(PlotTicks(0, 100, false), (std::vector<double>{0, 20, 40, 60, 80, 100}));
  EXPECT_EQ(PlotTicks(1, 32, true), (std::vector<double>{1, 2, 5, 10, 20}));
  EXPECT_EQ(PlotTicks(1, 3.2, true), (std::vector<double>{1, 2, 3}));
  const std::vector<double> decades = PlotTicks(1e-6, 1, true);
  ASSERT_GE(decades.size(), 3u);
  EXPECT_NEAR(decades[0], 1e-6, 1e-12);
  EXPECT_TRUE(PlotTicks(1, 1, false).empty());
  EXPECT_TRUE(PlotTicks(-1, 1, true).empty());
  for (const double tick : PlotTicks(0.31, 0.38, true)) {
    EXPECT_GE(tick, 0.31 - 1e-9);
    EXPECT_LE(tick, 0.38 + 1e-9);
  }
}

TEST(Plots, PutPointsWhereTheirValuesAre) {
  Plot plot;
  plot.title = "distance";
  plot.x = {"recurrences", true, 1, 16};
  plot.y = {"distance", true, 0.01, 1};
  plot.series = {{"a", PlotMark::kLineAndPoints, {{1, 1, ""}, {4, 0.1, ""}, {16, 0.01, ""}}}};
  const auto dots = Dots(PlotSvg(plot));
  ASSERT_EQ(dots.size(), 3u);
  // A power law is a straight line on logarithmic axes.
  EXPECT_NEAR(dots[1].first, (dots[0].first + dots[2].first) / 2, 0.2);
  EXPECT_NEAR(dots[1].second, (dots[0].second + dots[2].second) / 2, 0.2);
  EXPECT_LT(dots[0].second, dots[2].second);  // larger values are higher up
}

TEST(Plots, LeaveOutWhatHasNoPlace) {
  Plot plot;
  plot.y.log = true;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  plot.series = {
      {"a", PlotMark::kLineAndPoints, {{1, 1, ""}, {2, 0, ""}, {3, nan, ""}, {4, 2, ""}}}};
  const std::string svg = PlotSvg(plot);
  EXPECT_EQ(Dots(svg).size(), 2u);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
  plot.series.clear();
  EXPECT_NE(PlotSvg(plot).find("no data"), std::string::npos);
}

TEST(Bars, StandOnZeroOrOnEachOther) {
  BarPlot plot;
  plot.categories = {"x", "y"};
  plot.series = {{"a", {BarValue{2, 1.0, 3.0}, std::nullopt}},
                 {"b", {BarValue{1, {}, {}}, BarValue{4, {}, {}}}}};
  EXPECT_EQ(Count(BarSvg(plot), "<rect x="), 2 + 3);  // the legend's two, and three bars
  EXPECT_EQ(Count(BarSvg(plot), "class=\"spread\""), 1);
  plot.stacked = true;
  EXPECT_EQ(Count(BarSvg(plot), "<rect x="), 2 + 3);

  // There are fewer colours than series may be: those that come again are paler.
  BarPlot many;
  many.categories = {"a"};
  for (int i = 0; i < kPlotColours + 2; ++i)
    many.series.push_back({std::to_string(i), {BarValue{1, {}, {}}}});
  EXPECT_EQ(Count(BarSvg(many), "class=\"fill s0\""), 2);  // in the legend, and its bar
  EXPECT_EQ(Count(BarSvg(many), "class=\"fill s0 pale\""), 2);
  EXPECT_EQ(Count(BarSvg(many), " pale\""), 4);
}

// An axis that does not begin at 0 says so; one that could begins there.
TEST(Plots, BeginAtZeroOrSaySo) {
  Plot plot;
  plot.y.label = "agreement";
  plot.series = {{"a", PlotMark::kLineAndPoints, {{1, 90, ""}, {2, 99, ""}}}};
  const std::string cut = PlotSvg(plot);
  EXPECT_NE(cut.find("agreement (from "), std::string::npos);
  EXPECT_NE(cut.find("axis cut"), std::string::npos);
  plot.series[0].points[0].y = 20;
  const std::string whole = PlotSvg(plot);
  EXPECT_EQ(whole.find("(from "), std::string::npos);
  EXPECT_NE(whole.find(">0</text>"), std::string::npos);
}

TEST(Bars, BinsHoldAsManyRowsAsThePapers) {
  std::vector<int64_t> steps(35);
  steps[1] = 2;
  steps[10] = 1;
  steps[11] = 4;
  steps[30] = 1;
  const Histogram histogram = BinCounts(steps, 10);
  EXPECT_EQ(histogram.bins, (std::vector<std::string>{"1-10", "11-20", "21-30"}));
  EXPECT_EQ(histogram.percent, (std::vector<double>{37.5, 50, 12.5}));
  EXPECT_TRUE(BinCounts({}, 10).bins.empty());
}

TEST(Pages, CellsShowTheBestAndWhatIsTooLittle) {
  HtmlPage page("p");
  HtmlCell best("2.00x", "1.9 to 2.1"), little("too few tokens");
  best.best = true;
  little.faint = true;
  page.AddTable({{{"name", false}, {"a"}, {"b"}}, {{"x", best, little}}, {}, ""});
  const std::string text = page.Text();
  EXPECT_NE(text.find("<td class=\"n best\">2.00x<small>1.9 to 2.1</small></td>"),
            std::string::npos);
  EXPECT_NE(text.find("<td class=\"n faint\">too few tokens</td>"), std::string::npos);
  // On a phone charts fit the window, and their letters are larger within them.
  EXPECT_EQ(text.find("max-width: none"), std::string::npos);
  EXPECT_NE(text.find("svg text { font-size: 16px; }"), std::string::npos);
}

// Sentences in a table wrap at every width; figures and names stay in one line.
TEST(Pages, LongCellsWrap) {
  HtmlPage page("p");
  const std::string chip = "A processor of that name, 16 threads";
  page.AddTable({{{"name", false}, {"chip", false}, {"n"}}, {{"x", chip, "1"}}, {}, ""});
  const std::string text = page.Text();
  EXPECT_NE(text.find("<td>x</td><td class=\"long\">" + chip + "</td><td class=\"n\">1</td>"),
            std::string::npos);
  EXPECT_NE(text.find("td.long:not(:first-child) { white-space: normal; min-width: 11rem; }"),
            std::string::npos);
}

TEST(Pages, TitlesNameTheModelAndNotItsPath) {
  EXPECT_EQ(NameInTitle("/srv/models/ouro-demo"), "ouro-demo");
  EXPECT_EQ(NameInTitle("models/ouro-demo//"), "ouro-demo");
  EXPECT_EQ(NameInTitle("ouro-demo"), "ouro-demo");
  EXPECT_EQ(NameInTitle("ByteDance/Ouro-1.4B@main"), "Ouro-1.4B@main");
  EXPECT_EQ(NameInTitle("/"), "/");
  EXPECT_EQ(NameInTitle(""), "");
}

TEST(Pages, StandAloneAndEscapeText) {
  HtmlPage page("a <b> & \"c\"");
  page.AddHeading("<script>");
  page.AddParagraph("1 < 2");
  page.AddTable({{{"name", false}, {"n"}}, {{"<i>", "3"}}, {true}, "caption"});
  page.AddFigure(PlotSvg({}), "it's");
  const std::string text = page.Text();
  EXPECT_EQ(text.find("<script"), std::string::npos);
  EXPECT_EQ(text.find("<i>"), std::string::npos);
  EXPECT_NE(text.find("<title>a &lt;b&gt; &amp; &#34;c&#34;</title>"), std::string::npos);
  EXPECT_NE(text.find("prefers-color-scheme: dark"), std::string::npos);
  EXPECT_NE(text.find("<td class=\"n\">3</td>"), std::string::npos);
  // No address but the name of the SVG language, which nobody fetches.
  std::string rest = text;
  const std::string xmlns = "xmlns=\"http://www.w3.org/2000/svg\"";
  for (size_t at = rest.find(xmlns); at != std::string::npos; at = rest.find(xmlns))
    rest.erase(at, xmlns.size());
  EXPECT_EQ(rest.find("http"), std::string::npos);
  EXPECT_EQ(rest.find("url("), std::string::npos);
}

}  // namespace
}  // namespace loopspec
