// Grammars of JSON: any value, or what a JSON schema describes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "io/json.hpp"
#include "llm/constrain/byte_grammar.hpp"

namespace attend::llm {

// Any object.
std::shared_ptr<const ByteGrammar> json_object_grammar();

// Values that a schema allows, its properties in the order of the schema. The keywords are those of
// docs/guide/serve.md; properties that are not named are written only where a schema is given for them and no others
// are. Where a keyword is kept to in part, what is written is a value of the schema, but not each value can be written.
// InvalidArgument names the keyword that is not supported, and its place.
std::shared_ptr<const ByteGrammar> json_schema_grammar(const io::Json& schema);

// A value of a schema between two texts, such as a call of a function; `where` names it in errors.
struct WrappedSchema {
  std::string before;
  io::Json schema;
  std::string after, where;
};
// One of them, or several behind each other.
struct Repeated {
  std::string before{}, between{}, after{};
  std::int64_t most = 1;
};
std::shared_ptr<const ByteGrammar> wrapped_schemas_grammar(std::span<const WrappedSchema> schemas,
                                                           const Repeated& repeated = {});

// A value of a schema, and behind it whatever comes.
std::shared_ptr<const ByteGrammar> open_schema_grammar(const io::Json& schema);

}  // namespace attend::llm
