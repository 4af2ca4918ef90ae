// Writes a JSON value.
#include "io/json_text.hpp"

namespace attend::io {
namespace {

struct Form {
  const char *comma, *colon;
  int indent = -1;  // below 0: all on one line
};

void write(const Json& value, const Form& form, int level, std::string& out) {
  const auto line = [&](int at) {
    if (form.indent >= 0)
      out.append("\n").append(static_cast<std::size_t>(form.indent) * static_cast<std::size_t>(at), ' ');
  };
  const auto parts = [&](const auto& all, char open, char close, const auto& write_one) {
    out += open;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (i > 0) out += form.comma;
      line(level + 1);
      write_one(all[i]);
    }
    if (!all.empty()) line(level);
    out += close;
  };
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
    parts(*array, '[', ']', [&](const Json& one) { write(one, form, level + 1, out); });
  } else if (const Json::Object* object = value.object()) {
    parts(*object, '{', '}', [&](const auto& field) {
      out += json_quoted(field.first);
      out += form.colon;
      write(field.second, form, level + 1, out);
    });
  } else {
    out += "null";
  }
}

}  // namespace

std::string json_text(const Json& value, bool spaced) {
  std::string out;
  write(value, spaced ? Form{", ", ": "} : Form{",", ":"}, 0, out);
  return out;
}

std::string json_lines(const Json& value, int indent) {
  std::string out;
  write(value, {",", ": ", indent}, 0, out);
  return out;
}

}  // namespace attend::io
