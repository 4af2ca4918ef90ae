// Reads the fields of a request's JSON object: each by its type and range, none without being asked for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "apps/server/router.hpp"
#include "io/json.hpp"

namespace attend::server {

// The body as one JSON object; RequestError 400 says what is wrong with it.
io::Json parse_body(const Request& request);

// RequestError 400 for one field.
[[noreturn]] void refuse_field(const std::string& field, const std::string& message, const std::string& code = "");

// Fields of a request that have no effect, each path once and without its indices: "messages[].id". The response and
// the log name them.
class IgnoredFields {
 public:
  void add(const std::string& path);
  // "messages[].id, session_id", in the order they came; printable ASCII of bounded length; "" for none.
  std::string text() const;

 private:
  std::vector<std::string> paths_;
  bool more_ = false;
};

// A field that is null counts as absent. Nothing is ignored silently: done() notes the unknown fields in `ignored`, or
// refuses them where there is none.
class Fields {
 public:
  // `where` is the path to the object, "" for the body itself.
  explicit Fields(const io::Json& object, std::string where = "", IgnoredFields* ignored = nullptr);
  // An object inside this one, whose ignored fields are noted in the same place.
  Fields inside(const io::Json& object, std::string where) const;

  const io::Json* find(std::string_view name);
  const io::Json& need(std::string_view name, const char* expected);
  std::string text(std::string_view name, const std::string& otherwise);
  bool truth(std::string_view name, bool otherwise);
  std::int64_t whole(std::string_view name, std::int64_t otherwise, std::int64_t least, std::int64_t most);
  double real(std::string_view name, double otherwise, double least, double most);
  // Known, and without effect here whatever it is.
  void pass(std::string_view name) { (void)find(name); }
  // Known, without effect here, and noted if it is given.
  void ignore(std::string_view name);
  // Known, and refused unless it is absent or as given: "n is 3, expected 1: why".
  void only(std::string_view name, const char* value, const char* why);
  void done() const;
  std::string path(std::string_view name) const;

 private:
  const io::Json& object_;
  std::string where_;
  IgnoredFields* ignored_;
  std::vector<std::string> known_;
};

}  // namespace attend::server
