// What the families of chat templates differ in.
#pragma once

#include <optional>
#include <string>

#include "attend/llm/chat_template.hpp"

namespace attend::llm {

struct ChatStyle {
  enum class Family {
    chatml,     // <start>role\ncontent<end>\n
    minimind1,  // the same, with the answer's beginning behind every question
    llama3,     // <|start_header_id|>role<|end_header_id|>\n\ncontent<|eot_id|>
    mistral,    // <s>[INST] question [/INST] answer</s>
    zephyr,     // <|role|>\ncontent</s>\n
  };
  enum class Thoughts {
    kept,    // nothing is done about <think>
    latest,  // those of answers before the last question are left out
    always,  // every answer has a block of them, be it empty
  };
  enum class System { anywhere, never, first_question, last_question };

  std::string name;
  Family family = Family::chatml;
  std::string system;  // said when the chat does not begin with a system message; "" for nothing
  std::string start = "<|im_start|>", end = "<|im_end|>";
  bool tool_answers = false;  // tools answer inside a user's turn
  ToolForm tools = ToolForm::tagged;
  Thoughts thoughts = Thoughts::kept;
  bool bare_system = false;  // minimind1: a system message stands there without role and markers
  std::string opening;       // of the answer to come, behind the assistant's header
  std::optional<std::string> opening_thinking{}, opening_at_once{};  // the same where thinking is asked for, or none
  std::string before_question, after_question, before_answer;        // of mistral
  System system_place = System::anywhere;
  bool dated = false;  // llama-3.1 states dates in the system message
};

const std::vector<ChatStyle>& chat_styles();
const ChatStyle* find_chat_style(std::string_view name);     // null for a name that is not among them
ChatStyle detect_chat_style(std::string_view jinja_source);  // ChatTemplate::detect

// The words in which each form tells a model of its tools, and writes its calls.
std::string tools_words(const ChatStyle& style, std::span<const std::string> tools);
std::string calls_words(const ChatStyle& style, std::span<const ToolCall> calls);

}  // namespace attend::llm
