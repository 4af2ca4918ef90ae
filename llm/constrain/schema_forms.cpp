// What can be decided about schemas without looking at a value.
#include "llm/constrain/schema_forms.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "attend/error.hpp"
#include "io/json_text.hpp"

namespace attend::llm {
namespace {

using io::Json;

constexpr int kMaxMerges = 64;  // of allOf and $ref in each other
constexpr std::size_t kMaxWork = std::size_t{1} << 22;

Json* find(Json::Object& object, std::string_view key) {
  const auto found = std::find_if(object.begin(), object.end(), [&](const auto& field) { return field.first == key; });
  return found == object.end() ? nullptr : &found->second;
}

std::string unescaped(std::string text) {
  for (const auto& [from, to] : {std::pair<std::string, std::string>("~1", "/"), {"~0", "~"}})
    for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
      text.replace(at, from.size(), to);
  return text;
}

const Json* element(const Json::Array& array, const std::string& text) {
  if (text.empty() || text.size() > 6 || text.find_first_not_of("0123456789") != std::string::npos) return nullptr;
  const auto i = static_cast<std::size_t>(std::stoul(text));
  return i < array.size() ? &array[i] : nullptr;
}

// The types that a value of the schema can have; a whole number is a number.
std::set<std::string> possible_types(const Json& schema, const std::string& where) {
  static const std::vector<std::string> kTypes = {"object", "array", "string", "number", "boolean", "null"};
  std::set<std::string> possible;
  if (const std::vector<const Json*> literals = literals_of(schema, where); !literals.empty()) {
    for (const Json* value : literals)
      for (const std::string& type : kTypes)
        if (is_of_type(*value, type)) possible.insert(type);
    return possible;
  }
  for (const std::string& type : types_of(schema, where)) possible.insert(type == "integer" ? "number" : type);
  if (possible.empty()) possible.insert(kTypes.begin(), kTypes.end());
  return possible;
}

bool have_common(const std::set<std::string>& a, const std::set<std::string>& b) {
  return std::any_of(a.begin(), a.end(), [&](const std::string& one) { return b.contains(one); });
}

std::set<std::string> texts_of(const std::vector<const Json*>& values) {
  std::set<std::string> texts;
  for (const Json* value : values) texts.insert(io::json_text(*value));
  return texts;
}

// What is compared of an alternative of oneOf; found out once.
struct Alternative {
  const Json* schema;
  std::set<std::string> types, literals;
  std::map<std::string, std::set<std::string>> tags;  // properties with enum or const
  std::set<std::string> required{};                   // of them, to tell it from others
};

bool told_apart(Alternative& a, Alternative& b) {
  if (!have_common(a.types, b.types)) return true;
  if (!a.literals.empty() && !b.literals.empty()) return !have_common(a.literals, b.literals);
  if (a.types != std::set<std::string>{"object"} || b.types != a.types) return false;
  for (const auto& [name, values] : a.tags) {
    const auto other = b.tags.find(name);
    if (other == b.tags.end() || have_common(values, other->second)) continue;
    a.required.insert(name);
    b.required.insert(name);
    return true;
  }
  return false;
}

}  // namespace

void refuse_schema(const std::string& where, const std::string& what) {
  throw InvalidArgument(where + ": " + what);
}

bool is_annotation(std::string_view keyword) {
  static const std::set<std::string_view> kAnnotations = {
      "title",     "description",   "default",    "examples",        "example",          "$schema",
      "$id",       "$comment",      "deprecated", "$defs",           "definitions",      "readOnly",
      "writeOnly", "discriminator", "$anchor",    "contentEncoding", "contentMediaType", "externalDocs"};
  return kAnnotations.contains(keyword) || keyword.starts_with("x-");
}

std::vector<const Json*> literals_of(const Json& schema, const std::string& where) {
  std::vector<const Json*> literals;
  if (const Json* only = schema.find("const")) literals.push_back(only);
  if (const Json* values = schema.find("enum")) {
    if (values->array() == nullptr || values->array()->empty())
      refuse_schema(where + ".enum", "expected an array of values");
    for (const Json& value : *values->array()) literals.push_back(&value);
  }
  return literals;
}

std::vector<std::string> types_of(const Json& schema, const std::string& where) {
  static const std::set<std::string_view> kTypes = {"object",  "array",   "string", "number",
                                                    "integer", "boolean", "null"};
  const Json* type = schema.find("type");
  std::vector<std::string> types;
  if (type == nullptr) return types;
  const auto add = [&](const Json& one) {
    if (one.string() == nullptr) refuse_schema(where + ".type", "expected a name of a type, or an array of them");
    if (!kTypes.contains(*one.string()))
      refuse_schema(where + ".type", "got " + io::json_quoted(one.string()->substr(0, 100)) +
                                         ", expected object, array, string, number, integer, boolean or null");
    if (std::find(types.begin(), types.end(), *one.string()) == types.end()) types.push_back(*one.string());
  };
  if (type->array() == nullptr || type->array()->empty()) {
    add(*type);
  } else {
    for (const Json& one : *type->array()) add(one);
  }
  return types;
}

bool is_of_type(const Json& value, const std::string& type) {
  double x = 0;
  if (type == "object") return value.object() != nullptr;
  if (type == "array") return value.array() != nullptr;
  if (type == "string") return value.string() != nullptr;
  if (type == "number") return value.number(x);
  if (type == "integer") return value.integer() != nullptr;
  if (type == "boolean") return value.boolean() != nullptr;
  return value.is_null();
}

const Json& SchemaForms::target(const std::string& reference, const std::string& where) const {
  const auto refuse = [&](const std::string& what) { refuse_schema(where + ".$ref", what); };
  if (!reference.starts_with("#"))
    refuse("got " + io::json_quoted(reference) + ", expected a place in this schema such as \"#/$defs/name\"");
  const Json* target = root_;
  for (std::string path = reference.substr(1); !path.empty();) {
    if (path.front() != '/') refuse("got " + io::json_quoted(reference) + ", expected '/' after '#'");
    const std::size_t end = std::min(path.find('/', 1), path.size());
    const std::string key = path.substr(1, end - 1);
    const Json* next = target->array() != nullptr ? element(*target->array(), key) : target->find(unescaped(key));
    if (next == nullptr) refuse("there is no " + io::json_quoted(reference));
    target = next;
    path.erase(0, end);
  }
  return *target;
}

void SchemaForms::spend(std::size_t work) {
  work_ += work;
  if (work_ > kMaxWork) refuse_schema("schema", "its allOf and oneOf compare too much; expected fewer parts");
}

void SchemaForms::expect_same(const Json& a, const Json& b, const std::string& where) {
  const std::string of_a = io::json_text(a), of_b = io::json_text(b);
  spend(of_a.size() + of_b.size());
  if (of_a != of_b) refuse_schema(where, "two parts of allOf differ here, which is not supported");
}

void SchemaForms::merge(Json::Object& into, const Json& schema, const std::string& where, int depth) {
  if (depth > kMaxMerges)
    refuse_schema(where.substr(0, 200), "allOf and $ref nest deeper than " + std::to_string(kMaxMerges) + " schemas");
  spend(16);
  if (schema.boolean() != nullptr && *schema.boolean()) return;
  if (schema.object() == nullptr) refuse_schema(where, std::string("got ") + schema.kind() + ", expected an object");
  for (const auto& [key, value] : *schema.object()) {
    if (is_annotation(key)) continue;
    if (key == "$ref") {
      if (value.string() == nullptr) refuse_schema(where + ".$ref", "expected a string");
      merge(into, target(*value.string(), where), where, depth + 1);
    } else if (key == "allOf") {
      if (value.array() == nullptr || value.array()->empty())
        refuse_schema(where + ".allOf", "expected an array of schemas");
      for (std::size_t i = 0; i < value.array()->size(); ++i)
        merge(into, (*value.array())[i], where + ".allOf[" + std::to_string(i) + "]", depth + 1);
    } else {
      merge_keyword(into, key, value, where);
    }
  }
}

void SchemaForms::merge_keyword(Json::Object& into, const std::string& key, const Json& value,
                                const std::string& where) {
  spend(into.size());
  Json* known = find(into, key);
  if (known == nullptr) {
    into.emplace_back(key, value);
  } else if (key == "required" && known->array() != nullptr && value.array() != nullptr) {
    spend(value.array()->size());
    auto& names = std::get<Json::Array>(known->value());
    names.insert(names.end(), value.array()->begin(), value.array()->end());
  } else if (key == "properties" && known->object() != nullptr && value.object() != nullptr) {
    auto& properties = std::get<Json::Object>(known->value());
    for (const auto& [name, property] : *value.object()) {
      spend(properties.size());
      const Json* same = find(properties, name);
      if (same == nullptr)
        properties.emplace_back(name, property);
      else
        expect_same(*same, property, where + ".properties." + name);
    }
  } else {
    expect_same(*known, value, where + "." + key);
  }
}

// A part that allows no other properties would forbid those of the other parts.
const Json& SchemaForms::merged(const Json& schema, const std::string& where) {
  Json::Object all;
  merge(all, schema, where, 0);
  const Json* closed = find(all, "additionalProperties");
  if (closed != nullptr && schema.find("allOf") != nullptr && schema.find("allOf")->array()->size() > 1)
    refuse_schema(where, "additionalProperties together with allOf is not supported");
  return keep(Json(std::move(all)));
}

const Json& SchemaForms::resolved(const Json& schema, const std::string& where) {
  const bool plain = schema.find("$ref") == nullptr && schema.find("allOf") == nullptr;
  return plain ? schema : merged(schema, where);
}

std::vector<const Json*> SchemaForms::exclusive(const Json::Array& alternatives, const std::string& where) {
  std::vector<Alternative> all;
  for (std::size_t i = 0; i < alternatives.size(); ++i) {
    const std::string here = where + "[" + std::to_string(i) + "]";
    const Json& schema = resolved(alternatives[i], here);
    Alternative one{.schema = &schema,
                    .types = possible_types(schema, here),
                    .literals = texts_of(literals_of(schema, here)),
                    .tags = {}};
    const Json* properties = schema.find("properties");
    if (properties != nullptr && properties->object() != nullptr)
      for (const auto& [name, property] : *properties->object())
        if (const auto values = literals_of(property, here); !values.empty()) one.tags.emplace(name, texts_of(values));
    all.push_back(std::move(one));
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = i + 1; j < all.size(); ++j) {
      spend(1 + all[i].tags.size() + all[i].literals.size());
      if (!told_apart(all[i], all[j]))
        refuse_schema(where, "a value may be of alternatives " + std::to_string(i) + " and " + std::to_string(j) +
                                 " at once; expected alternatives of different types, or a property whose const or "
                                 "enum differs, or anyOf");
    }
  }
  std::vector<const Json*> schemas;
  for (const Alternative& one : all) {
    if (one.required.empty()) {
      schemas.push_back(one.schema);
      continue;
    }
    Json::Object object = *one.schema->object();
    Json* required = find(object, "required");
    if (required == nullptr) required = &object.emplace_back("required", Json(Json::Array{})).second;
    if (required->array() == nullptr) refuse_schema(where + ".required", "expected an array of names");
    for (const std::string& name : one.required) std::get<Json::Array>(required->value()).push_back(Json(name));
    schemas.push_back(&keep(Json(std::move(object))));
  }
  return schemas;
}

}  // namespace attend::llm
