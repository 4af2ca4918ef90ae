// A byte at a time, so that an answer of any length is read once.
#include "apps/server/call_reader.hpp"

#include <algorithm>
#include <utility>

#include "apps/server/router.hpp"
#include "io/json.hpp"

namespace attend::server {
namespace {

constexpr std::size_t kKeyBytes = 64, kNameBytes = 256, kScalarBytes = 64;

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

std::optional<io::Json> parsed(std::string_view text) {
  try {
    return io::parse_json(text, "call", {.bytes = kBodyBytes, .depth = kJsonDepth});
  } catch (const io::FileError&) {
    return std::nullopt;
  }
}

// An object, an object inside a string, or null for none; nothing for what is no arguments.
std::optional<std::string> as_arguments(const std::string& text) {
  const std::optional<io::Json> value = parsed(text);
  if (!value) return std::nullopt;
  if (value->is_null()) return "{}";
  if (value->object() != nullptr) return text;
  const std::string* inner = value->string();
  if (inner == nullptr) return std::nullopt;
  const std::optional<io::Json> object = parsed(*inner);
  return object && object->object() != nullptr ? std::optional(*inner) : std::nullopt;
}

}  // namespace

const char* call_mark(llm::ToolForm form) {
  if (form == llm::ToolForm::llama) return "<|python_tag|>";
  return form == llm::ToolForm::mistral ? "[TOOL_CALLS]" : "<tool_call>";
}

CallReader::ValueEnd::Step CallReader::ValueEnd::take(char c) {
  if (string_) {
    if (escaped_)
      escaped_ = false;
    else if (c == '\\')
      escaped_ = true;
    else if (c == '"')
      string_ = false;
    return !string_ && open_.empty() ? Step::last : Step::more;
  }
  if (scalar_ > 0) {
    if (is_space(c) || c == ',' || c == '}' || c == ']') return Step::behind;
    return ++scalar_ > kScalarBytes ? Step::wrong : Step::more;
  }
  return bracket(c);
}

CallReader::ValueEnd::Step CallReader::ValueEnd::bracket(char c) {
  if (c == '"') {
    string_ = true;
  } else if (c == '{' || c == '[') {
    if (open_.size() >= static_cast<std::size_t>(kJsonDepth)) return Step::wrong;
    open_ += c;
  } else if (c == '}' || c == ']') {
    if (open_.empty() || open_.back() != (c == '}' ? '{' : '[')) return Step::wrong;
    open_.pop_back();
    return open_.empty() ? Step::last : Step::more;
  } else if (open_.empty()) {
    if (is_space(c) || c == ',' || c == ':') return Step::wrong;
    scalar_ = 1;
  }
  return Step::more;
}

CallReader::CallReader(llm::ToolForm form, std::vector<std::string> names, std::size_t most)
    : open_(call_mark(form)),
      close_(form == llm::ToolForm::llama || form == llm::ToolForm::mistral ? "" : "</tool_call>"),
      names_(std::move(names)),
      most_(most) {}

void CallReader::take(std::string_view text) {
  todo_ = text;
  next_ = 0;
  while (next_ < todo_.size()) step(todo_[next_++]);
  todo_.clear();
}

std::vector<CallReader::Piece> CallReader::pieces() {
  return std::exchange(pieces_, {});
}

void CallReader::finish() {
  if (at_ == At::over) return;
  // Behind a call only white space and the beginning of its end are held.
  const std::string rest = at_ == At::text ? marker_ : at_ == At::closing || certain_ ? "" : attempt_;
  if (!rest.empty())
    emit(Piece::Kind::content, space_ + rest);
  else if (calls_ == 0)
    emit(Piece::Kind::content, space_);
  at_ = At::over;
  streaming_ = false;
}

void CallReader::emit(Piece::Kind kind, std::string_view text) {
  if (text.empty()) return;
  if (kind != Piece::Kind::call && !pieces_.empty() && pieces_.back().kind == kind)
    pieces_.back().text += text;
  else
    pieces_.push_back({kind, std::string(text)});
}

void CallReader::put_back(std::string_view text) {
  const std::size_t room = std::min(next_, text.size());
  todo_.replace(next_ - room, room, text);
  next_ -= room;
}

void CallReader::step(char c) {
  switch (at_) {
    case At::text:
      return text(c);
    case At::closing:
      return closing(c);
    case At::over:
      return;
    default:
      break;
  }
  if (!certain_) attempt_ += c;
  if (at_ == At::opened)
    opened(c);
  else if (at_ == At::list)
    list(c);
  else
    object(c);
}

// Looks for the mark; what cannot be its beginning is said.
void CallReader::text(char c) {
  marker_ += c;
  if (marker_ == open_) return begin(At::opened, true);
  if (open_.starts_with(marker_)) return;
  const std::string held = std::exchange(marker_, "");
  if (held.size() > 1) put_back(std::string_view(held).substr(1));
  say(held.front());
}

void CallReader::say(char c) {
  if (first_ && (c == '{' || c == '[')) {
    begin(c == '{' ? At::object : At::list, false);
    attempt_ = c;
    if (c == '{') begin_object(false);
    return;
  }
  space_ += c;
  if (is_space(c)) return;
  first_ = false;
  emit(Piece::Kind::content, std::exchange(space_, ""));
}

void CallReader::begin(At at, bool marked) {
  at_ = at;
  marked_ = marked;
  attempt_ = std::exchange(marker_, "");
  certain_ = any_ = in_list_ = false;
}

void CallReader::opened(char c) {
  if (is_space(c)) return;
  if (c == '{') return begin_object(false);
  if (c != '[') return fail();
  at_ = At::list;
}

void CallReader::list(char c) {
  if (is_space(c) || (c == ',' && any_)) return;
  if (c == '{') return begin_object(true);
  // An empty list says that nothing is called; without a mark it may be anything.
  if (c != ']' || (!any_ && !marked_)) return fail();
  at_ = At::closing;
  attempt_.clear();
  gap_.clear();
}

void CallReader::closing(char c) {
  gap_ += c;
  if (is_space(c) || c == ';') return;
  if (c == '{') {
    begin(At::object, false);
    attempt_ = std::exchange(gap_, "");
    return begin_object(false);
  }
  const std::size_t first = gap_.find_first_not_of(" \t\r\n");
  const std::string_view mark = std::string_view(gap_).substr(first);
  if (!close_.empty() && close_.starts_with(mark)) {
    if (mark == close_) at_ = At::text;
    return;
  }
  at_ = At::text;
  put_back(std::exchange(gap_, ""));
}

void CallReader::begin_object(bool in_list) {
  at_ = At::object;
  in_ = In::key_or_end;
  in_list_ = in_list;
  certain_ = streaming_ = false;
  name_.reset();
  arguments_.reset();
}

void CallReader::object(char c) {
  if (in_ == In::value) return value(c);
  if (in_ == In::key) {
    if (c == '"') {
      key_ = word_ == "name" ? Key::name : word_ == "arguments" || word_ == "parameters" ? Key::arguments : Key::other;
      in_ = In::colon;
    } else if (c == '\\' || word_.size() >= kKeyBytes) {
      fail();
    } else {
      word_ += c;
    }
    return;
  }
  if (is_space(c)) return;
  if (in_ == In::value_start) return begin_value(c);
  if (in_ == In::colon) {
    if (c != ':') return fail();
    in_ = In::value_start;
  } else if (c == '}') {
    end_object();
  } else if (in_ == In::comma_or_end) {
    if (c != ',') return fail();
    in_ = In::key_or_end;
  } else {
    if (c != '"') return fail();
    word_.clear();
    in_ = In::key;
  }
}

void CallReader::begin_value(char c) {
  in_ = In::value;
  end_ = {};
  value_.clear();
  if (certain_ || (key_ == Key::name && name_) || (key_ == Key::arguments && arguments_)) key_ = Key::other;
  if (key_ == Key::arguments && name_ && c == '{') {
    commit("");
    streaming_ = true;
  }
  value(c);
}

void CallReader::value(char c) {
  const ValueEnd::Step step = end_.take(c);
  if (step == ValueEnd::Step::wrong) return fail();
  if (step != ValueEnd::Step::behind) {
    if (streaming_)
      emit(Piece::Kind::arguments, std::string_view(&c, 1));
    else if (key_ != Key::other)
      value_ += c;
    if (value_.size() > (key_ == Key::name ? kNameBytes : kBodyBytes)) return fail();
    if (step == ValueEnd::Step::more) return;
  }
  in_ = In::comma_or_end;
  const At before = at_;
  end_value();
  if (step == ValueEnd::Step::behind && at_ == before) object(c);
}

void CallReader::end_value() {
  if (std::exchange(streaming_, false)) return;
  if (key_ == Key::name) {
    const std::optional<io::Json> name = parsed(value_);
    if (!name || name->string() == nullptr) return fail();
    const auto found = std::find(names_.begin(), names_.end(), *name->string());
    if (found == names_.end()) return fail();
    name_ = static_cast<std::size_t>(found - names_.begin());
    if (arguments_) commit(*arguments_);
  } else if (key_ == Key::arguments) {
    arguments_ = as_arguments(value_);
    if (!arguments_) return fail();
    if (name_) commit(*arguments_);
  }
}

void CallReader::commit(std::string_view arguments) {
  certain_ = any_ = true;
  first_ = false;
  space_.clear();
  attempt_.clear();
  ++calls_;
  emit(Piece::Kind::call, names_[*name_]);
  emit(Piece::Kind::arguments, arguments);
}

void CallReader::end_object() {
  if (!certain_) {
    if (!name_) return fail();
    commit("{}");
  }
  certain_ = false;
  attempt_.clear();
  gap_.clear();
  at_ = calls_ >= most_ ? At::over : in_list_ ? At::list : At::closing;
}

// What was held back is text: its mark, or its first byte, is said as it is, and the rest is read again.
void CallReader::fail() {
  at_ = At::text;
  if (std::exchange(streaming_, false) || certain_) {  // a call with broken arguments ends here
    certain_ = false;
    if (calls_ >= most_)
      at_ = At::over;
    else
      put_back(std::string(1, todo_[next_ - 1]));
    return;
  }
  first_ = false;
  const std::string held = std::exchange(attempt_, "");
  const std::size_t said = marked_ && held.starts_with(open_) ? open_.size() : 1;
  put_back(std::string_view(held).substr(said));
  for (const char c : held.substr(0, said)) say(c);
}

}  // namespace attend::server
