// Gathers the tokens of an answer into a response, or sends them on as they come.
#include <algorithm>
#include <cmath>
#include <ctime>
#include <optional>

#include "apps/server/generation.hpp"
#include "io/json_text.hpp"

namespace attend::server {
namespace {

std::string fresh_id(const char* prefix) {
  static constexpr char kLetters[] = "0123456789abcdefghijklmnopqrstuv";
  std::string id = prefix;
  for (int word = 0; word < 2; ++word)
    for (std::uint64_t number = fresh_number(), i = 0; i < 12; ++i, number >>= 5) id += kLetters[number & 31];
  return id;
}

constexpr std::size_t kMistralId = 9;  // as its template wants them

const char* finish_reason(llm::Finish finish) {
  return finish == llm::Finish::length || finish == llm::Finish::context ? "length" : "stop";
}

// A token as text (broken characters replaced), with its bytes.
std::string token_json(const llm::Tokenizer& tokenizer, llm::Token token, double logprob, const std::string& more) {
  const std::string_view piece = tokenizer.piece(token);
  io::JsonObject object;
  object.string("token", piece);
  object.number("logprob", std::max(logprob, -9999.0));
  std::string bytes = "[";
  for (const char c : piece) bytes += (bytes.size() > 1 ? "," : "") + std::to_string(static_cast<unsigned char>(c));
  object.put("bytes", bytes + "]");
  if (!more.empty()) object.put("top_logprobs", more);
  return object.text();
}

// All choices of one request, on the model's thread.
class Answering : public std::enable_shared_from_this<Answering> {
 public:
  Answering(ServedModel& model, AnswerForm form, std::shared_ptr<Reply> reply, std::size_t choices, std::int64_t prompt,
            std::vector<bool> first)
      : model_(model),
        form_(std::move(form)),
        reply_(std::move(reply)),
        id_(fresh_id(form_.chat ? "chatcmpl-" : "cmpl-")),
        created_(static_cast<std::int64_t>(std::time(nullptr))),
        choices_(choices),
        open_(choices),
        prompt_(prompt),
        first_(std::move(first)) {
    for (Choice& choice : choices_) {
      choice.thoughts = form_.thoughts;
      if (!form_.tools.empty()) choice.reader.emplace(form_.tool_form, form_.tools, form_.most_calls);
    }
  }

  void hear(std::size_t index, const llm::Event& event, const std::string& error) {
    Choice& choice = choices_[index];
    if (!error.empty() || event.finish == llm::Finish::cancelled) {
      fail(error.empty() ? "the request was cancelled" : error);
      --open_;
      return;
    }
    for (const llm::Choice& token : event.prompt) note_logprob(choice, token);
    const bool token = event.has_token && event.finish != llm::Finish::stop_token && !form_.prompt_alone;
    if (token) {
      ++choice.tokens;
      if (form_.logprobs) note_logprob(choice, event.choice);
    }
    choice.reused = event.reused;
    choice.finish = form_.prompt_alone ? llm::Finish::length : event.finish;
    take_text(choice, form_.prompt_alone ? "" : event.text);
    if (form_.stream) stream(index);
    if (event.finish != llm::Finish::not_yet && --open_ == 0) end();
  }

 private:
  using Piece = CallReader::Piece;
  struct Choice {
    std::string text{};                  // what is said
    std::vector<llm::ToolCall> calls{};  // and called
    std::vector<Piece> fresh{};          // of both, what has not been sent
    ThoughtReader thoughts = ThoughtReader();
    std::string thought{}, fresh_thought{};  // the thought so far; the part that has not been sent
    std::optional<CallReader> reader{};      // where tools may be called
    bool cut = false;                        // the last call did not come to its end
    std::int64_t tokens = 0, text_offset = 0, reused = 0;
    llm::Finish finish = llm::Finish::not_yet;
    std::vector<std::string> logprobs{};                            // not yet sent, as JSON
    std::vector<std::string> names{}, values{}, tops{}, offsets{};  // the same in the form of completions
    bool began = false;
  };

