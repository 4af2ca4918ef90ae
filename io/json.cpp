// The strict reader of JSON, on nlohmann's parser. The only file that includes its header.
#include "io/json.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "base/keyed_hash.hpp"
#include "io/json_syntax.hpp"
#include "io/mapped_file.hpp"

namespace attend::io {
namespace {

using Parser = nlohmann::json;

constexpr int kNumberOverflow = 406;  // nlohmann's number of this error

// Whether a text that strtod reads to its end is a number of JSON as well.
bool has_json_form(std::string_view number) {
  const auto digit_at = [&](std::size_t i) { return i < number.size() && number[i] >= '0' && number[i] <= '9'; };
  const std::size_t first = number.starts_with('-') ? 1 : 0, point = number.find('.');
  const bool leading_zero = digit_at(first) && number[first] == '0' && digit_at(first + 1);
  return digit_at(first) && !leading_zero && (point == number.npos || digit_at(point + 1));
}

// The text with every number beyond the largest double replaced by 1e308: the parser has no way to go on behind one.
std::string without_overflows(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  bool in_string = false;
  for (std::size_t i = 0; i < text.size();) {
    const bool begins_number = !in_string && (text[i] == '-' || (text[i] >= '0' && text[i] <= '9'));
    if (begins_number) {
      const std::size_t end = std::min(text.find_first_not_of("0123456789+-.eE", i), text.size());
      const std::string number(text.substr(i, end - i));
      char* behind = nullptr;
      const double x = std::strtod(number.c_str(), &behind);
      const bool overflows = std::isinf(x) && *behind == '\0' && has_json_form(number);
      out += overflows ? (x < 0 ? "-1e308" : "1e308") : number;
      i = end;
      continue;
    }
    if (text[i] == '"') in_string = !in_string;
    if (in_string && text[i] == '\\' && i + 1 < text.size()) out += text[i++];
    out += text[i++];
  }
  return out;
}

// The keys of an object that is being read, by their places in it.
class KeyTable {
 public:
  // Whether the last key of the object is not among those before it.
  bool add_last(const Json::Object& object) {
    if (object.size() <= kFew) {
      const auto is_last = [&](const auto& field) { return field.first == object.back().first; };
      return std::none_of(object.begin(), std::prev(object.end()), is_last);
    }
    if (object.size() * 2 > slots_.size()) grow(object);
    return add(object, object.size() - 1);
  }

 private:
  static constexpr std::size_t kFew = 8;  // keys that are compared one by one

  bool add(const Json::Object& object, std::size_t index) {
    const std::string& key = object[index].first;
    std::size_t slot = hash_(key) & (slots_.size() - 1);
    for (; slots_[slot] != 0; slot = (slot + 1) & (slots_.size() - 1))
      if (object[slots_[slot] - 1].first == key) return false;
    slots_[slot] = static_cast<std::uint32_t>(index) + 1;
    return true;
  }
  void grow(const Json::Object& object) {
    slots_.assign(std::bit_ceil(object.size() * 2 + 2), 0);
    for (std::size_t i = 0; i + 1 < object.size(); ++i) (void)add(object, i);
  }

  KeyedHash hash_;
  std::vector<std::uint32_t> slots_;  // 0: empty, else a place + 1
};

// Takes any value; keeps the words of the parser's error.
class Syntax : public nlohmann::json_sax<Parser> {
 public:
  std::string error;
  bool overflowed = false;  // the error is a number beyond the largest double

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(std::int64_t) override { return true; }
  bool number_unsigned(std::uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(Parser::binary_t&) override { return true; }
  bool start_array(std::size_t) override { return true; }
  bool start_object(std::size_t) override { return true; }
  bool end_array() override { return true; }
  bool end_object() override { return true; }
  bool key(std::string&) override { return true; }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& e) override {
    overflowed = e.id == kNumberOverflow;
    if (error.empty()) {
      const std::string text = e.what();  // "[json.exception.parse_error.101] parse error at ...: what"
      const std::size_t after = text.find("] ");
      error = (after == std::string::npos ? text : text.substr(after + 2)) + " (byte " + std::to_string(position) + ")";
    }
    return false;
  }
};

// Builds the tree; says no, and why, where a limit is met.
class Builder : public Syntax {
 public:
  explicit Builder(const JsonLimits& limits) : limits_(limits) {}

  Json root;

