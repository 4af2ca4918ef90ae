// Fields by name, with sentences for what is wrong.
#include "apps/server/fields.hpp"

#include <algorithm>

#include "io/closest.hpp"
#include "io/json_text.hpp"

namespace attend::server {
namespace {

std::string shown(const io::Json& value) {
  const std::string text = io::json_text(value);
  return text.size() <= 100 ? text : std::string(value.kind());
}

}  // namespace

void refuse_field(const std::string& field, const std::string& message, const std::string& code) {
  throw RequestError({.status = 400, .message = field + message, .param = field, .code = code});
}

io::Json parse_body(const Request& request) {
  if (request.body.find_first_not_of(" \t\r\n") == std::string::npos)
    throw RequestError({.status = 400, .message = "the body is empty, expected a JSON object", .code = "invalid_json"});
  try {
    io::Json body =
        io::parse_json(request.body, "the body", {.bytes = kBodyBytes, .depth = kJsonDepth, .values = 1 << 18});
    if (body.object() != nullptr) return body;
    throw RequestError({.status = 400,
                        .message = std::string("the body is ") + body.kind() + ", expected a JSON object",
                        .code = "invalid_json"});
  } catch (const FileError& error) {
    throw RequestError({.status = 400, .message = error.what(), .code = "invalid_json"});
  }
}

Fields::Fields(const io::Json& object, std::string where) : object_(object), where_(std::move(where)) {
  if (object.object() == nullptr) refuse_field(where_, std::string(" is ") + object.kind() + ", expected an object");
}

std::string Fields::path(std::string_view name) const {
  return where_.empty() ? std::string(name) : where_ + "." + std::string(name);
}

const io::Json* Fields::find(std::string_view name) {
  known_.emplace_back(name);
  const io::Json* value = object_.find(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

const io::Json& Fields::need(std::string_view name, const char* expected) {
  const io::Json* value = find(name);
  if (value == nullptr) refuse_field(path(name), std::string(" is missing, expected ") + expected, "missing_field");
  return *value;
}

std::string Fields::text(std::string_view name, const std::string& otherwise) {
  const io::Json* value = find(name);
  if (value == nullptr) return otherwise;
  if (value->string() == nullptr) refuse_field(path(name), " is " + shown(*value) + ", expected a string");
  return *value->string();
}

bool Fields::truth(std::string_view name, bool otherwise) {
  const io::Json* value = find(name);
  if (value == nullptr) return otherwise;
  if (value->boolean() == nullptr) refuse_field(path(name), " is " + shown(*value) + ", expected true or false");
  return *value->boolean();
}

std::int64_t Fields::whole(std::string_view name, std::int64_t otherwise, std::int64_t least, std::int64_t most) {
  const io::Json* value = find(name);
  if (value == nullptr) return otherwise;
  if (value->integer() == nullptr || *value->integer() < least || *value->integer() > most)
    refuse_field(path(name), " is " + shown(*value) + ", expected a whole number from " + std::to_string(least) +
                                 " to " + std::to_string(most));
  return *value->integer();
}

double Fields::real(std::string_view name, double otherwise, double least, double most) {
  const io::Json* value = find(name);
  if (value == nullptr) return otherwise;
  double x = 0;
  if (!value->number(x) || !(x >= least && x <= most))
    refuse_field(path(name), " is " + shown(*value) + ", expected a number from " + io::json_number(least) + " to " +
                                 io::json_number(most));
  return x;
}

void Fields::only(std::string_view name, const char* expected, const char* why) {
  const io::Json* value = find(name);
  if (value != nullptr && io::json_text(*value) != expected)
    refuse_field(path(name), " is " + shown(*value) + ", and only " + expected + " is supported: " + why,
                 "unsupported_value");
}

void Fields::done() const {
  for (const auto& [name, unused] : *object_.object())
    if (std::find(known_.begin(), known_.end(), name) == known_.end())
      refuse_field(path(name.substr(0, 100)),
                   " is not a field that is known here" + io::did_you_mean(name.substr(0, 100), known_),
                   "unknown_field");
}

}  // namespace attend::server
