// Arrays whose items all differ. The automaton's threads do not remember what they have read, so
// the text of the outermost such array is kept beside them: the values of its items so far, and the
// text of the item that is being read. Both are kept once each, so that equal tracks have equal
// numbers and a state of the automaton can contain one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "grammar/intern.h"

namespace loopspec::grammar {

// A JSON value's text in the one form that all equal values share: without white space, with
// members sorted by their names, numbers by their value and strings with the fewest escapes.
std::string CanonicalJson(std::string_view text);

class UniqueItems {
 public:
  using Track = uint32_t;
  static constexpr Track kNone = 0;

  UniqueItems();

  // Right after the bracket that opens the array.
  Track Opened() { return Make(0, 0); }
  // After one more byte; kNone when it closes the array.
  Track Append(Track track, uint8_t byte);
  // The innermost array that is open: whether the item that has just been read, the last, is equal
  // to none before it. `more`: bytes that come after the track.
  bool LastIsNew(Track track, std::string_view more = {});
  // LastIsNew for many `more` that end a string of the outermost array: what the values before
  // leave after the text of the item so far.
  struct Rests {
    bool known = false;  // whether the item is such a string, or may become one
    bool started = false;
    std::vector<std::string_view> texts;
  };
  Rests RestsOf(Track track) const;
  bool LastIsNew(Track track, const Rests& rests, std::string_view more);
  // Whether the item that is being read differs from all before it however it goes on, as far as
  // its strings show. Says yes only where its text ends in the value of a member, a string, which
  // may be open, and no array within it is; what follows must not name that member again.
  bool IsNewForSure(Track track) const;
  // At most this many values are excluded.
  size_t CountKnown(Track track) const;
  bool InString(Track track) const { return texts_[tracks_[track].text].in_string; }

  size_t memory() const { return memory_ + sets_.memory() + tracks_by_parts_.memory(); }

 private:
  struct Parts {
    uint32_t set;   // the values of the items so far, ascending
    uint32_t text;  // of the item that is being read
  };
  // The text one byte longer than its parent's.
  struct Text {
    uint32_t parent;
    uint32_t commas;  // in it, outside strings
    uint32_t depth;   // brackets and braces that are open
    uint8_t byte;
    bool in_string, escaped;
  };

  Track Make(uint32_t set, uint32_t text);
  uint32_t Longer(uint32_t text, uint8_t byte);
  std::string Spelled(uint32_t text) const;
  uint32_t ValueOf(std::string_view text);

  std::vector<Parts> tracks_;
  NumberMap tracks_by_parts_;
  std::vector<Text> texts_;  // the first is empty
  NumberMap longer_;         // text and byte to text
  ListTable<uint32_t> sets_;
  std::unordered_map<std::string, uint32_t> values_;  // by canonical text
  std::vector<std::string_view> value_texts_;         // the keys of values_ by number
  NumberMap is_new_;                                  // by track
  size_t memory_ = 0;
};

}  // namespace loopspec::grammar
