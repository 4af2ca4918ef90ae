// Tokens that are found in the text before the model sees it: <|im_start|>, [SEP], <think>.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "llm/text/pattern_finder.hpp"

namespace attend::llm {

struct AddedToken {
  std::string content;
  std::int32_t id = 0;
  bool special = false, single_word = false, lstrip = false, rstrip = false;
  bool normalized = false;  // looked for in the normalised text
};

// A half-open range of bytes.
struct ByteRange {
  std::size_t begin, end;
};

// Tokens of one kind: those looked for in the text as it is, or those looked for in the normalised text.
class AddedTokens {
 public:
  struct Segment {
    std::size_t begin, end;
    std::int32_t token;  // -1: text
  };

  void add(std::string_view pattern, AddedToken token);
  void finish() { finder_.finish(); }  // after the last
  bool empty() const { return finder_.empty(); }

  // The leftmost of the longest, as Hugging Face does. Special tokens are looked for unless `parse_special` is false;
  // one that is passed over is passed over as a whole.
  void split(std::string_view text, bool parse_special, std::vector<Segment>& segments) const;
  // Special tokens within `trusted` alone, each wholly within one range; ranges ascend.
  void split(std::string_view text, std::span<const ByteRange> trusted, std::vector<Segment>& segments) const;

 private:
  // A text on its way into segments: what comes before `done` is in them.
  struct Cut {
    std::string_view text;
    std::vector<Segment>& segments;
    std::size_t done = 0, spaces_begin = 0, spaces_end = 0;  // a run of white space that was read already
  };
  void take(Cut& cut, std::size_t begin, std::size_t end, const AddedToken& token) const;
  static std::size_t after_spaces(Cut& cut, std::size_t place);
  static bool alone(std::string_view text, std::size_t begin, std::size_t end);
  // room(place): the most bytes that a special token may have there.
  template <class Room, class Skip>
  void split(std::string_view text, const Room& room, const Skip& skip, std::vector<Segment>& segments) const;

  PatternFinder finder_;  // of places in tokens_
  std::vector<AddedToken> tokens_;
};

}  // namespace attend::llm
