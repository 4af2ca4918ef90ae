// What every conversation does: keeps the messages, obeys commands, wraps text.
#include "conversation.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include "io/closest.hpp"
#include "io/environment.hpp"
#include "io/file_error.hpp"
#include "io/json.hpp"
#include "line_reader.hpp"
#include "llm/text/unicode.hpp"
#include "screen.hpp"
#include "terminal_lines.hpp"

namespace attend::cli {

const char* const kConversationCommands =
    "  /reset          forget the conversation; what the model was told first (--system) stays\n"
    "  /system TEXT    forget it, and tell the model TEXT first; without TEXT, nothing\n"
    "  /stats          tokens, rates and memory so far\n"
    "  /help           these lines\n"
    "  /quit           end (so does Ctrl-D)\n"
    "  Ctrl-C          stops an answer; at the prompt it ends the program\n";

Conversation::Conversation(std::string system) : system_(std::move(system)) {
  const std::string_view terminal = io::environment("TERM");
  on_terminal_ = ::isatty(STDOUT_FILENO) == 1 && !terminal.empty() && terminal != "dumb";
  reset();
}

void Conversation::reset() {
  messages_.clear();
  if (!system_.empty()) messages_.push_back({"system", system_});
}

void Conversation::set_system(std::string text) {
  system_ = std::move(text);
  reset();
}

void Conversation::say(const std::string& text) {
  if (!is_utf8(text)) {
    note("(that line is not UTF-8: it was not sent)\n");
    return;
  }
  messages_.push_back({"user", text});
  const std::optional<std::string> said = answer(messages_);
  if (said)
    messages_.push_back({"assistant", *said});
  else
    messages_.pop_back();
}

void Conversation::note(const std::string& text) const {
  draw::WrappedText wrapped;
  show(wrapped, text);
}

void Conversation::show(draw::WrappedText& wrapped, const std::string& text) const {
  fmt::print("{}",
             on_terminal_ ? wrapped.put(io::printable_text(text), look_at_screen(false).columns) : for_screen(text));
}

namespace {

// False when the conversation is over.
bool obey(Conversation& conversation, const std::string& line) {
  const std::string command = line.substr(0, line.find(' '));
  if (command == "/quit" || command == "/exit") return false;
  if (command == "/reset") {
    conversation.reset();
    conversation.note("(a new conversation)\n");
  } else if (command == "/system") {
    conversation.set_system(line.size() > command.size() ? line.substr(command.size() + 1) : "");
    conversation.note("(a new conversation)\n");
  } else if (command == "/stats") {
    conversation.stats();
  } else if (command == "/help") {
    conversation.note(kConversationCommands);
  } else {
    const std::vector<std::string> known = {"/reset", "/system", "/stats", "/help", "/quit", "/exit"};
    conversation.note(fmt::format("(there is no command {}{})\n{}", io::json_quoted(command),
                                  io::did_you_mean(command, known), kConversationCommands));
  }
  return true;
}

}  // namespace

void converse(Conversation& conversation) {
  const bool asks = ::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1;
  std::optional<LineReader> reader;
  if (asks) {
    reader.emplace("> ", look_at_screen(true).colours != draw::Colours::none);
    fmt::print("Type a message; /help lists commands.\n");
  }
  while (true) {
    if (asks) fmt::print("\n");
    const std::optional<std::string> line = asks ? reader->read() : read_plain_line("");
    if (!line) break;
    if (line->find_first_not_of(" \t\r") == std::string::npos) continue;
    if (line->front() != '/')
      conversation.say(*line);
    else if (!obey(conversation, *line))
      return;
  }
  if (asks) fmt::print("\n");
}

}  // namespace attend::cli
