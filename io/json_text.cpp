// Writes a JSON value.
#include "io/json_text.hpp"

namespace attend::io {
namespace {

void write(const Json& value, bool spaced, std::string& out) {
  const char* comma = spaced ? ", " : ",";
  double number = 0;
  if (const bool* truth = value.boolean()) {
    out += *truth ? "true" : "false";
  } else if (const std::int64_t* whole = value.integer()) {
    out += std::to_string(*whole);
  } else if (value.number(number)) {
    out += json_number(number);
  } else if (const std::string* text = value.string()) {
    out += json_quoted(*text);
  } else if (const Json::Array* array = value.array()) {
    out += '[';
    for (std::size_t i = 0; i < array->size(); ++i) {
      if (i > 0) out += comma;
      write((*array)[i], spaced, out);
    }
    out += ']';
  } else if (const Json::Object* object = value.object()) {
    out += '{';
    for (std::size_t i = 0; i < object->size(); ++i) {
      if (i > 0) out += comma;
      out += json_quoted((*object)[i].first);
      out += spaced ? ": " : ":";
      write((*object)[i].second, spaced, out);
    }
    out += '}';
  } else {
    out += "null";
  }
}

}  // namespace

std::string json_text(const Json& value, bool spaced) {
  std::string out;
  write(value, spaced, out);
  return out;
}

}  // namespace attend::io