  bool null() override { return add(Json(nullptr)); }
  bool boolean(bool x) override { return add(Json(x)); }
  bool number_integer(std::int64_t x) override { return add(Json(x)); }
  bool number_unsigned(std::uint64_t x) override {
    if (x > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      return add(Json(static_cast<double>(x)));
    return add(Json(static_cast<std::int64_t>(x)));
  }
  bool number_float(double x, const std::string&) override { return add(Json(x)); }
  bool string(std::string& x) override { return add(Json(std::move(x))); }
  bool binary(Parser::binary_t&) override { return refuse("binary data"); }
  bool start_array(std::size_t) override { return open(Json(Json::Array{})); }
  bool start_object(std::size_t) override { return open(Json(Json::Object{})); }
  bool end_array() override { return close(); }
  bool end_object() override { return close(); }

  bool key(std::string& x) override {
    auto& object = std::get<Json::Object>(open_.back()->value());
    object.emplace_back(std::piecewise_construct, std::forward_as_tuple(std::move(x)), std::tuple<>());
    if (keys_.back().add_last(object)) return true;
    return refuse(json_repeated_key(object.back().first));
  }

 private:
  bool refuse(const std::string& why) {
    error = why;
    return false;
  }
  Json* place() {
    if (open_.empty()) return &root;
    if (auto* array = std::get_if<Json::Array>(&open_.back()->value())) return &array->emplace_back();
    return &std::get<Json::Object>(open_.back()->value()).back().second;
  }
  // Two bytes of text can be a value of forty: a bound on the text alone would not bound the memory.
  bool count() {
    if (++values_ <= limits_.values) return true;
    return refuse(json_too_many_values(limits_));
  }
  bool add(Json value) {
    if (!count()) return false;
    *place() = std::move(value);
    return true;
  }
  bool open(Json value) {
    if (static_cast<int>(open_.size()) == limits_.depth) return refuse(json_too_deep(limits_));
    if (!count()) return false;
    Json* at = place();
    *at = std::move(value);
    keys_.emplace_back();
    open_.push_back(at);  // stays where it is: its parent grows only when it is closed
    return true;
  }
  bool close() {
    open_.pop_back();
    keys_.pop_back();
    return true;
  }

  JsonLimits limits_;
  std::size_t values_ = 0;
  std::vector<Json*> open_;
  std::vector<KeyTable> keys_;  // of each open value
};

// Parses with a handler that make() gives; a number beyond the largest double becomes 1e308.
template <class Make>
auto parsed(std::string_view text, const Make& make) {
  const auto parse = [&](std::string_view from) {
    auto handler = make();
    if (!Parser::sax_parse(from.begin(), from.end(), &handler) && handler.error.empty()) handler.error = "is no JSON";
    return handler;
  };
  auto handler = parse(text);
  if (handler.overflowed) handler = parse(without_overflows(text));
  return handler;
}

}  // namespace

std::string json_too_many_values(const JsonLimits& limits) {
  return "it holds more than " + std::to_string(limits.values) + " values";
}
std::string json_too_deep(const JsonLimits& limits) {
  return "it nests deeper than " + std::to_string(limits.depth) + " levels";
}
std::string json_repeated_key(std::string_view key) {
  constexpr std::size_t kMostQuoted = std::size_t{1} << 16;
  return "the key " + json_quoted(key.substr(0, kMostQuoted)) + " stands twice in one object";
}
std::string json_syntax_error(std::string_view text) {
  return parsed(text, [] { return Syntax(); }).error;
}

void check_json_text(std::string_view text, const std::string& what, const JsonLimits& limits) {
  if (text.size() > limits.bytes)
    throw FileError(what + ": it has " + std::to_string(text.size()) + " bytes, expected at most " +
                    std::to_string(limits.bytes));
  // The parser would take it for the end of the text.
  if (const std::size_t zero = text.find('\0'); zero != text.npos)
    throw FileError(what + ": byte " + std::to_string(zero) + " is zero, expected text");
}

bool Json::number(double& x) const {
  if (const std::int64_t* whole = integer()) {
    x = static_cast<double>(*whole);
    return true;
  }
  if (const double* real = std::get_if<double>(&value_)) {
    x = *real;
    return true;
  }
  return false;
}

const Json* Json::find(std::string_view key) const {
  const Object* fields = object();
  if (fields == nullptr) return nullptr;
  for (const auto& [name, value] : *fields)
    if (name == key) return &value;
  return nullptr;
}

const char* Json::kind() const {
  static constexpr const char* kKinds[] = {"null",     "a boolean", "a whole number", "a number",
                                           "a string", "an array",  "an object"};
  return kKinds[value_.index()];
}

Json parse_json(std::string_view text, const std::string& what, const JsonLimits& limits) {
  check_json_text(text, what, limits);
  Builder builder = parsed(text, [&] { return Builder(limits); });
  if (!builder.error.empty()) throw FileError(what + ": " + builder.error);
  return std::move(builder.root);
}

Json read_json(const std::filesystem::path& path, const JsonLimits& limits) {
  const MappedFile file(path);
  return parse_json(as_text(file.bytes()), path.string(), limits);
}

std::string json_quoted(std::string_view text) {
  return Parser(text).dump(-1, ' ', false, Parser::error_handler_t::replace);
}

std::string json_number(double value) {
  if (!std::isfinite(value)) return "null";
  // The shortest of those that read back to the same.
  char text[40];
  for (const int digits : {15, 17}) {
    (void)std::snprintf(text, sizeof text, "%.*g", digits, value);
    if (std::strtod(text, nullptr) == value) break;
  }
  return text;
}

void JsonObject::put(std::string_view name, std::string_view text) {
  if (!fields_.empty()) fields_ += lines_ ? ",\n  " : ", ";
  fields_ += json_quoted(name);
  fields_ += ": ";
  fields_ += text;
}

std::string JsonObject::text() const {
  std::string text = lines_ ? "{\n  " : "{";
  text += fields_;
  return text += lines_ ? "\n}\n" : "}";
}

}  // namespace attend::io
