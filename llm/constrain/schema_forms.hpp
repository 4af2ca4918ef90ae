// JSON schemas as one schema says them: references followed, allOf merged, oneOf made exclusive.
#pragma once

#include <deque>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.hpp"

namespace attend::llm {

[[noreturn]] void refuse_schema(const std::string& where, const std::string& what);

bool is_annotation(std::string_view keyword);  // it says nothing about values
// The values of enum or const; null when the schema has neither.
std::vector<const io::Json*> literals_of(const io::Json& schema, const std::string& where);
std::vector<std::string> types_of(const io::Json& schema, const std::string& where);
bool is_of_type(const io::Json& value, const std::string& type);

// The schemas that it makes live as long as it does.
class SchemaForms {
 public:
  explicit SchemaForms(const io::Json& root) : root_(&root) {}

  // "#", "#/$defs/name", "#/properties/a/items".
  const io::Json& target(const std::string& reference, const std::string& where) const;
  // Of a schema with allOf, or with $ref and other keywords next to it: all in one.
  const io::Json& merged(const io::Json& schema, const std::string& where);
  // Alternatives of oneOf such that no value is of two: what tells them apart becomes required.
  std::vector<const io::Json*> exclusive(const io::Json::Array& alternatives, const std::string& where);

 private:
  const io::Json& resolved(const io::Json& schema, const std::string& where);
  void merge(io::Json::Object& into, const io::Json& schema, const std::string& where, int depth);
  void merge_keyword(io::Json::Object& into, const std::string& key, const io::Json& value, const std::string& where);
  void expect_same(const io::Json& a, const io::Json& b, const std::string& where);
  void spend(std::size_t work);  // comparisons: a short schema must not ask for many
  const io::Json& keep(io::Json schema) { return made_.emplace_back(std::move(schema)); }

  const io::Json* root_;
  std::deque<io::Json> made_;
  std::size_t work_ = 0;
};

}  // namespace attend::llm
