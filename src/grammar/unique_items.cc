#include "grammar/unique_items.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/json.h"
#include "base/trimmed.h"
#include "fmt/format.h"

namespace loopspec::grammar {
namespace {

// 1, 1.0 and 10e-1 are one number. Whole numbers keep all their digits.
std::string CanonicalNumber(std::string_view text) {
  const bool digits = text.find_first_not_of("-0123456789") == std::string_view::npos;
  if (digits) return text == "-0" ? "0" : std::string(text);
  const double number = std::strtod(std::string(text).c_str(), nullptr);
  if (number == 0) return "0";
  return std::floor(number) == number ? fmt::format("{:.0f}", number)
                                      : fmt::format("{:.17g}", number);
}

// Without recursion, since texts may be nested deeply.
class Canonicalizer {
 public:
  explicit Canonicalizer(std::string_view text) : text_(text) {}

  std::string Value() {
    std::vector<Open> open;
    while (true) {
      Skip();
      LOOPSPEC_CHECK(at_ < text_.size());
      const char c = text_[at_];
      std::string value;
      if (c == '[' || c == '{') {
        ++at_;
        open.push_back({c == '{', {}, {}, {}});
        if (!Take(c == '{' ? '}' : ']')) {
          if (c == '{') TakeName(open.back());
          continue;
        }
        value = Closed(open.back());
        open.pop_back();
      } else {
        value = c == '"' ? String() : Word();
      }
      while (true) {
        if (open.empty()) return value;
        Open& top = open.back();
        Put(top, std::move(value));
        if (Take(',')) {
          if (top.object) TakeName(top);
          break;
        }
        Take(top.object ? '}' : ']');
        value = Closed(top);
        open.pop_back();
      }
    }
  }

 private:
  // An array or object of which a part has been read.
  struct Open {
    bool object;
    std::string items;
    std::map<std::string, std::string> members;
    std::string name;
  };

  // A name that comes twice has its last value, as most parsers have it.
  static void Put(Open& open, std::string value) {
    if (open.object) {
      open.members.insert_or_assign(std::move(open.name), std::move(value));
    } else {
      open.items += open.items.empty() ? value : "," + value;
    }
  }

  static std::string Closed(const Open& open) {
    if (!open.object) return "[" + open.items + "]";
    std::string out = "{";
    for (const auto& [name, value] : open.members) {
      if (out.size() > 1) out += ',';
      out += name;
      out += ':';
      out += value;
    }
    return out + "}";
  }

