// Splits the thoughts at the beginning of an answer, <think>...</think>, off the answer after them.
#pragma once

#include <string>
#include <string_view>

namespace attend::server {

class ThoughtReader {
 public:
  enum class Begin {
    content,  // no thoughts are expected: all of the text is content
    either,   // thoughts if the text begins with <think>
    thoughts  // the prompt ends with <think>
  };
  struct Piece {
    std::string thoughts, content;
  };

  explicit ThoughtReader(Begin begin = Begin::content);

  // What is certain after this text; `last`: nothing more comes. Line ends around the marks belong to neither part.
  Piece take(std::string_view text, bool last);
  // Whether this is a mark that it reads: such a token has to reach it even if it is a special one.
  bool is_mark(std::string_view text) const;

 private:
  enum class At { start, thought, gap, content };
  bool begin();
  bool think(Piece& piece);

  bool reads_;
  At at_;
  bool line_start_;  // of thoughts: only line ends have come
  std::string held_;
};

}  // namespace attend::server
