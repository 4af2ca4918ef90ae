// Sends the conversation to a server and shows the stream that comes back.
#include "chat_server.hpp"

#include <fmt/format.h>

#include <cstdio>

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
    const llm::Sampling& s = chat_.sampling;
    io::JsonObject object;
    if (!chat_.model.empty()) object.string("model", chat_.model);
    object.put("messages", "[" + list + "]");
    object.truth("stream", true);
    object.number("max_tokens", chat_.tokens);
    object.number("temperature", s.temperature);
    object.number("top_p", s.top_p);
    if (s.top_k > 0) object.number("top_k", s.top_k);
    if (s.min_p > 0) object.number("min_p", s.min_p);
    if (s.repetition_penalty != 1) object.number("repetition_penalty", s.repetition_penalty);
    if (s.presence_penalty != 0) object.number("presence_penalty", s.presence_penalty);
    object.number("seed", static_cast<std::int64_t>(s.seed) + turns_);
    return object.text();
  }

  std::optional<std::string> answer(const std::vector<llm::Message>& messages) override {
    const InterruptWatch watch;
    std::string said;
    draw::WrappedText shown;
    server::EventReader events;
    std::string failed;
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
      const io::Json* content = delta != nullptr ? delta->find("content") : nullptr;
      if (content == nullptr || content->string() == nullptr) return true;
      said += *content->string();
      ++pieces_;
      show(shown, *content->string());
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
