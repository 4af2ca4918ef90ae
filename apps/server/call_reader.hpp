// Reads an answer as it comes: what is said in it, and the calls of functions, each as soon as it is certain.
#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attend/llm/chat_template.hpp"

namespace attend::server {

// What stands before calls in this form.
const char* call_mark(llm::ToolForm form);

// A call is certain once it has the name of a function that there is, and its arguments begin; until then its text is
// held back, and stays text if it turns out to be none. Whatever the form, an answer that begins with the JSON of a
// call is one, even if the model forgot the marks around it.
class CallReader {
 public:
  struct Piece {
    enum class Kind { content, call, arguments };  // call: a new one; its text is the name of the function
    Kind kind;
    std::string text;
  };

  CallReader(llm::ToolForm form, std::vector<std::string> names,
             std::size_t most = std::numeric_limits<std::size_t>::max());

  void take(std::string_view text);
  void finish();                // nothing more comes: what is no call is content
  std::vector<Piece> pieces();  // since the last time

  std::size_t calls() const { return calls_; }
  // The function whose arguments are being read, by its place among the names.
  std::optional<std::size_t> inside() const { return streaming_ ? name_ : std::nullopt; }

 private:
  enum class At { text, opened, list, object, closing, over };
  enum class In { key_or_end, key, colon, value_start, value, comma_or_end };
  enum class Key { name, arguments, other };

  // Where a JSON value ends, by its quotes and brackets.
  class ValueEnd {
   public:
    enum class Step { more, last, behind, wrong };  // behind: it ended before this byte
    Step take(char c);

   private:
    Step bracket(char c);
    std::string open_;
    bool string_ = false, escaped_ = false;
    std::size_t scalar_ = 0;
  };

  void step(char c);
  void text(char c);
  void say(char c);
  void begin(At at, bool marked);
  void opened(char c);
  void list(char c);
  void closing(char c);
  void object(char c);
  void begin_object(bool in_list);
  void begin_value(char c);
  void value(char c);
  void end_value();
  void end_object();
  void commit(std::string_view arguments);
  void fail();
  void put_back(std::string_view text);
  void emit(Piece::Kind kind, std::string_view text);

  const std::string open_, close_;
  const std::vector<std::string> names_;
  const std::size_t most_;
  std::string todo_;  // bytes to be read, from next_ on
  std::size_t next_ = 0;
  std::vector<Piece> pieces_;

  At at_ = At::text;
  bool first_ = true;           // nothing has been said yet
  std::string marker_, space_;  // perhaps the beginning of a mark; white space that a call would swallow
  std::string attempt_;         // what may become a call, from its mark on
  bool marked_ = false, in_list_ = false, any_ = false;  // any_: a call of this list is certain
  std::string gap_;                                      // behind a call
  std::size_t calls_ = 0;

  In in_ = In::key_or_end;
  Key key_ = Key::other;
  std::string word_, value_;
  ValueEnd end_;
  std::optional<std::size_t> name_;
  std::optional<std::string> arguments_;  // that came before the name
  bool streaming_ = false, certain_ = false;
};

}  // namespace attend::server
