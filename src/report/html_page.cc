#include "report/html_page.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/escape_html.h"

namespace loopspec {
namespace {

// Colours with a contrast of at least 3 to the background in both schemes; s0 ... s7 are the series
// of plots, as strokes of lines and fills of points and bars.
constexpr const char* kStyle = R"(
:root { color-scheme: light dark;
  --page: #fbfbfd; --card: #ffffff; --text: #1b1f27; --soft: #5a6372; --rule: #d9dee7; --strong: #eaf2ff;
  --s0: #0b66c3; --s1: #c2500c; --s2: #15803d; --s3: #8b35d6; --s4: #b91c1c; --s5: #0e7490; --s6: #8f6400;
  --s7: #be185d; }
@media (prefers-color-scheme: dark) { :root {
  --page: #12151b; --card: #1a1e26; --text: #e7eaf0; --soft: #9aa4b5; --rule: #343b48; --strong: #1d3050;
  --s0: #66b0ff; --s1: #ff9d5c; --s2: #55d38a; --s3: #c79bff; --s4: #ff8080; --s5: #45d0e6; --s6: #e8c547;
  --s7: #ff8ac2; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1680px; margin: 0 auto; padding: 1.5rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: .5rem 0 1rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; }
p, .note { max-width: 84rem; overflow-wrap: break-word; }
.note { color: var(--soft); border-left: 3px solid var(--rule); padding-left: .9rem; margin: 1rem 0; }
.row { display: flex; flex-wrap: wrap; gap: 1rem; align-items: flex-start; }
figure { margin: 1rem 0; padding: .8rem; background: var(--card); border: 1px solid var(--rule);
  border-radius: 10px; flex: 1 1 26rem; min-width: 0; }
.row > figure { max-width: 56rem; } main > figure > svg { max-width: 48rem; }
figcaption { color: var(--soft); font-size: .9rem; margin-top: .4rem; }
svg { display: block; width: 100%; height: auto; }
.scroll { overflow-x: auto; margin: 1rem 0; background: var(--card); border: 1px solid var(--rule);
  border-radius: 10px; }
table { border-collapse: collapse; font-size: .88rem; width: 100%; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding: .6rem .8rem; }
caption span { display: block; position: sticky; left: .8rem; max-width: min(100%, calc(100vw - 5rem)); }
th, td { padding: .3rem .5rem; text-align: left; white-space: nowrap; border-top: 1px solid var(--rule); }
thead th { border-top: 0; color: var(--soft); font-weight: 600; white-space: normal; vertical-align: bottom; }
.n { text-align: right; }
td.long:not(:first-child) { white-space: normal; min-width: 11rem; }
td small { display: block; font-size: .78rem; font-weight: 400; color: var(--soft); }
th:first-child, td:first-child { position: sticky; left: 0; background: var(--card); }
tr.strong td:first-child { background: var(--strong); }
td.best { font-weight: 700; } td.faint { color: var(--soft); font-style: italic; }
tr.strong td { background: var(--strong); }
details { margin: 1rem 0; } summary { cursor: pointer; color: var(--s0); }
svg text { fill: var(--text); font-size: 13px; font-family: inherit; }
svg .soft { fill: var(--soft); } svg .title { font-size: 15px; font-weight: 600; }
svg .cut { fill: none; } svg .grid { stroke: var(--rule); stroke-width: 1; } svg .axis { stroke: var(--soft); stroke-width: 1; }
svg .diagonal { stroke: var(--soft); stroke-width: 1.5; stroke-dasharray: 4 4; }
svg .spread { stroke: var(--text); stroke-width: 1.5; }
svg .line { fill: none; stroke-width: 2.2; stroke-linejoin: round; } svg .dashes { stroke-dasharray: 7 5; } svg .pale { fill-opacity: .45; }
svg .dot { stroke: var(--card); stroke-width: 1; }
@media (max-width: 700px) {
  /* Charts fit the window; their letters grow in the picture, so that they stay legible in it. */
  main { padding-inline: .7rem; } figure { flex-basis: 100%; padding: .4rem; }
  svg text { font-size: 16px; } svg .title { font-size: 18px; }
  th, td { padding-inline: .35rem; }
}
@media print { figure, .scroll { break-inside: avoid; } }
)";

std::string Cell(const HtmlCell& cell, bool number) {
  constexpr size_t kOneLine = 30;  // longer ones are sentences, which wrap
  std::string kinds = number ? "n" : cell.text.size() > kOneLine ? "long" : "";
  if (cell.best) kinds += kinds.empty() ? "best" : " best";
  if (cell.faint) kinds += kinds.empty() ? "faint" : " faint";
  std::string out = kinds.empty() ? "<td>" : fmt::format("<td class=\"{}\">", kinds);
  out += EscapeHtml(cell.text);
  if (!cell.note.empty()) out += fmt::format("<small>{}</small>", EscapeHtml(cell.note));
  return out + "</td>";
}

std::string SeriesRules() {
  std::string rules;
  for (int i = 0; i < 8; ++i) {
    rules += fmt::format(
        "svg .line.s{0} {{ stroke: var(--s{0}); }} svg .fill.s{0} {{ fill: var(--s{0}); }}\n", i);
  }
  return rules;
}

}  // namespace

std::string NameInTitle(std::string_view model) {
  while (model.size() > 1 && model.ends_with('/')) model.remove_suffix(1);
  return std::string(model.substr(model.size() > 1 ? model.rfind('/') + 1 : 0));
}

HtmlPage::HtmlPage(std::string title) : title_(std::move(title)) {}

void HtmlPage::AddHeading(const std::string& text) {
  body_ += fmt::format("<h2>{}</h2>\n", EscapeHtml(text));
}

void HtmlPage::AddParagraph(const std::string& text) {
  body_ += fmt::format("<p>{}</p>\n", EscapeHtml(text));
}

void HtmlPage::AddNote(const std::string& text) {
  body_ += fmt::format("<div class=\"note\">{}</div>\n", EscapeHtml(text));
}

void HtmlPage::AddFigure(const std::string& svg, const std::string& caption) {
  body_ += fmt::format("<figure>\n{}", svg);
  if (!caption.empty()) body_ += fmt::format("<figcaption>{}</figcaption>\n", EscapeHtml(caption));
  body_ += "</figure>\n";
}

void HtmlPage::BeginRow() {
  body_ += "<div class=\"row\">\n";
}

void HtmlPage::EndRow() {
  body_ += "</div>\n";
}

void HtmlPage::AddTable(const HtmlTable& table) {
  const auto number = [&](size_t column) {
    return column < table.columns.size() && table.columns[column].number;
  };
  const auto align = [&](size_t column) { return number(column) ? " class=\"n\"" : ""; };
  body_ += "<div class=\"scroll\"><table>\n";
  if (!table.caption.empty())
    body_ += fmt::format("<caption><span>{}</span></caption>\n", EscapeHtml(table.caption));
  body_ += "<thead><tr>";
  for (size_t i = 0; i < table.columns.size(); ++i) {
    body_ +=
        fmt::format("<th scope=\"col\"{}>{}</th>", align(i), EscapeHtml(table.columns[i].name));
  }
  body_ += "</tr></thead>\n<tbody>\n";
  // Where every row stands out, none does.
  const bool some =
      table.strong.size() < table.rows.size() ||
      std::find(table.strong.begin(), table.strong.end(), false) != table.strong.end();
  for (size_t r = 0; r < table.rows.size(); ++r) {
    body_ += some && r < table.strong.size() && table.strong[r] ? "<tr class=\"strong\">" : "<tr>";
    for (size_t i = 0; i < table.rows[r].size(); ++i) body_ += Cell(table.rows[r][i], number(i));
    body_ += "</tr>\n";
  }
  body_ += "</tbody></table></div>\n";
}

void HtmlPage::BeginDetails(const std::string& summary) {
  body_ += fmt::format("<details><summary>{}</summary>\n", EscapeHtml(summary));
}

void HtmlPage::EndDetails() {
  body_ += "</details>\n";
}

std::string HtmlPage::Text() const {
  const std::string title = EscapeHtml(title_);
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>{}</title>\n<style>{}{}</style>\n</head>\n<body>\n<main>\n<h1>{}</h1>\n{}"
      "</main>\n</body>\n</html>\n",
      title, kStyle, SeriesRules(), title, body_);
}

}  // namespace loopspec
