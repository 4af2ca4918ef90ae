// Reads the fields of sampling; gathers tokens into a response, or sends them on one by one.
#include "apps/server/generation.hpp"

#include <algorithm>
#include <ctime>
#include <limits>
#include <random>

#include "io/json_text.hpp"

namespace attend::server {
namespace {

constexpr std::int64_t kMostStops = 16;
constexpr std::size_t kStopBytes = 1024;

std::vector<std::string> read_stop(Fields& fields) {
  std::vector<std::string> stop;
  const io::Json* value = fields.find("stop");
  if (value == nullptr) return stop;
  const auto add = [&](const io::Json& one) {
    if (one.string() == nullptr || one.string()->empty() || one.string()->size() > kStopBytes)
      refuse_field("stop", std::string(": got ") + one.kind() + ", expected a string of 1 to " +
                               std::to_string(kStopBytes) + " bytes");
    stop.push_back(*one.string());
  };
  if (value->array() == nullptr) {
    add(*value);
  } else {
    if (std::ssize(*value->array()) > kMostStops)
      refuse_field("stop", " has " + std::to_string(value->array()->size()) + " entries, expected at most " +
                               std::to_string(kMostStops));
    for (const io::Json& one : *value->array()) add(one);
  }
  return stop;
}

std::vector<std::pair<llm::Token, double>> read_bias(Fields& fields, std::int64_t vocabulary) {
  std::vector<std::pair<llm::Token, double>> bias;
  const io::Json* value = fields.find("logit_bias");
  if (value == nullptr) return bias;
  if (value->object() == nullptr)
    refuse_field("logit_bias", std::string(" is ") + value->kind() + ", expected an object from token ids to numbers");
  for (const auto& [key, number] : *value->object()) {
    double x = 0;
    const bool digits = !key.empty() && key.size() < 10 && key.find_first_not_of("0123456789") == std::string::npos;
    if (!digits || std::stoll(key) >= vocabulary)
      refuse_field("logit_bias", ": got the token " + io::json_quoted(key.substr(0, 40)) + ", expected 0 to " +
                                     std::to_string(vocabulary - 1));
    if (!number.number(x) || !(x >= -100 && x <= 100))
      refuse_field("logit_bias",
                   "." + key + " is " + io::json_text(number).substr(0, 100) + ", expected a number from -100 to 100");
    bias.emplace_back(static_cast<llm::Token>(std::stoll(key)), x);
  }
  return bias;
}

std::uint64_t fresh_number() {
  thread_local std::mt19937_64 numbers = [] {
    std::random_device device;
    std::seed_seq seeds{device(), device(), device(), device()};
    return std::mt19937_64(seeds);
  }();
  return numbers();
}

std::string fresh_id(const char* prefix) {
  static constexpr char kLetters[] = "0123456789abcdefghijklmnopqrstuv";
  std::string id = prefix;
  for (int word = 0; word < 2; ++word)
    for (std::uint64_t number = fresh_number(), i = 0; i < 12; ++i, number >>= 5) id += kLetters[number & 31];
  return id;
}

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
  Answering(ServedModel& model, AnswerForm form, std::shared_ptr<Reply> reply, std::size_t choices, std::int64_t prompt)
      : model_(model),
        form_(std::move(form)),
        reply_(std::move(reply)),
        id_(fresh_id(form_.chat ? "chatcmpl-" : "cmpl-")),
        created_(static_cast<std::int64_t>(std::time(nullptr))),
        choices_(choices),
        open_(choices),
        prompt_(prompt) {}

  void hear(std::size_t index, const llm::Event& event, const std::string& error) {
    Choice& choice = choices_[index];
    if (!error.empty() || event.finish == llm::Finish::cancelled) {
      fail(error.empty() ? "the request was cancelled" : error);
      --open_;
      return;
    }
    const bool token = event.has_token && event.finish != llm::Finish::stop_token;
    if (token) {
      ++choice.tokens;
      if (form_.logprobs) note_logprob(choice, event.choice);
    }
    choice.text += event.text;
    choice.finish = event.finish;
    if (form_.stream) stream(index);
    if (event.finish != llm::Finish::not_yet && --open_ == 0) end();
  }

