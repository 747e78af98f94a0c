#include "report/trace_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/escape_html.h"
#include "base/json.h"

namespace loopspec {
namespace {

struct Life {
  int64_t born = 0, died = 0;  // steps
  std::string text;
  int proposal = 0;  // 0: root or fallback
  bool pruned = false, verified = false;
  struct Mark {
    int64_t step;
    std::string text;
    char kind;  // d raft, g ate closed, a ccepted, f allback
  };
  std::vector<Mark> marks;
  std::map<int64_t, int64_t> depth_at;  // recurrences that it went through: step -> depth reached
};

// Line breaks are shown, other control characters left out.
std::string Escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') out += "\\n";
    if (static_cast<unsigned char>(c) >= 0x20) out += c;
  }
  return EscapeHtml(out);
}

std::map<int64_t, Life> Lives(const Json& trace, int64_t& last, const std::string& what) {
  std::map<int64_t, Life> lives;
  if (!trace.is_object() || !trace.contains("events") || !trace["events"].is_array())
    Fail("{}: no list of events: not a trace", what);
  for (const Json& event : trace["events"]) {
    const std::string kind = FindString(event, "kind", what).value_or("");
    const int64_t step = FindInt(event, "step", what, 0, INT64_MAX).value_or(0);
    const int64_t branch = FindInt(event, "branch", what, 0, INT64_MAX).value_or(0);
    const std::string text =
        FindString(event, "text", what)
            .value_or(std::to_string(FindInt(event, "token", what, -1, INT64_MAX).value_or(-1)));
    Life& life = lives[branch];
    last = std::max(last, step);
    if (kind == "spawn") {
      life.born = step;
      life.died = INT64_MAX;
      life.text = text;
      life.proposal = static_cast<int>(FindInt(event, "proposal", what, 0, 64).value_or(0));
    } else if (kind == "advance") {
      const int64_t depth = FindInt(event, "depth", what, 0, 1 << 20).value_or(0);
      const int64_t count = FindInt(event, "proposal", what, 0, 1 << 20).value_or(0);
      for (int64_t i = 0; i < count; ++i) life.depth_at[step + i] = depth - count + i + 1;
      last = std::max(last, step + count);
    } else if (kind == "prune") {
      life.died = step;
      life.pruned = true;
    } else if (kind == "draft" || kind == "gate_closed") {
      life.marks.push_back({step, kind == "draft" ? text : "", kind == "draft" ? 'd' : 'g'});
    } else if (kind == "accept" || kind == "fallback") {
      life.marks.push_back({step, text, kind == "accept" ? 'a' : 'f'});
      life.died = step;
      life.verified = true;
    }
  }
  return lives;
}

}  // namespace

int TraceRecurrence(const Json& trace, const std::string& what) {
  if (!trace.is_object()) Fail("{}: no list of events: not a trace", what);
  return static_cast<int>(FindInt(trace, "recurrence", what, 1, 4096).value_or(1));
}

