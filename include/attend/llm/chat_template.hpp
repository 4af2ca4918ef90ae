// Chats as text and as tokens: the templates of the supported families, written out by hand. No Jinja is run.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attend/export.h"
#include "attend/llm/tokenizer.hpp"
#include "attend/state_pointer.hpp"

namespace attend::llm {

// A call of a function that an assistant made.
struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // a JSON object as text
};

struct Message {
  std::string role;  // system, user, assistant, tool
  std::string content;
  std::vector<ToolCall> calls{};  // of an assistant
  std::string call_id{};          // of a tool: the call that it answers
  bool learned = true;            // of an assistant, in training data: whether its tokens are to be predicted
};

// How a family writes calls of functions.
enum class ToolForm {
  none,    // its template has no place for them
  tagged,  // <tool_call>{"name": ..., "arguments": {...}}</tool_call>, one behind the other: Qwen, Hermes, MiniMind
  tagged_list,  // <tool_call>[{"name": ..., "arguments": {...}}, ...]</tool_call>: SmolLM2
  llama,        // {"name": ..., "parameters": {...}}, perhaps behind <|python_tag|>: Llama 3.1 and 3.2
  mistral,      // [TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]
};

// A stretch of a rendered chat: the template's own, or (not trusted) what came in with a message.
struct ChatPart {
  std::string text;
  bool trusted = true;
  std::int64_t answer = -1;  // of training_parts: the message of an assistant that this is written for; -1: prompt
};

struct ChatStyle;  // not a part of the API

class ATTEND_API ChatTemplate {
 public:
  static std::optional<ChatTemplate> named(std::string_view name);  // nothing for a name not among names()
  static std::vector<std::string> names();                          // "chatml", "smollm2", "qwen3", "llama-3", ...
  // The family whose markers stand in the Jinja source, with the system message it states. FileError says what was not
  // recognised and which families are known.
  static ChatTemplate detect(std::string_view jinja_source);

  const std::string& name() const;
  const std::string& default_system() const;  // what it says when the chat has no system message; "" for nothing
  ToolForm tool_form() const;
  bool has_thoughts() const;    // it has a place for <think>
  bool opens_thoughts() const;  // the answer to come begins after a <think> of the prompt
  // Whether the answer to come begins with thoughts: open_thinking of MiniMind's template, enable_thinking of Qwen's.
  // InvalidArgument where the template leaves no choice.
  void set_thinking(bool on);
  // What Hugging Face's apply_chat_template gives. `tools`: the definition of each as JSON, {"type": "function",
  // "function": {"name": ...}}. InvalidArgument for no messages, for roles, calls and tools that the template has no
  // place for, and for an order it refuses.
  std::string render(std::span<const Message> messages, bool add_generation_prompt,
                     std::span<const std::string> tools = {}) const;
  std::vector<ChatPart> parts(std::span<const Message> messages, bool add_generation_prompt,
                              std::span<const std::string> tools = {}) const;
  // The same text in parts that say which of it a model writes: each answer from where the generation prompt ends, and
  // with the end of its turn.
  std::vector<ChatPart> training_parts(std::span<const Message> messages,
                                       std::span<const std::string> tools = {}) const;
  std::vector<std::string> stop_pieces() const;  // the tokens that end an answer

 private:
  explicit ChatTemplate(ChatStyle style);
  StatePointer<std::shared_ptr<const ChatStyle>> style_;
};

enum class ContentTokens {
  plain,    // <|im_end|> inside a message is text: no message forges a turn
  special,  // <|im_end|> inside a message is that token: what Hugging Face does
};

// A chat as tokens. Nothing is put around it but what the template itself brings (<s>, where it has one). Added tokens
// that are not special, such as <think>, are tokens inside messages, too.
ATTEND_API std::vector<Token> encode_chat(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                                          std::span<const Message> messages, bool add_generation_prompt,
                                          ContentTokens content = ContentTokens::plain,
                                          std::span<const std::string> tools = {});

}  // namespace attend::llm