 private:
  struct Choice {
    std::string text{};
    std::size_t sent = 0;  // of the text
    std::int64_t tokens = 0, text_offset = 0;
    llm::Finish finish = llm::Finish::not_yet;
    std::vector<std::string> logprobs{};                            // not yet sent, as JSON
    std::vector<std::string> names{}, values{}, tops{}, offsets{};  // the same in the form of completions
    bool began = false;
  };

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
    choice.values.push_back(io::json_number(std::max(token.logprob, -9999.0)));
    io::JsonObject top;
    std::vector<std::string> seen;
    for (const auto& [id, logprob] : token.likeliest) {
      // Two tokens can be the same text: the likelier one keeps the name.
      const std::string name(tokenizer.piece(id));
      if (std::find(seen.begin(), seen.end(), name) != seen.end()) continue;
      seen.push_back(name);
      top.number(name, std::max(logprob, -9999.0));
    }
    choice.tops.push_back(top.text());
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
    std::int64_t tokens = 0;
    for (const Choice& choice : choices_) tokens += choice.tokens;
    io::JsonObject object;
    object.number("prompt_tokens", prompt_);
    object.number("completion_tokens", tokens);
    object.number("total_tokens", prompt_ + tokens);
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
      reply_->begin({.content_type = kEventStream});
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

  static std::string call_json(const ToolCall& call, std::size_t index, bool with_index) {
    io::JsonObject function;
    function.string("name", call.name);
    function.string("arguments", call.arguments);
    io::JsonObject object;
    if (with_index) object.number("index", static_cast<std::int64_t>(index));
    object.string("id", fresh_id("call_"));
    object.string("type", "function");
    object.put("function", function.text());
    return object.text();
  }
  static std::string calls_json(const std::vector<ToolCall>& calls, bool with_index) {
    std::vector<std::string> parts;
    for (std::size_t i = 0; i < calls.size(); ++i) parts.push_back(call_json(calls[i], i, with_index));
    return joined(parts);
  }

  void stream(std::size_t index) {
    Choice& choice = choices_[index];
    const bool ended = choice.finish != llm::Finish::not_yet;
    if (!form_.chat) return stream_text(index, ended);
    if (!choice.began) {
      choice.began = true;
      write_chunk(chunk_choice(index, "delta", R"({"role": "assistant", "content": ""})", "null", nullptr));
    }
    ParsedAnswer parsed;
    std::size_t ready = choice.text.size();
    if (!form_.tools.empty()) {
      ready = std::max(choice.sent, surely_content(choice.text));
      if (ended) {
        parsed = parse_calls(std::string_view(choice.text).substr(choice.sent), form_.tools);
        if (parsed.calls.empty()) ready = choice.text.size();
      }
    }
    std::string piece = choice.text.substr(choice.sent, ready - choice.sent);
    if (!parsed.calls.empty()) piece = parsed.content;
    choice.sent = ready;
    if (!piece.empty() || !choice.logprobs.empty())
      write_chunk(
          chunk_choice(index, "delta", "{\"content\": " + io::json_quoted(piece) + "}", logprobs(choice), nullptr));
    if (!ended) return;
    if (!parsed.calls.empty())
      write_chunk(
          chunk_choice(index, "delta", "{\"tool_calls\": " + calls_json(parsed.calls, true) + "}", "null", nullptr));
    write_chunk(
        chunk_choice(index, "delta", "{}", "null", parsed.calls.empty() ? finish_reason(choice.finish) : "tool_calls"));
  }

