// Fields of a config.json, read with errors that name them.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>

#include "io/json.hpp"

namespace attend::llm {

class Fields {
 public:
  Fields(const io::Json& object, std::string what) : object_(object), what_(std::move(what)) {
    if (!object.object()) throw io::FileError(what_ + ": is " + object.kind() + ", expected an object");
  }

  const io::Json& object() const { return object_; }
  const std::string& what() const { return what_; }
  [[noreturn]] void refuse(const std::string& field, const std::string& text) const {
    throw io::FileError(what_ + ": \"" + field + "\" " + text);
  }

  // The first of these names that is there and not null.
  const io::Json* find(std::initializer_list<const char*> names, std::string* found = nullptr) const {
    for (const char* name : names) {
      const io::Json* value = object_.find(name);
      if (value == nullptr || value->is_null()) continue;
      if (found != nullptr) *found = name;
      return value;
    }
    return nullptr;
  }

  std::optional<std::int64_t> maybe_integer(std::initializer_list<const char*> names, std::int64_t least,
                                            std::int64_t most) const {
    std::string field;
    const io::Json* value = find(names, &field);
    if (value == nullptr) return std::nullopt;
    const std::int64_t* number = value->integer();
    if (number == nullptr) refuse(field, std::string("is ") + value->kind() + ", expected a whole number");
    if (*number < least || *number > most)
      refuse(field,
             "is " + std::to_string(*number) + ", expected " + std::to_string(least) + " to " + std::to_string(most));
    return *number;
  }
  std::int64_t integer(std::initializer_list<const char*> names, std::int64_t least, std::int64_t most) const {
    const auto number = maybe_integer(names, least, most);
    if (!number) refuse(*names.begin(), "is missing");
    return *number;
  }

  std::optional<double> maybe_number(std::initializer_list<const char*> names, double least, double most) const {
    std::string field;
    const io::Json* value = find(names, &field);
    if (value == nullptr) return std::nullopt;
    double number = 0;
    if (!value->number(number)) refuse(field, std::string("is ") + value->kind() + ", expected a number");
    if (!(number >= least && number <= most))
      refuse(field,
             "is " + io::json_number(number) + ", expected " + io::json_number(least) + " to " + io::json_number(most));
    return number;
  }

  std::optional<bool> maybe_boolean(std::initializer_list<const char*> names) const {
    std::string field;
    const io::Json* value = find(names, &field);
    if (value == nullptr) return std::nullopt;
    const bool* truth = value->boolean();
    if (truth == nullptr) refuse(field, std::string("is ") + value->kind() + ", expected true or false");
    return *truth;
  }

  std::optional<std::string> maybe_string(std::initializer_list<const char*> names) const {
    std::string field;
    const io::Json* value = find(names, &field);
    if (value == nullptr) return std::nullopt;
    const std::string* text = value->string();
    if (text == nullptr) refuse(field, std::string("is ") + value->kind() + ", expected a string");
    return *text;
  }

 private:
  const io::Json& object_;
  std::string what_;
};

}  // namespace attend::llm