  void take_text(Choice& choice, const std::string& whole) const {
    const auto [thought, text] = choice.thoughts.take(whole, choice.finish != llm::Finish::not_yet);
    choice.thought += thought;
    choice.fresh_thought = thought;
    if (choice.reader) {
      choice.reader->take(text);
      choice.cut = choice.reader->inside().has_value();
      if (choice.finish != llm::Finish::not_yet) choice.reader->finish();
      choice.fresh = choice.reader->pieces();
    } else {
      choice.fresh.clear();
      if (!text.empty()) choice.fresh.push_back({Piece::Kind::content, text});
    }
    for (const Piece& piece : choice.fresh) {
      if (piece.kind == Piece::Kind::call)
        choice.calls.push_back(
            {form_.tool_form == llm::ToolForm::mistral ? fresh_id("").substr(0, kMistralId) : fresh_id("call_"),
             piece.text, ""});
      else
        (piece.kind == Piece::Kind::content ? choice.text : choice.calls.back().arguments) += piece.text;
    }
  }

  static const char* finish_of(const Choice& choice) {
    const bool calls = !choice.calls.empty() && !choice.cut;
    return calls ? "tool_calls" : finish_reason(choice.finish);
  }

  void note_logprob(Choice& choice, const llm::Choice& token) {
    const llm::Tokenizer& tokenizer = model_.tokenizer();
    if (form_.chat) {
      std::string top = "[";
      for (const auto& [id, logprob] : token.likeliest)
        top += (top.size() > 1 ? ", " : "") + token_json(tokenizer, id, logprob, "");
      choice.logprobs.push_back(token_json(tokenizer, token.token, token.logprob, top + "]"));
      return;
    }
    choice.names.push_back(io::json_quoted(tokenizer.piece(token.token)));
    choice.values.push_back(std::isnan(token.logprob) ? "null" : io::json_number(std::max(token.logprob, -9999.0)));
    io::JsonObject top;
    std::vector<std::string> seen;
    for (const auto& [id, logprob] : token.likeliest) {
      // Two tokens can be the same text: the likelier one keeps the name.
      const std::string name(tokenizer.piece(id));
      if (std::find(seen.begin(), seen.end(), name) != seen.end()) continue;
      seen.push_back(name);
      top.number(name, std::max(logprob, -9999.0));
    }
    choice.tops.push_back(std::isnan(token.logprob) ? "null" : top.text());
    choice.offsets.push_back(std::to_string(choice.text_offset));
    choice.text_offset += std::ssize(tokenizer.piece(token.token));
  }

  static std::string joined(std::vector<std::string>& parts) {
    std::string text = "[";
    for (const std::string& part : parts) text += (text.size() > 1 ? ", " : "") + part;
    parts.clear();
    return text + "]";
  }
  // What has been noted since the last time; "null" where nobody asked.
  std::string logprobs(Choice& choice) const {
    if (!form_.logprobs) return "null";
    io::JsonObject object;
    if (form_.chat) {
      object.put("content", joined(choice.logprobs));
      object.put("refusal", "null");
    } else {
      object.put("tokens", joined(choice.names));
      object.put("token_logprobs", joined(choice.values));
      object.put("top_logprobs", form_.top_logprobs > 0 ? joined(choice.tops) : "null");
      object.put("text_offset", joined(choice.offsets));
    }
    return object.text();
  }

  std::string usage() const {
    std::int64_t tokens = 0, reused = 0;
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      tokens += choices_[i].tokens;
      if (first_[i]) reused += choices_[i].reused;
    }
    io::JsonObject details, object;
    details.number("cached_tokens", reused);
    object.number("prompt_tokens", prompt_);
    object.number("completion_tokens", tokens);
    object.number("total_tokens", prompt_ + tokens);
    object.put("prompt_tokens_details", details.text());
    return object.text();
  }

