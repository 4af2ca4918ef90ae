// Grading answers, and keeping the learner's progress.
#include "labs/quiz/quiz.hpp"

#include <charconv>
#include <cmath>
#include <optional>
#include <span>

#include "attend/error.hpp"
#include "base/utf8.hpp"
#include "io/atomic_file.hpp"
#include "io/environment.hpp"
#include "io/json.hpp"
#include "io/readable.hpp"

namespace attend::labs {
namespace {

// ASCII for a character that stands for it: full-width forms, spaces of other widths, minus signs; else none.
std::optional<char> ascii_of(char32_t c) {
  if (c < 0x80) return static_cast<char>(c);
  if (c >= 0xFF01 && c <= 0xFF5E) return static_cast<char>(c - 0xFF01 + '!');
  if (c == 0x3000 || c == 0xA0 || c == 0x202F || (c >= 0x2000 && c <= 0x200A)) return ' ';
  if (c == 0x2212 || c == 0x2013 || c == 0xFE63) return '-';
  return {};
}

struct TypedNumber {
  double value = 0;
  bool percent = false;
};

// "1,048,576", "22.6", "1e-3", "50%", "50 %".
std::optional<TypedNumber> read_number(const std::string& typed) {
  std::string text;
  for (const char c : typed)
    if (c != ',' && c != ' ' && c != '_') text += c;
  TypedNumber number;
  number.percent = text.ends_with('%');
  if (number.percent) text.pop_back();
  if (text.starts_with('+') && !text.starts_with("+-")) text.erase(0, 1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number.value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (text.empty() || !whole || !std::isfinite(number.value)) return {};
  return number;
}

int choice_of(const std::string& text) {
  const char c = text.size() == 1 || (text.size() == 2 && text.back() == ')') ? text.front() : '\0';
  return c >= 'a' && c <= 'z' ? c - 'a' : c >= 'A' && c <= 'Z' ? c - 'A' : c >= '1' && c <= '9' ? c - '1' : -1;
}

std::string json_of(const Text& text) {
  io::JsonObject object;
  object.string("en", text.en);
  object.string("zh", text.zh);
  return object.text();
}

}  // namespace

const Question* find_question(std::string_view name) {
  for (const Question& q : all_questions())
    if (q.name == name) return &q;
  return nullptr;
}

std::string plain_answer(const std::string& typed) {
  const std::string whole = utf8_repaired(typed);
  std::string text;
  for (std::size_t place = 0; place < whole.size();) {
    const CodePoint c = code_point(whole, place);
    if (const std::optional<char> ascii = ascii_of(c.value))
      text += *ascii;
    else
      text.append(whole, place, c.bytes);
    place += c.bytes;
  }
  constexpr const char* kSpace = " \t\r\n";
  const std::size_t first = text.find_first_not_of(kSpace);
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

Grade grade(const Question& q, const std::string& typed) {
  const std::string text = plain_answer(typed);
  if (q.kind == Question::Kind::choice) {
    const int n = choice_of(text);
    if (n < 0 || n >= static_cast<int>(q.choices.size())) return Grade::unreadable;
    return static_cast<std::size_t>(n) == q.right ? Grade::right : Grade::wrong;
  }
  const std::optional<TypedNumber> number = read_number(text);
  if (!number) return Grade::unreadable;
  const double value = number->percent && !q.percent ? number->value / 100 : number->value;
  return std::abs(value - q.answer) <= q.tolerance ? Grade::right : Grade::wrong;
}

std::string right_answer(const Question& q, Language language) {
  if (q.kind == Question::Kind::choice)
    return fmt::format("{}) {}", static_cast<char>('a' + static_cast<int>(q.right)), q.choices[q.right].in(language));
  if (q.answer == std::floor(q.answer) && std::abs(q.answer) < 9e15)
    return io::readable_count(static_cast<std::int64_t>(q.answer));
  return fmt::format("{:.4g}", q.answer);
}

std::filesystem::path progress_file() {
  const std::filesystem::path state = io::environment("XDG_STATE_HOME");
  if (state.is_absolute()) return state / "attend" / "quiz.json";
  const std::filesystem::path home = io::environment("HOME");
  return home.is_absolute() ? home / ".local" / "state" / "attend" / "quiz.json" : std::filesystem::path();
}

QuizProgress read_progress(const std::filesystem::path& file) {
  QuizProgress progress;
  if (file.empty() || !std::filesystem::exists(file)) return progress;
  const io::Json json = io::read_json(file);
  const io::Json* questions = json.find("questions");
  const std::string what = file.string() + ": it is no progress of the quiz (remove it to begin anew)";
  if (questions == nullptr || questions->object() == nullptr) throw FileError(what);
  for (const auto& [name, one] : *questions->object()) {
    const auto count = [&, &value = one](const char* key) {
      const io::Json* found = value.find(key);
      if (found == nullptr || found->integer() == nullptr || *found->integer() < 0) throw FileError(what);
      return *found->integer();
    };
    const io::Json* last = one.find("last_right");
    if (last == nullptr || last->boolean() == nullptr) throw FileError(what);
    progress[name] = {count("right"), count("wrong"), *last->boolean()};
  }
  return progress;
}

void write_progress(const std::filesystem::path& file, const QuizProgress& progress) {
  if (file.empty()) return;
  io::JsonObject questions(true), all(true);
  for (const auto& [name, tally] : progress) {
    io::JsonObject one;
    one.number("right", tally.right);
    one.number("wrong", tally.wrong);
    one.truth("last_right", tally.last_right);
    questions.put(name, one.text());
  }
  all.number("version", std::int64_t{1});
  all.put("questions", questions.text());
  std::filesystem::create_directories(file.parent_path());
  const std::string text = all.text();
  io::write_file_atomically(file, std::as_bytes(std::span(text)));
}

std::string quiz_json(const QuizProgress& progress) {
  static const char* const kKinds[] = {"choice", "number", "predict"};
  std::string list;
  for (const Question& q : all_questions()) {
    io::JsonObject one;
    one.string("name", q.name);
    one.string("kind", kKinds[static_cast<std::size_t>(q.kind)]);
    one.string("lab", q.lab);
    one.put("text", json_of(q.text));
    if (q.kind == Question::Kind::choice) {
      std::string choices;
      for (const Text& choice : q.choices) choices += (choices.empty() ? "" : ",") + json_of(choice);
      one.put("choices", "[" + choices + "]");
      one.number("right", static_cast<std::int64_t>(q.right));
    } else {
      one.number("answer", q.answer);
      one.number("tolerance", q.tolerance);
    }
    one.put("why", json_of(q.why));
    one.truth("computed", q.computed);
    const auto found = progress.find(q.name);
    const Tally tally = found == progress.end() ? Tally{} : found->second;
    one.number("right_so_far", tally.right);
    one.number("wrong_so_far", tally.wrong);
    one.truth("last_right", tally.last_right);
    list += (list.empty() ? "" : ",\n") + one.text();
  }
  return "{\"questions\": [" + list + "]}";
}

}  // namespace attend::labs
