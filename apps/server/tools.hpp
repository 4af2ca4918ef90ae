// Functions that a model may call: how they are told to it, how it is made to call one, how calls are read.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attend/llm/chat_template.hpp"
#include "io/json.hpp"
#include "llm/constrain/byte_grammar.hpp"

namespace attend::server {

struct Tool {
  std::string name;
  std::string text;     // the whole definition as the client gave it, on one line
  io::Json parameters;  // its schema; null: none
};

struct ToolCall {
  std::string name, arguments;  // arguments: a JSON object as text
};

// What is said behind the system message, in the words that Qwen's and MiniMind's templates use.
std::string tools_text(const std::vector<Tool>& tools);
// Calls that an assistant made earlier, as the same templates write them behind `content`.
std::string calls_text(const std::string& content, const std::vector<ToolCall>& calls);

// An answer that is one call of one of these tools, and nothing else.
std::shared_ptr<const llm::ByteGrammar> call_grammar(const std::vector<Tool>& tools);

// The calls in an answer, and what it says besides. Text that only looks like a call stays text.
struct ParsedAnswer {
  std::string content;
  std::vector<ToolCall> calls;
};
ParsedAnswer parse_calls(std::string_view answer, const std::vector<Tool>& tools);

// How much of a growing answer can no longer become part of a call.
std::size_t surely_content(std::string_view answer);

}  // namespace attend::server