  io::JsonObject head(const char* kind) const {
    io::JsonObject object;
    object.string("id", id_);
    object.string("object", kind);
    object.number("created", created_);
    object.string("model", model_.id());
    if (form_.chat) object.put("system_fingerprint", "null");
    return object;
  }

  void write_chunk(const std::string& choices, const std::string& use = "null") {
    if (!began_) {
      began_ = true;
      reply_->begin({.content_type = kEventStream, .headers = form_.headers});
    }
    io::JsonObject object = head(form_.chat ? "chat.completion.chunk" : "text_completion");
    object.put("choices", "[" + choices + "]");
    if (form_.include_usage) object.put("usage", use);
    (void)reply_->write(server_sent_event(object.text()));
  }

  std::string chunk_choice(std::size_t index, const char* field, const std::string& value,
                           const std::string& probabilities, const char* finish) const {
    io::JsonObject object;
    object.number("index", static_cast<std::int64_t>(index));
    object.put(field, value);
    object.put("logprobs", probabilities);
    object.put("finish_reason", finish == nullptr ? "null" : io::json_quoted(finish));
    return object.text();
  }

  static std::string call_json(const llm::ToolCall& call) {
    io::JsonObject function;
    function.string("name", call.name);
    function.string("arguments", call.arguments);
    io::JsonObject object;
    object.string("id", call.id);
    object.string("type", "function");
    object.put("function", function.text());
    return object.text();
  }

  // A call begins with its id and name; then its arguments come, a piece at a time.
  static std::string call_delta(const llm::ToolCall& call, std::size_t number, const Piece& piece) {
    const bool begins = piece.kind == Piece::Kind::call;
    io::JsonObject function, object;
    if (begins) function.string("name", call.name);
    function.string("arguments", begins ? "" : piece.text);
    object.number("index", static_cast<std::int64_t>(number));
    if (begins) {
      object.string("id", call.id);
      object.string("type", "function");
    }
    object.put("function", function.text());
    return "{\"tool_calls\": [" + object.text() + "]}";
  }

  void stream(std::size_t index) {
    Choice& choice = choices_[index];
    const bool ended = choice.finish != llm::Finish::not_yet;
    if (!form_.chat) return stream_text(index, ended);
    const auto delta = [&](const std::string& value, const std::string& probabilities, const char* finish = nullptr) {
      write_chunk(chunk_choice(index, "delta", value, probabilities, finish));
    };
    if (!choice.began) {
      choice.began = true;
      delta(R"({"role": "assistant", "content": ""})", "null");
    }
    if (!choice.fresh_thought.empty())
      delta("{\"reasoning_content\": " + io::json_quoted(choice.fresh_thought) + "}",
            choice.logprobs.empty() ? "null" : logprobs(choice));
    std::size_t call = choice.calls.size();  // the first of those that are new
    for (const Piece& piece : choice.fresh) call -= piece.kind == Piece::Kind::call ? 1U : 0U;
    for (const Piece& piece : choice.fresh) {
      const std::string probabilities = choice.logprobs.empty() ? "null" : logprobs(choice);
      if (piece.kind == Piece::Kind::content) {
        delta("{\"content\": " + io::json_quoted(piece.text) + "}", probabilities);
        continue;
      }
      call += piece.kind == Piece::Kind::call ? 1U : 0U;
      delta(call_delta(choice.calls[call - 1], call - 1, piece), probabilities);
    }
    if (!choice.logprobs.empty()) delta("{\"content\": \"\"}", logprobs(choice));
    if (ended) delta("{}", "null", finish_of(choice));
  }

  void stream_text(std::size_t index, bool ended) {
    Choice& choice = choices_[index];
    std::string piece = choice.fresh.empty() ? "" : choice.fresh.front().text;
    if (!choice.began && !form_.echoes.empty()) piece = form_.echoes[index] + piece;
    choice.began = true;
    if (piece.empty() && choice.names.empty() && !ended) return;
    write_chunk(chunk_choice(index, "text", io::json_quoted(piece), logprobs(choice),
                             ended ? finish_reason(choice.finish) : nullptr));
  }

