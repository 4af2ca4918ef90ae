// JSON that is checked once and then read in place: no tree, no copies of strings, whatever the size of the text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "io/json.hpp"

namespace attend::io {

// A value of a text that view_json accepted. The text must outlive it. Reading a value scans its text again, so look up
// each field once.
class JsonView {
 public:
  JsonView() = default;  // null

  bool is_null() const { return text_.front() == 'n'; }
  bool is_string() const { return text_.front() == '"'; }
  bool is_array() const { return text_.front() == '['; }
  bool is_object() const { return text_.front() == '{'; }
  // Empty when it is of another kind. number() also takes whole numbers.
  std::optional<bool> boolean() const;
  std::optional<std::int64_t> integer() const;
  std::optional<double> number() const;
  // The characters of a string; "" of another kind. `buffer` holds them if the text escapes some of them.
  std::string_view string(std::string& buffer) const;
  std::string string() const;

  std::size_t size() const;                                  // of an array or object: its elements; 0 of another kind
  std::optional<JsonView> find(std::string_view key) const;  // empty when it is not an object or has no such key
  const char* kind() const;                                  // "a string", "an object", ... for messages
  std::string_view text() const { return text_; }            // as the file has it

 private:
  friend class JsonCursor;
  friend JsonView view_json(std::string_view, const std::string&, const JsonLimits&);
  explicit JsonView(std::string_view text) : text_(text) {}

  std::string_view text_ = "null";  // of this value, without white space around it
};

// The elements of an array or the members of an object, in the order of the text:
//   for (JsonCursor c(array); c.next();) use(c.value());
class JsonCursor {
 public:
  explicit JsonCursor(const JsonView& container);  // of another kind: no elements
  bool next();                                     // false after the last
  const JsonView& key() const { return key_; }     // of a member
  const JsonView& value() const { return value_; }

 private:
  JsonView take();

  const char *at_ = nullptr, *end_ = nullptr;  // what is left; equal after the last
  bool members_ = false;
  JsonView key_, value_;
};

// Accepts what parse_json accepts, refuses the rest with the same words. Memory grows with the keys of one object only,
// by about 8 bytes each.
JsonView view_json(std::string_view text, const std::string& what, const JsonLimits& limits = {});

}  // namespace attend::io
