// Messages of chats as rows of training data hold them: OpenAI's, ShareGPT's, MiniMind's.
#pragma once

#include <string>
#include <vector>

#include "attend/llm/chat_template.hpp"
#include "llm/model/fields.hpp"

namespace attend::llm {

// The messages in the field `name` of a row: a list, also one in a text (row_list), one object, or a text that `role`
// says (for "" an error). Definitions of tools that a message brings are appended to `tools` as JSON.
std::vector<Message> row_messages(const Fields& row, const char* name, const char* role,
                                  std::vector<std::string>& tools);

// Definitions of tools in the first of these fields: a list, or a text that is JSON of one.
std::vector<std::string> row_tools(const Fields& fields, std::initializer_list<const char*> names);

// The list in a field: as it is, or as a text that holds JSON or what Python prints. Null if there is no such field, or
// an empty text.
const io::Json* row_list(const Fields& row, const char* name, io::Json& parsed);

}  // namespace attend::llm
