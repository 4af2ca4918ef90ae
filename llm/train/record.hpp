// One document of training data, and the forms that a row can have.
#pragma once

#include <string>
#include <vector>

#include "attend/llm/chat_template.hpp"
#include "io/json.hpp"
#include "llm/train/dataset.hpp"

namespace attend::llm {

// One document as a file holds it.
struct Record {
  DataKind kind = DataKind::text;
  std::string text;                     // of a text
  std::vector<Message> chat, rejected;  // of a chat; of a pair, chat is the better one
  std::vector<std::string> tools;       // of both: definitions, as JSON
  double nats = 0;                      // information in it, if the row states it
  std::string place;                    // file and line, for messages
  const char* form = "text";            // the name of its form, for counts
};

// A row as a record. Its form is found by the names of its fields; `column`, if not "", names the field that holds a
// text, and no other form is looked for. FileError begins with `place`.
Record read_record(const io::Json& row, const std::string& place, const std::string& column = "");

// A line for each form, as help shows them.
std::string forms_help();

}  // namespace attend::llm