std::string DrawTrace(const Json& trace, int64_t begin, int64_t end, const std::string& what) {
  int64_t last = 0;
  const std::map<int64_t, Life> lives = Lives(trace, last, what);
  end = std::min(end, last);
  if (begin >= end) Fail("{}: no steps from {} to {}, the trace has {}", what, begin, end, last);
  const int recurrence = TraceRecurrence(trace, what);
  constexpr int kRow = 26, kLeft = 120, kTop = 84;
  // A token's R recurrences are as wide for every R, down to what can be seen.
  const int cell = std::clamp(184 / recurrence, 6, 46);
  const bool numbered = cell >= 16;     // there is room for the depth in a box
  const int64_t every = 30 / cell + 1;  // step that the axis names
  std::string body;
  int row = 0;
  for (const auto& [number, life] : lives) {
    const int64_t died = std::min(life.died, last);
    if (died <= begin || life.born >= end || life.depth_at.empty()) continue;
    const int y = kTop + row++ * kRow;
    const auto x = [&](int64_t step) { return kLeft + static_cast<int>(step - begin) * cell; };
    body += fmt::format("<text x=\"{}\" y=\"{}\" class=\"name p{}\">{}</text>\n",
                        std::max(kLeft, x(life.born)) - 6, y + 17,
                        number == lives.begin()->first ? "prompt" : std::to_string(life.proposal),
                        Escape(life.text));
    for (int64_t step = std::max(begin, life.born); step < std::min(end, died); ++step) {
      const auto at = life.depth_at.find(step);
      if (at == life.depth_at.end()) continue;  // it waited
      const int64_t depth = at->second;
      const bool final = depth == recurrence;
      body += fmt::format(
          "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"{}\" class=\"{}\"/>\n",
          x(step) + 1, y, cell - 2, kRow - 4, numbered ? 4 : 1,
          life.pruned                      ? "pruned"
          : final                          ? "final"
          : number == lives.begin()->first ? "live start"
                                           : fmt::format("live o{}", std::min(life.proposal, 4)));
      if (numbered)
        body += fmt::format("<text x=\"{}\" y=\"{}\" class=\"depth\">{}</text>\n", x(step) + 5,
                            y + 10, depth);
      for (const Life::Mark& mark : life.marks) {
        if (mark.step != step + 1) continue;
        const char* colour = mark.kind == 'a' ? "accept" : mark.kind == 'f' ? "fallback" : "draft";
        const std::string label = mark.kind == 'g' ? "\u2013" : mark.text;
        body += fmt::format("<text x=\"{}\" y=\"{}\" class=\"{}\">{}</text>\n", x(step) + cell / 2,
                            y + 19, colour, Escape(label));
      }
    }
  }
  const int width = kLeft + static_cast<int>(end - begin) * cell + 20;
  const int height = kTop + row * kRow + 30;
  std::string axis;
  for (int64_t step = begin; step < end; step += every) {
    axis += fmt::format("<text x=\"{}\" y=\"72\" class=\"axis\">{}</text>\n",
                        kLeft + static_cast<int>(step - begin) * cell + cell / 2, step + 1);
  }
  // The colours of the server's page (src/serve/page/style.css), by where a token came from.
  constexpr const char* kStyle =
      ".live{fill:#dbe7fd;stroke:#2563eb}.o2{fill:#d6f0f1;stroke:#0b8a94}.o3{fill:#dcf1de;stroke:#"
      "2f8f3a}"
      ".o4{fill:#eef0d3;stroke:#75811a}.o0{fill:#fbe1e4;stroke:#d43b4f}"
      ".final{fill:#ffffff;stroke:#1a1b22;stroke-width:2}.start{fill:#eceef4;stroke:#5c6072}."
      "pruned{fill:#f3f3f7;stroke:#d1d5db}"
      ".depth{font-size:8px;fill:#5c6072}.axis{text-anchor:middle;fill:#5c6072}"
      ".name{text-anchor:end;fill:#1a1b22}.p0{font-weight:bold;fill:#d43b4f}.p1{fill:#2563eb}"
      ".p2{fill:#0b8a94}.p3{fill:#2f8f3a}.p4{fill:#75811a}"
      ".draft{text-anchor:middle;fill:#5c6072}.accept{text-anchor:middle;fill:#1a1b22;font-weight:"
      "bold}"
      ".fallback{text-anchor:middle;fill:#d43b4f;font-weight:bold}.says{fill:#5c6072}";
  const std::string legend = fmt::format(
      "<text x=\"8\" y=\"16\" font-size=\"13\" font-weight=\"bold\" fill=\"#1a1b22\">How the "
      "tokens were "
      "computed: time runs to the right, one column per recurrence, of which a token needs "
      "{}</text>\n"
      "<text x=\"8\" y=\"33\" class=\"says\">Each row is a token. Its name has the colour of the "
      "draft that "
      "began it: blue the first, teal the second, red none (known only after all "
      "recurrences).</text>\n"
      "<text x=\"8\" y=\"49\" class=\"says\">A box is a recurrence with its depth; a word in it is "
      "the next token "
      "that was drafted there. The framed box checks: black, a draft was right; red, none was. "
      "Grey rows "
      "were wrong drafts.</text>\n",
      recurrence);
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n<style>{}</style>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{}{}{}</svg>\n",
      std::max(width, 900), height, kStyle, legend, axis, body);
}

namespace {

// One character for a depth: 1 to 9, a to z, then +.
char DepthLetter(int64_t depth) {
  if (depth < 10) return static_cast<char>('0' + depth);
  return depth < 36 ? static_cast<char>('a' + depth - 10) : '+';
}

// A token's text in at most `most` characters: line breaks shown, quotes around.
std::string Quoted(const std::string& text, size_t most) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') out += "\\n";
    if (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f) out += c;
  }
  size_t characters = 0, bytes = 0;
  for (; bytes < out.size() && characters <= most; ++bytes)
    characters += (static_cast<unsigned char>(out[bytes]) & 0xC0) != 0x80;
  if (characters > most) out = out.substr(0, bytes - 1);
  return "\"" + out + "\"";
}

size_t Characters(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

}  // namespace

std::string TraceText(const Json& trace, int64_t begin, int64_t end, const std::string& what,
                      bool colour) {
  int64_t last = 0;
  const std::map<int64_t, Life> lives = Lives(trace, last, what);
  end = std::min(end, last);
  if (begin >= end) Fail("{}: no steps from {} to {}, the trace has {}", what, begin, end, last);
  constexpr size_t kName = 14;
  std::string out = fmt::format(
      "A row per token that was computed, a column per loop (recurrence {} to {}): the depth that "
      "it "
      "reached, . while it waited.\n",
      begin + 1, end);
  for (const auto& [number, life] : lives) {
    const int64_t died = std::min(life.died, last);
    if (died <= begin || life.born >= end || life.depth_at.empty()) continue;
    std::string name = Quoted(life.text, kName - 2);
    name.insert(0, kName - std::min(kName, Characters(name)), ' ');
    std::string row;
    for (int64_t step = begin; step < std::min(end, died); ++step) {
      const auto at = life.depth_at.find(step);
      row += at != life.depth_at.end() ? DepthLetter(at->second) : step < life.born ? ' ' : '.';
    }
    std::string fate = life.pruned ? "thrown away" : "";
    const char* escape = life.pruned ? "2" : "";
    for (const Life::Mark& mark : life.marks) {
      if (mark.kind == 'a') fate = "then " + Quoted(mark.text, kName) + ", as it had drafted";
      if (mark.kind == 'f') fate = "then " + Quoted(mark.text, kName) + ", not what it had drafted";
      if (mark.kind == 'a') escape = "32";
      if (mark.kind == 'f') escape = "31";
    }
    const bool marked = colour && *escape != '\0';
    out += fmt::format("{} |{}{}{}  {}\n", name, marked ? fmt::format("\033[{}m", escape) : "", row,
                       marked ? "\033[0m" : "", fate);
  }
  return out;
}

}  // namespace loopspec