  void stream_text(std::size_t index, bool ended) {
    Choice& choice = choices_[index];
    std::string piece = choice.text.substr(choice.sent);
    choice.sent = choice.text.size();
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
    ParsedAnswer parsed{choice.text, {}};
    if (!form_.tools.empty()) parsed = parse_calls(choice.text, form_.tools);
    io::JsonObject message;
    message.string("role", "assistant");
    message.put("content", parsed.content.empty() && !parsed.calls.empty() ? "null" : io::json_quoted(parsed.content));
    message.put("refusal", "null");
    if (!parsed.calls.empty()) message.put("tool_calls", calls_json(parsed.calls, false));
    return chunk_choice(index, "message", message.text(), logprobs(choice),
                        parsed.calls.empty() ? finish_reason(choice.finish) : "tool_calls");
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
    reply_->send({.body = object.text()});
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
  std::int64_t prompt_;
  bool began_ = false, failed_ = false;
};

}  // namespace

GenerationFields read_generation(Fields& f, const ServedModel& model) {
  GenerationFields g;
  g.sampling.temperature = f.real("temperature", 1, 0, 2);
  g.sampling.top_p = f.real("top_p", 1, 0, 1);
  g.sampling.top_k = f.whole("top_k", 0, 0, std::numeric_limits<std::int32_t>::max());
  g.sampling.min_p = f.real("min_p", 0, 0, 1);
  g.sampling.repetition_penalty = f.real("repetition_penalty", 1, 0.01, 100);
  g.sampling.presence_penalty = f.real("presence_penalty", 0, -2, 2);
  g.sampling.frequency_penalty = f.real("frequency_penalty", 0, -2, 2);
  g.sampling.logit_bias = read_bias(f, model.config().vocabulary);
  const bool seeded = f.find("seed") != nullptr;
  const std::int64_t seed =
      f.whole("seed", 0, std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max());
  g.sampling.seed = seeded ? static_cast<std::uint64_t>(seed) : fresh_number();
  g.stop = read_stop(f);
  g.n = f.whole("n", 1, 1, model.limits().parallel);
  g.stream = f.truth("stream", false);
  if (const io::Json* options = f.find("stream_options")) {
    if (!g.stream) refuse_field("stream_options", " is given, and stream is not true");
    Fields inner(*options, "stream_options");
    g.include_usage = inner.truth("include_usage", false);
    (void)inner.truth("include_obfuscation", false);  // no padding is ever added
    inner.done();
  }
  // Who asks, and what the client keeps for itself: nothing here depends on them.
  for (const char* name : {"user", "metadata", "safety_identifier", "prompt_cache_key"}) f.pass(name);
  f.only("store", "false", "nothing is stored");
  if (const std::string tier = f.text("service_tier", "auto"); tier != "auto" && tier != "default")
    refuse_field("service_tier", " is " + io::json_quoted(tier) + ", expected auto or default");
  return g;
}

std::int64_t room_for_answer(const ServedModel& model, std::int64_t prompt, std::int64_t asked, const char* field) {
  const std::int64_t most = model.context() - prompt;
  if (most < 1)
    refuse_field(field,
                 " has " + std::to_string(prompt) + " tokens, and the context of " + io::json_quoted(model.id()) +
                     " is " + std::to_string(model.context()) + ": at most " + std::to_string(model.context() - 1) +
                     " fit, with one left for the answer; shorten it by " + std::to_string(1 - most),
                 "context_length_exceeded");
  return asked > 0 ? std::min(asked, most) : most;
}

std::uint64_t choice_seed(std::uint64_t seed, std::int64_t n) {
  return seed + static_cast<std::uint64_t>(n) * 0x9E3779B97F4A7C15ULL;
}

void answer(ServedModel& model, std::vector<llm::Request> requests, AnswerForm form,
            const std::shared_ptr<Reply>& reply) {
  std::int64_t prompt = 0;
  const llm::Request* before = nullptr;  // choices of one prompt follow each other: it counts once
  for (const llm::Request& request : requests) {
    if (before == nullptr || before->prompt != request.prompt) prompt += std::ssize(request.prompt);
    before = &request;
  }
  const auto answering = std::make_shared<Answering>(model, std::move(form), reply, requests.size(), prompt);
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
