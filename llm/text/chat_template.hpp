// Chat templates of the supported families, written out by hand: no Jinja is run.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "llm/text/tokenizer.hpp"

namespace attend::llm {

struct Message {
  std::string role;  // system, user, assistant, tool
  std::string content;
};

// A stretch of a rendered chat: the template's own, or (not trusted) what came in with a message.
struct ChatPart {
  std::string text;
  bool trusted = true;
};

// What the families differ in.
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
  Thoughts thoughts = Thoughts::kept;
  bool bare_system = false;  // minimind1: a system message stands there without role and markers
  std::string opening;       // of the answer to come, behind the assistant's header
  std::optional<std::string> opening_thinking{}, opening_at_once{};  // the same where thinking is asked for, or none
  std::string before_question, after_question, before_answer;        // of mistral
  System system_place = System::anywhere;
  bool dated = false;  // llama-3.1 states dates in the system message
};

class ChatTemplate {
 public:
  static std::optional<ChatTemplate> named(std::string_view name);  // nothing for a name not among names()
  static std::vector<std::string> names();                          // "chatml", "smollm2", "qwen3", "llama-3", ...
  // The family whose markers stand in the Jinja source, with the system message it states. FileError says what was not
  // recognised and which families are known.
  static ChatTemplate detect(std::string_view jinja_source);

  const std::string& name() const { return style_.name; }
  // Whether the answer to come begins with thoughts: open_thinking of MiniMind's template, enable_thinking of Qwen's.
  // InvalidArgument where the template leaves no choice.
  void set_thinking(bool on);
  // What Hugging Face's apply_chat_template gives, without tools. InvalidArgument for no messages, for roles the
  // template has no place for, and for an order it refuses.
  std::string render(std::span<const Message> messages, bool add_generation_prompt) const;
  std::vector<ChatPart> parts(std::span<const Message> messages, bool add_generation_prompt) const;
  std::vector<std::string> stop_pieces() const;  // the tokens that end an answer

 private:
  explicit ChatTemplate(ChatStyle style) : style_(std::move(style)) {}
  ChatStyle style_;
};

enum class ContentTokens {
  plain,    // <|im_end|> inside a message is text: no message forges a turn
  special,  // <|im_end|> inside a message is that token: what Hugging Face does
};

// A chat as tokens. Nothing is put around it but what the template itself brings (<s>, where it has one). Added tokens
// that are not special, such as <think>, are tokens inside messages, too.
std::vector<Token> encode_chat(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                               std::span<const Message> messages, bool add_generation_prompt,
                               ContentTokens content = ContentTokens::plain);

}  // namespace attend::llm