  std::string whole_choice(std::size_t index) {
    Choice& choice = choices_[index];
    if (!form_.chat)
      return chunk_choice(index, "text",
                          io::json_quoted((form_.echoes.empty() ? "" : form_.echoes[index]) + choice.text),
                          logprobs(choice), finish_reason(choice.finish));
    std::vector<std::string> calls;
    for (const llm::ToolCall& call : choice.calls) calls.push_back(call_json(call));
    io::JsonObject message;
    message.string("role", "assistant");
    message.put("content", choice.text.empty() && !calls.empty() ? "null" : io::json_quoted(choice.text));
    if (!choice.thought.empty()) message.string("reasoning_content", choice.thought);
    message.put("refusal", "null");
    if (!calls.empty()) message.put("tool_calls", joined(calls));
    return chunk_choice(index, "message", message.text(), logprobs(choice), finish_of(choice));
  }

  void end() {
    if (failed_) return;
    if (form_.stream) {
      if (form_.include_usage) write_chunk("", usage());
      (void)reply_->write(server_sent_event("[DONE]"));
      reply_->end();
      return;
    }
    io::JsonObject object = head(form_.chat ? "chat.completion" : "text_completion");
    std::vector<std::string> parts;
    for (std::size_t i = 0; i < choices_.size(); ++i) parts.push_back(whole_choice(i));
    object.put("choices", joined(parts));
    object.put("usage", usage());
    reply_->send({.body = object.text(), .headers = form_.headers});
  }

  // A stream that has begun ends with the reason in it.
  void fail(const std::string& why) {
    if (failed_) return;
    failed_ = true;
    Response response = error_response({.status = 503, .message = why, .code = "request_ended"});
    if (!began_) return reply_->send(std::move(response));
    (void)reply_->write(server_sent_event(response.body));
    (void)reply_->write(server_sent_event("[DONE]"));
    reply_->end();
  }

  ServedModel& model_;
  const AnswerForm form_;
  const std::shared_ptr<Reply> reply_;
  const std::string id_;
  const std::int64_t created_;
  std::vector<Choice> choices_;
  std::size_t open_;
  const std::int64_t prompt_;
  const std::vector<bool> first_;  // whether a choice is the first of its prompt: that counts once
  bool began_ = false, failed_ = false;
};

}  // namespace

void answer(ServedModel& model, std::vector<llm::Request> requests, AnswerForm form,
            const std::shared_ptr<Reply>& reply) {
  std::int64_t prompt = 0;
  std::vector<bool> first;  // choices of one prompt follow each other: it counts once
  for (std::size_t i = 0; i < requests.size(); ++i) {
    first.push_back(i == 0 || requests[i - 1].prompt != requests[i].prompt);
    if (first.back()) prompt += std::ssize(requests[i].prompt);
  }
  const auto answering =
      std::make_shared<Answering>(model, std::move(form), reply, requests.size(), prompt, std::move(first));
  std::vector<std::pair<llm::Request, ServedModel::OnEvent>> all;
  for (std::size_t i = 0; i < requests.size(); ++i)
    all.emplace_back(std::move(requests[i]), [answering, i](const llm::Event& event, const std::string& error) {
      answering->hear(i, event, error);
    });
  const std::vector<std::int64_t> numbers = model.submit(std::move(all));
  if (numbers.empty()) {
    Response full = error_response({.status = 429,
                                    .message = "the queue of " + io::json_quoted(model.id()) +
                                               " is full; try again in a moment, or ask for fewer choices",
                                    .code = "queue_full"});
    full.headers.emplace_back("Retry-After", "1");
    return reply->send(std::move(full));
  }
  reply->when_gone([&model, numbers] {
    for (const std::int64_t number : numbers) model.cancel(number);
  });
}

}  // namespace attend::server
