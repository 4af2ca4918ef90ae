// JSON, read strictly: every limit is checked before memory is spent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "io/file_error.hpp"

namespace attend::io {

// A value that does not change. Objects keep the order of the text.
class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;
  using Value = std::variant<std::nullptr_t, bool, std::int64_t, double, std::string, Array, Object>;

  Json() = default;
  explicit Json(Value value) : value_(std::move(value)) {}

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(value_); }
  // Null when it is of another kind. number() also takes whole numbers.
  const bool* boolean() const { return std::get_if<bool>(&value_); }
  const std::int64_t* integer() const { return std::get_if<std::int64_t>(&value_); }
  const std::string* string() const { return std::get_if<std::string>(&value_); }
  const Array* array() const { return std::get_if<Array>(&value_); }
  const Object* object() const { return std::get_if<Object>(&value_); }
  bool number(double& x) const;

  const Json* find(std::string_view key) const;  // null when it is no object or has no such key
  const char* kind() const;                      // "a string", "an object", ... for messages
  Value& value() { return value_; }

 private:
  Value value_ = nullptr;
};

struct JsonLimits {
  std::size_t bytes = std::size_t{64} << 20;
  int depth = 64;
  std::size_t values = std::size_t{1} << 22;  // the largest tokenizer.json known has two million
};

// UTF-8, one value and nothing after it but white space, no key twice in an object. A whole number beyond int64 is a
// number that is not whole: whoever needs it refuses it by name, everybody else reads on; one beyond double becomes
// 1e308. FileError begins with `what` and names the place.
Json parse_json(std::string_view text, const std::string& what, const JsonLimits& limits = {});

Json read_json(const std::filesystem::path& path, const JsonLimits& limits = {});  // of a whole file

std::string json_number(
    double value);  // so that it reads back to the same bits; null for what JSON has no way to write
std::string json_quoted(std::string_view text);  // as JSON writes it, quotes included; broken UTF-8 is replaced

// An object to be written, a field at a time: on one line, or with a line for each field.
class JsonObject {
 public:
  explicit JsonObject(bool lines = false) : lines_(lines) {}
  // `text` is a value as JSON writes it.
  void put(std::string_view name, std::string_view text);
  void number(std::string_view name, std::int64_t value) { put(name, std::to_string(value)); }
  void number(std::string_view name, double value) { put(name, json_number(value)); }
  void truth(std::string_view name, bool value) { put(name, value ? "true" : "false"); }
  void string(std::string_view name, std::string_view value) { put(name, json_quoted(value)); }
  std::string text() const;  // with a line end where it has lines

 private:
  bool lines_;
  std::string fields_;
};

}  // namespace attend::io
