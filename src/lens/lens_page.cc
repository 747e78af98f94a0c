// The lens as a page: a heat map with the text on one axis and depth on the other.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/escape_html.h"
#include "lens/lens.h"
#include "report/html_page.h"
#include "report/plot.h"

namespace loopspec {
namespace {

constexpr int kCell = 26;  // height of a cell
constexpr int kWide = 76;  // its width: a token has room in it
constexpr int kLeft = 84, kTop = 34, kLabels = 44;
constexpr int kTitle = 520;             // least width of a map: its title is seen whole
constexpr size_t kLetters = 9;          // of a token, before it is cut
constexpr size_t kPositionsOfMap = 14;  // of one map; a longer text has several

// Whitespace made visible, and no longer than a label may be.
std::string Label(const std::string& text) {
  std::string shown;
  for (const char c : text) {
    if (c == '\n')
      shown += "\u21b5";
    else if (c == ' ')
      shown += "\u00b7";
    else
      shown += c;
  }
  return shown.empty() ? "\u2205" : shown;
}

// The same, cut where a cell ends.
std::string Short(const std::string& text) {
  const std::string label = Label(text);
  size_t letters = 0;
  for (size_t at = 0; at < label.size(); ++at) {
    if ((static_cast<unsigned char>(label[at]) & 0xC0) == 0x80) continue;
    if (++letters > kLetters) return label.substr(0, at) + "\u2026";
  }
  return label;
}

std::string CellNote(const Lens& lens, size_t t, size_t d, const TokenText& text_of) {
  const LensCell& cell = lens.At(t, d);
  std::string note =
      fmt::format("after \"{}\", depth {}\n", Label(text_of(lens.tokens[t])), lens.depths[d]);
  for (size_t i = 0; i < cell.tokens.size(); ++i)
    note +=
        fmt::format("{:5.1f} %  {}\n", 100 * cell.probabilities[i], Label(text_of(cell.tokens[i])));
  note += fmt::format("entropy {:.2f} bits, margin {:.2f}, KL to the last depth {:.3f} bits\n",
                      cell.entropy, cell.margin, cell.divergence);
  note += fmt::format("state: norm {:.2f}, cosine to the last {:.3f}", cell.norm, cell.cosine);
  if (t + 1 < lens.tokens.size())
    note += fmt::format("\nwhat follows: {} at {:.1f} %", Label(text_of(lens.tokens[t + 1])),
                        100 * cell.next);
  if (cell.exit >= 0) note += fmt::format("\nexit gate {:.2f}", cell.exit);
  return note;
}

// Columns are positions, rows depths, the deepest on top. Green where the choice is the last
// depth's, orange where it is not; the surer the stronger. A ring marks where a position settled.
std::string MapSvg(const Lens& lens, size_t first, size_t last, const TokenText& text_of) {
  const auto columns = static_cast<int>(last - first), rows = static_cast<int>(lens.depths.size());
  const int width = std::max(kLeft + columns * kWide + 12, kTitle),
            height = kTop + rows * kCell + kLabels;
  std::string svg = fmt::format(
      "<div style=\"overflow-x:auto\"><svg role=\"img\" aria-label=\"Choices by position and "
      "depth\" "
      "viewBox=\"0 0 {0} {1}\" style=\"width:{0}px;height:{1}px;max-width:none\">\n"
      "<style>svg .choice {{ font-size: 12px; }}</style>\n"
      "<text class=\"title\" x=\"{2}\" y=\"20\">What would come next, after each depth</text>\n",
      width, height, kLeft);
  for (int d = 0; d < rows; ++d) {
    svg += fmt::format(
        "<text class=\"soft\" x=\"{}\" y=\"{}\" text-anchor=\"end\">depth {}</text>\n", kLeft - 8,
        kTop + (rows - 1 - d) * kCell + 18, lens.depths[static_cast<size_t>(d)]);
  }
  for (int column = 0; column < columns; ++column) {
    const size_t t = first + static_cast<size_t>(column);
    const int x = kLeft + column * kWide;
    const size_t settled = lens.Settled(t);
    const int32_t choice = lens.At(t, lens.depths.size() - 1).tokens[0];
    for (int d = 0; d < rows; ++d) {
      const LensCell& cell = lens.At(t, static_cast<size_t>(d));
      const int y = kTop + (rows - 1 - d) * kCell;
      svg += fmt::format(
          "<g><title>{}</title><rect class=\"fill s{}\" x=\"{}\" y=\"{}\" width=\"{}\" "
          "height=\"{}\" "
          "fill-opacity=\"{:.2f}\"/>",
          EscapeHtml(CellNote(lens, t, static_cast<size_t>(d), text_of)),
          cell.tokens[0] == choice ? 2 : 1, x, y, kWide - 2, kCell - 2,
          0.08 + 0.42 * static_cast<double>(cell.probabilities[0]));
      svg +=
          fmt::format("<text class=\"choice\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                      x + kWide / 2 - 1, y + 16, EscapeHtml(Short(text_of(cell.tokens[0]))));
      if (static_cast<size_t>(d) == settled) {
        svg += fmt::format(
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"3\" fill=\"none\" "
            "stroke=\"var(--text)\" stroke-width=\"2\"/>",
            x + 1, y + 1, kWide - 4, kCell - 4);
      }
      svg += "</g>\n";
    }
    svg +=
        fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", x + kWide / 2 - 1,
                    kTop + rows * kCell + 20, EscapeHtml(Short(text_of(lens.tokens[t]))));
  }
  svg += fmt::format("<text class=\"soft\" x=\"{}\" y=\"{}\" text-anchor=\"end\">the text</text>\n",
                     kLeft - 8, kTop + rows * kCell + 20);
  return svg + "</svg></div>\n";
}

}  // namespace

std::string LensPage(const Lens& lens, const TokenText& text_of, const std::string& model) {
  const size_t positions = lens.tokens.size(), depths = lens.depths.size();
  HtmlPage page(fmt::format("What {} thinks, depth by depth", NameInTitle(model)));
  std::vector<double> settled(depths, 0), agreed(depths, 0), entropy(depths, 0),
      divergence(depths, 0);
  for (size_t t = 0; t < positions; ++t) {
    settled[lens.Settled(t)] += 1;
    for (size_t d = 0; d < depths; ++d) {
      const LensCell& cell = lens.At(t, d);
      agreed[d] += cell.tokens[0] == lens.At(t, depths - 1).tokens[0] ? 1 : 0;
      entropy[d] += static_cast<double>(cell.entropy);
      divergence[d] += static_cast<double>(cell.divergence);
    }
  }
  const auto n = static_cast<double>(std::max<size_t>(positions, 1));
  const double at_first = settled[0] / n;
  page.AddParagraph(
      fmt::format("{} positions, read out after {} of the recurrences. {:.0f} % of the choices are "
                  "made at depth {} "
                  "and never change; a frame shows where each was made. Keys and values: {}.",
                  positions, depths, 100 * at_first, lens.depths[0], lens.kv_type));
  page.AddNote(
      "A column is a position of the text: what comes after the token below it. Rows are depths, "
      "the "
      "last on top; in a cell stands what that depth takes for the likeliest next token. Green: "
      "the choice is the last depth's; orange: it is another. The stronger the "
      "colour, the surer. Rest the pointer on a cell for its likeliest tokens.");
  for (size_t first = 0; first < positions; first += kPositionsOfMap) {
    page.AddFigure(
        MapSvg(lens, first, std::min(positions, first + kPositionsOfMap), text_of),
        positions > kPositionsOfMap ? fmt::format("From position {}", first) : std::string());
  }
  HtmlTable table;
  table.columns = {{"depth"},
                   {"agrees with the last"},
                   {"made here"},
                   {"entropy, bits"},
                   {"KL to the last, bits"}};
  for (size_t d = 0; d < depths; ++d) {
    table.rows.push_back(
        {fmt::format("{}", lens.depths[d]), fmt::format("{:.1f} %", 100 * agreed[d] / n),
         fmt::format("{:.1f} %", 100 * settled[d] / n), fmt::format("{:.2f}", entropy[d] / n),
         fmt::format("{:.3f}", divergence[d] / n)});
  }
  page.AddHeading("By depth");
  page.AddTable(table);
  return page.Text();
}

}  // namespace loopspec
