// Sends the conversation to a server and shows the stream that comes back.
#include "chat_server.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <utility>

#include "apps/server/client.hpp"
#include "command.hpp"
#include "conversation.hpp"
#include "interrupt.hpp"
#include "io/environment.hpp"
#include "io/file_error.hpp"
#include "io/json.hpp"
#include "io/readable.hpp"

namespace attend::cli {
namespace {

// What an error response says, or the response itself.
std::string message_of(const std::string& body) {
  try {
    const io::Json answer = io::parse_json(body, "answer");
    const io::Json* error = answer.find("error");
    const io::Json* message = error != nullptr ? error->find("message") : nullptr;
    if (message != nullptr && message->string() != nullptr) return *message->string();
  } catch (const FileError&) {  // words
  }
  return io::printable(body, 300);
}

class RemoteConversation : public Conversation {
 public:
  explicit RemoteConversation(const ServerChat& chat)
      : Conversation(chat.system),
        chat_(chat),
        client_(server::parse_url(chat.url), std::string(io::environment("ATTEND_TOKEN"))) {}

  void stats() const override {
    note(fmt::format("{} answered with {}\n", io::counted(turns_, "question"), io::counted(pieces_, "piece")));
  }

 private:
  std::string body(const std::vector<llm::Message>& messages) const {
    std::string list;
    for (const llm::Message& message : messages) {
      io::JsonObject one;
      one.string("role", message.role);
      one.string("content", message.content);
      list += (list.empty() ? "" : ", ") + one.text();
    }
    const llm::SamplingSettings& s = chat_.sampling;
    io::JsonObject object;
    if (!chat_.model.empty()) object.string("model", chat_.model);
    object.put("messages", "[" + list + "]");
    object.truth("stream", true);
    object.number("max_tokens", chat_.tokens);
    if (s.temperature) object.number("temperature", *s.temperature);
    if (s.top_p) object.number("top_p", *s.top_p);
    if (s.top_k) object.number("top_k", *s.top_k);
    if (s.min_p) object.number("min_p", *s.min_p);
    if (s.repetition_penalty) object.number("repetition_penalty", *s.repetition_penalty);
    if (chat_.presence_penalty != 0) object.number("presence_penalty", chat_.presence_penalty);
    object.number("seed", static_cast<std::int64_t>(chat_.seed) + turns_);
    return object.text();
  }

  std::optional<std::string> answer(const std::vector<llm::Message>& messages) override {
    const InterruptWatch watch;
    std::string said;
    draw::WrappedText shown;
    server::EventReader events;
    std::string failed;
    bool thinking = false;
    const auto on_event = [&](std::string_view data) {
      if (data == "[DONE]") return true;
      const io::Json chunk = io::parse_json(data, "the server's event");
      if (chunk.find("error") != nullptr) {
        failed = message_of(std::string(data));
        return true;
      }
      const io::Json* choices = chunk.find("choices");
      if (choices == nullptr || choices->array() == nullptr || choices->array()->empty()) return true;
      const io::Json* delta = choices->array()->front().find("delta");
      const auto text_of = [&](const char* field) {
        const io::Json* text = delta != nullptr ? delta->find(field) : nullptr;
        return text != nullptr && text->string() != nullptr ? *text->string() : std::string();
      };
      const std::string thoughts = text_of("reasoning_content"), content = text_of("content");
      if (thoughts.empty() && content.empty()) return true;
      // Thoughts look as they do in a chat without a server; they are not sent back.
      if (!thoughts.empty()) show(shown, (std::exchange(thinking, true) ? "" : "<think>\n") + thoughts);
      if (!content.empty()) show(shown, (std::exchange(thinking, false) ? "\n</think>\n\n" : "") + content);
      said += content;
      ++pieces_;
      (void)std::fflush(stdout);
      check_interrupted();
      return true;
    };
    server::Client::Result result;
    try {
      result = client_.request("POST", "/v1/chat/completions", body(messages),
                               [&](std::string_view piece) { return events.push(piece, on_event); });
    } catch (const Interrupted& interrupted) {
      client_.give_up();
      if (interrupted.signal != SIGINT) throw;
      show(shown, " ...");
      result.status = 200;
    }
    if (result.status != 200) {
      note(fmt::format("(the server refused: {})\n", message_of(result.body)));
      return std::nullopt;
    }
    fmt::print("\n");
    if (!failed.empty()) note(fmt::format("(the answer ends here: {})\n", failed));
    ++turns_;
    return said;
  }

  const ServerChat& chat_;
  server::Client client_;
  std::int64_t turns_ = 0, pieces_ = 0;
};

}  // namespace

int chat_with_server(const ServerChat& chat) {
  RemoteConversation conversation(chat);
  converse(conversation);
  return kSuccess;
}

}  // namespace attend::cli
