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

constexpr std::size_t kMaxIgnored = 16, kMaxPath = 100;  // that are named

// Whether the value is what `expected` says; 1 and 1.0 are the same.
bool same_value(const io::Json& value, const char* expected) {
  double a = 0, b = 0;
  const io::Json other = io::parse_json(expected, "value");
  if (value.number(a) && other.number(b)) return a == b;
  return io::json_text(value) == expected;
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

void IgnoredFields::add(const std::string& path) {
  std::string name;
  for (std::size_t i = 0; i < path.size() && name.size() < kMaxPath; ++i) {
    const char c = path[i];
    name += c > ' ' && c <= '~' && c != ',' ? c : '?';
    if (c == '[')
      while (i + 1 < path.size() && path[i + 1] >= '0' && path[i + 1] <= '9') ++i;
  }
  if (std::find(paths_.begin(), paths_.end(), name) != paths_.end()) return;
  if (paths_.size() < kMaxIgnored)
    paths_.push_back(std::move(name));
  else
    more_ = true;
}

std::string IgnoredFields::text() const {
  std::string all;
  for (const std::string& path : paths_) all += (all.empty() ? "" : ", ") + path;
  return more_ ? all + ", ..." : all;
}

Fields::Fields(const io::Json& object, std::string where, IgnoredFields* ignored)
    : object_(object), where_(std::move(where)), ignored_(ignored) {
  if (object.object() == nullptr) refuse_field(where_, std::string(" is ") + object.kind() + ", expected an object");
}

Fields Fields::inside(const io::Json& object, std::string where) const {
  return Fields(object, std::move(where), ignored_);
}

void Fields::ignore(std::string_view name) {
  if (find(name) != nullptr && ignored_ != nullptr) ignored_->add(path(name));
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
  if (value != nullptr && !same_value(*value, expected))
    refuse_field(path(name), " is " + shown(*value) + ", and only " + expected + " is supported: " + why,
                 "unsupported_value");
}

void Fields::done() const {
  for (const auto& [name, value] : *object_.object()) {
    if (value.is_null() || std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
    if (ignored_ == nullptr)
      refuse_field(path(name.substr(0, 100)),
                   " is not a field that is known here" + io::did_you_mean(name.substr(0, 100), known_),
                   "unknown_field");
    ignored_->add(path(name.substr(0, kMaxPath)));
  }
}

}  // namespace attend::server
