// One page of results that needs nothing but itself: style, tables and charts inline, no network,
// light or dark as the reader's system is.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace loopspec {

struct HtmlColumn {
  std::string name;
  bool number = true;  // aligned on the right
};

struct HtmlCell {
  // From a text alone, as most cells are.
  HtmlCell(std::string value) : text(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  HtmlCell(const char* value) : text(value) {}             // NOLINT(google-explicit-constructor)
  explicit HtmlCell(std::string value, std::string small)
      : text(std::move(value)), note(std::move(small)) {}

  std::string text;
  std::string note;    // smaller, on a line below: an interval, what was counted
  bool best = false;   // bold: the largest of its column
  bool faint = false;  // grey: too little was measured to say anything
};

struct HtmlTable {
  std::vector<HtmlColumn> columns;
  std::vector<std::vector<HtmlCell>> rows;  // as many cells as columns, or fewer
  std::vector<bool> strong;                 // rows that stand out; may be shorter than rows
  std::string caption;
};

// A model as a title has it: of a path, which may be long, the folder alone.
std::string NameInTitle(std::string_view model);

// Parts appear in the order in which they are added. All text is escaped; only AddFigure takes
// markup, as PlotSvg and BarSvg make it.
class HtmlPage {
 public:
  explicit HtmlPage(std::string title);

  void AddHeading(const std::string& text);
  void AddParagraph(const std::string& text);
  // What a reader who is new to it needs to know to read the figures; set apart.
  void AddNote(const std::string& text);
  void AddFigure(const std::string& svg, const std::string& caption);
  // Figures side by side where the window is wide enough.
  void BeginRow();
  void EndRow();
  void AddTable(const HtmlTable& table);
  // A long table or list behind a line that opens it.
  void BeginDetails(const std::string& summary);
  void EndDetails();

  std::string Text() const;

 private:
  std::string title_, body_;
};

}  // namespace loopspec
