// Grammars of JSON: any value, or what a JSON schema describes.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "io/json.hpp"
#include "llm/constrain/byte_grammar.hpp"

namespace attend::llm {

// Any object.
std::shared_ptr<const ByteGrammar> json_object_grammar();

// Values that a schema allows, its properties in the order of the schema. The keywords are those of OpenAI's structured
// outputs: type, properties, required, additionalProperties, items, minItems, maxItems, enum, const, anyOf, $ref and
// $defs; properties that are not named are written only where a schema is given for them and no others are.
// InvalidArgument names the keyword that is not supported, and where it stands.
std::shared_ptr<const ByteGrammar> json_schema_grammar(const io::Json& schema);

// A value of a schema between two texts, such as a call of a function; `where` names it in errors.
struct WrappedSchema {
  std::string before;
  io::Json schema;
  std::string after, where;
};
// One of them.
std::shared_ptr<const ByteGrammar> wrapped_schemas_grammar(std::span<const WrappedSchema> schemas);

}  // namespace attend::llm