  void Skip() {
    while (at_ < text_.size() && IsWhite(text_[at_])) ++at_;
  }
  bool Take(char c) {
    Skip();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void TakeName(Open& open) {
    Skip();
    open.name = String();
    Take(':');
  }

  std::string String() {
    const size_t start = at_++;
    bool escapes = false;
    for (; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (text_[at_] != '\\') continue;
      escapes = true;
      ++at_;
    }
    LOOPSPEC_CHECK(at_ < text_.size());
    ++at_;
    const std::string_view whole = text_.substr(start, at_ - start);
    return escapes ? Json::parse(whole).dump() : std::string(whole);
  }

  std::string Word() {
    const size_t start = at_;
    while (at_ < text_.size() && !IsWhite(text_[at_]) && text_[at_] != ',' && text_[at_] != ']' &&
           text_[at_] != '}') {
      ++at_;
    }
    const std::string_view word = text_.substr(start, at_ - start);
    const bool number = !word.empty() && (word[0] == '-' || (word[0] >= '0' && word[0] <= '9'));
    return number ? CanonicalNumber(word) : std::string(word);
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

std::string CanonicalJson(std::string_view text) {
  return Canonicalizer(text).Value();
}

UniqueItems::UniqueItems() {
  tracks_.push_back({0, 0});  // kNone
  texts_.push_back({0, 0, 0, 0, false, false});
  sets_.Intern({});
}

UniqueItems::Track UniqueItems::Make(uint32_t set, uint32_t text) {
  const uint64_t key = uint64_t{set} << 32 | text;
  const uint32_t known = tracks_by_parts_.Find(key);
  if (known != NumberMap::kMissing) return known;
  const auto track = static_cast<Track>(tracks_.size());
  tracks_.push_back({set, text});
  tracks_by_parts_.Set(key, track);
  memory_ += sizeof(Parts);
  return track;
}

uint32_t UniqueItems::Longer(uint32_t text, uint8_t byte) {
  const uint64_t key = uint64_t{text} << 8 | byte;
  const uint32_t known = longer_.Find(key);
  if (known != NumberMap::kMissing) return known;
  Text made = texts_[text];
  made.parent = text;
  made.byte = byte;
  if (made.in_string) {
    if (made.escaped) {
      made.escaped = false;
    } else if (byte == '\\') {
      made.escaped = true;
    } else if (byte == '"') {
      made.in_string = false;
    }
  } else if (byte == '"') {
    made.in_string = true;
  } else if (byte == '[' || byte == '{') {
    ++made.depth;
  } else if ((byte == ']' || byte == '}') && made.depth > 0) {
    --made.depth;
  } else if (byte == ',') {
    ++made.commas;
  }
  const auto longer = static_cast<uint32_t>(texts_.size());
  texts_.push_back(made);
  longer_.Set(key, longer);
  memory_ += sizeof(Text) + 32;
  return longer;
}

std::string UniqueItems::Spelled(uint32_t text) const {
  std::string spelled;
  for (; text != 0; text = texts_[text].parent) {
    spelled += static_cast<char>(texts_[text].byte);
  }
  std::ranges::reverse(spelled);
  return spelled;
}

uint32_t UniqueItems::ValueOf(std::string_view text) {
  std::string canonical = CanonicalJson(text);
  memory_ += canonical.size() + 64;
  const auto [value, added] =
      values_.emplace(std::move(canonical), static_cast<uint32_t>(values_.size()));
  if (added) value_texts_.push_back(value->first);
  return value->second;
}

UniqueItems::Track UniqueItems::Append(Track track, uint8_t byte) {
  const Parts parts = tracks_[track];
  const Text& text = texts_[parts.text];
  if (!text.in_string && text.depth == 0) {
    if (byte == ']') return kNone;
    if (byte == ',' && parts.text != 0) {
      const uint32_t value = ValueOf(Spelled(parts.text));
      std::vector<uint32_t> set(sets_[parts.set].begin(), sets_[parts.set].end());
      const auto place = std::ranges::lower_bound(set, value);
      if (place == set.end() || *place != value) set.insert(place, value);
      return Make(sets_.Intern(set), 0);
    }
    if (parts.text == 0 && IsWhite(byte)) return track;
  }
  return Make(parts.set, Longer(parts.text, byte));
}

UniqueItems::Rests UniqueItems::RestsOf(Track track) const {
  const Parts parts = tracks_[track];
  const Text& last = texts_[parts.text];
  const std::string text = Spelled(parts.text);
  Rests rests;
  // Strings without escapes are their own canonical form.
  const bool in_string = last.in_string && last.depth == 0 && text.find('\\') == std::string::npos;
  rests.known = parts.text == 0 || in_string;
  rests.started = in_string;
  if (!rests.known) return rests;
  for (const uint32_t value : sets_[parts.set]) {
    const std::string_view before = value_texts_[value];
    if (before.starts_with(text)) rests.texts.push_back(before.substr(text.size()));
  }
  return rests;
}

bool UniqueItems::LastIsNew(Track track, const Rests& rests, std::string_view more) {
  const bool decides = rests.known && (rests.started || more.starts_with('"')) &&
                       more.find('\\') == std::string_view::npos;
  return decides ? std::ranges::find(rests.texts, more) == rests.texts.end()
                 : LastIsNew(track, more);
}

bool UniqueItems::IsNewForSure(Track track) const {
  const std::string spelled = Spelled(tracks_[track].text);
  const std::string_view text = spelled;
  // Strings without escapes stand in the canonical form as they are.
  std::vector<std::string_view> strings, names;
  int arrays = 0;
  char before = 0;             // the last byte that is no space and in no string
  bool ends_in_value = false;  // whether nothing but spaces came after such a string
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (IsWhite(c)) continue;
    if (c != '"') {
      arrays += c == '[' ? 1 : c == ']' ? -1 : 0;
      if (c == ':' && (strings.empty() || before != '"')) return false;
      if (c == ':') {
        // A name that comes twice has its last value: the first may be any.
        if (std::ranges::find(names, strings.back()) != names.end()) return false;
        names.push_back(strings.back());
      }
      before = c;
      ends_in_value = false;
      continue;
    }
    const size_t end = text.find_first_of("\"\\", i + 1);
    if (end != std::string_view::npos && text[end] == '\\') return false;
    strings.push_back(text.substr(i, end == std::string_view::npos ? end : end + 1 - i));
    ends_in_value = before == ':';
    before = '"';
    if (end == std::string_view::npos) break;
    i = end;
  }
  if (!ends_in_value || arrays > 0) return false;
  return std::ranges::all_of(sets_[tracks_[track].set], [&](uint32_t value) {
    return std::ranges::any_of(strings, [&](std::string_view one) {
      return value_texts_[value].find(one) == std::string_view::npos;
    });
  });
}

size_t UniqueItems::CountKnown(Track track) const {
  return sets_[tracks_[track].set].size() + texts_[tracks_[track].text].commas;
}

bool UniqueItems::LastIsNew(Track track, std::string_view more) {
  if (more.empty()) {
    const uint32_t known = is_new_.Find(track);
    if (known != NumberMap::kMissing) return known == 1;
  }
  const std::string text = Spelled(tracks_[track].text) + std::string(more);
  // The arrays and objects that are open; the first is the array that the track is about.
  struct Level {
    size_t item;                          // where the item that is being read starts
    std::vector<std::string_view> items;  // those before it
  };
  std::vector<Level> levels(1);
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      levels.push_back({i + 1, {}});
    } else if ((c == ']' || c == '}') && levels.size() > 1) {
      levels.pop_back();
    } else if (c == ',') {
      Level& level = levels.back();
      level.items.push_back(std::string_view(text).substr(level.item, i - level.item));
      level.item = i + 1;
    }
  }
  const Level& level = levels.back();
  const std::string last = CanonicalJson(std::string_view(text).substr(level.item));
  bool is_new = true;
  if (levels.size() == 1) {
    const auto value = values_.find(last);
    is_new = value == values_.end() ||
             !std::ranges::binary_search(sets_[tracks_[track].set], value->second);
  }
  for (const std::string_view item : level.items) is_new = is_new && CanonicalJson(item) != last;
  if (more.empty()) is_new_.Set(track, is_new ? 1 : 0);
  return is_new;
}

}  // namespace loopspec::grammar
