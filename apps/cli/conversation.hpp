// A conversation in the terminal, whoever answers: what was said, commands, and text that wraps.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "attend/llm/chat_template.hpp"
#include "draw/wrapped_text.hpp"

namespace attend::cli {

class Conversation {
 public:
  explicit Conversation(std::string system);
  virtual ~Conversation() = default;
  Conversation(const Conversation&) = delete;
  Conversation& operator=(const Conversation&) = delete;

  void reset();
  void set_system(std::string text);
  // Streams the answer; what Ctrl-C leaves of it stays part of the conversation.
  void say(const std::string& text);
  // What the program itself says, wrapped like an answer.
  void note(const std::string& text) const;
  virtual void stats() const = 0;

 protected:
  // Shows the answer to the last of the messages as it comes, and gives it. Nothing when there is none, which has been
  // said.
  virtual std::optional<std::string> answer(const std::vector<llm::Message>& messages) = 0;
  // On a terminal words stay whole at the right edge, which may move; elsewhere the text goes out as it is.
  void show(draw::WrappedText& wrapped, const std::string& text) const;
  bool on_terminal() const { return on_terminal_; }

 private:
  bool on_terminal_;
  std::string system_;  // what the model is told before the conversation
  std::vector<llm::Message> messages_;
};

extern const char* const kConversationCommands;  // for the help
// Reads lines until the end; asks for them where a person sits there.
void converse(Conversation& conversation);

}  // namespace attend::cli
