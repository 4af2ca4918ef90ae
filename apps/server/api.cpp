// The table of paths, and the small handlers: models, health, metrics, tokens.
#include "apps/server/api.hpp"

#include "attend/runtime.hpp"
#include "io/json_text.hpp"

namespace attend::server {
namespace {

std::string model_json(const ServedModel& model) {
  io::JsonObject object;
  object.string("id", model.id());
  object.string("object", "model");
  object.number("created", model.created());
  object.string("owned_by", "attend");
  object.number("context", model.context());
  object.string("task", model.generates() ? "generate" : "embed");
  object.string("compute", name(model.compute()));
  return object.text();
}

void list_models(const ApiContext& context, const std::shared_ptr<Reply>& reply) {
  std::string all;
  for (const auto& model : context.models.all()) all += (all.empty() ? "" : ", ") + model_json(*model);
  io::JsonObject object;
  object.string("object", "list");
  object.put("data", "[" + all + "]");
  reply->send({.body = object.text()});
}

void health(const ApiContext& context, const std::shared_ptr<Reply>& reply) {
  io::JsonObject object;
  object.string("status", context.stopping ? "stopping" : "ok");
  reply->send({.status = context.stopping ? 503 : 200, .body = object.text()});
}

// llama-server's: {"content": text} -> {"tokens": [...]}.
void tokenize(ApiContext& context, const Request& request, const std::shared_ptr<Reply>& reply) {
  const io::Json body = parse_body(request);
  IgnoredFields ignored;
  Fields fields(body, "", &ignored);
  const ServedModel& model = context.models.find(fields.text("model", ""));
  const io::Json& content = fields.need("content", "a string");
  if (content.string() == nullptr)
    refuse_field("content", std::string(" is ") + content.kind() + ", expected a string");
  const bool special = fields.truth("add_special", false), parse = fields.truth("parse_special", true);
  const bool pieces = fields.truth("with_pieces", false);
  fields.done();
  std::string text = R"({"tokens": [)";  // in one piece: it may have tens of megabytes
  const char* separator = "";
  for (const llm::Token token : model.tokenizer().encode(*content.string(), special, parse)) {
    text += std::exchange(separator, ", ");
    if (!pieces) {
      text += std::to_string(token);
      continue;
    }
    io::JsonObject one;
    one.number("id", std::int64_t{token});
    one.string("piece", model.tokenizer().piece(token));
    text += one.text();
  }
  text += "]}";
  reply->send({.body = std::move(text), .headers = note_ignored(context, request, ignored)});
}

void detokenize(ApiContext& context, const Request& request, const std::shared_ptr<Reply>& reply) {
  const io::Json body = parse_body(request);
  IgnoredFields ignored;
  Fields fields(body, "", &ignored);
  const ServedModel& model = context.models.find(fields.text("model", ""));
  const io::Json& ids = fields.need("tokens", "an array of tokens");
  if (ids.array() == nullptr)
    refuse_field("tokens", std::string(" is ") + ids.kind() + ", expected an array of tokens");
  std::vector<llm::Token> tokens;
  for (const io::Json& one : *ids.array()) {
    if (one.integer() == nullptr || *one.integer() < 0 || *one.integer() >= model.config().vocabulary)
      refuse_field("tokens", ": got " + io::json_text(one).substr(0, 60) + ", expected 0 to " +
                                 std::to_string(model.config().vocabulary - 1));
    tokens.push_back(static_cast<llm::Token>(*one.integer()));
  }
  fields.done();
  io::JsonObject object;
  object.string("content", model.tokenizer().decode(tokens));
  reply->send({.body = object.text(), .headers = note_ignored(context, request, ignored)});
}

// Lines of Prometheus' text format.
class Metrics {
 public:
  void head(const char* name, const char* type, const char* help) {
    text_ += std::string("# HELP attend_") + name + " " + help + "\n# TYPE attend_" + name + " " + type + "\n";
  }
  void put(const char* name, const std::string& labels, double value) {
    text_ += std::string("attend_") + name + labels + " " + io::json_number(value) + "\n";
  }
  std::string text() { return std::move(text_); }

 private:
  std::string text_;
};

std::string label(const std::string& model) {
  std::string text = "{model=\"";
  for (const char c : model) {
    if (c == '"' || c == '\\') text += '\\';
    text += c == '\n' ? ' ' : c;
  }
  return text + "\"}";
}

}  // namespace

Headers note_ignored(const ApiContext& context, const Request& request, const IgnoredFields& ignored) {
  const std::string fields = ignored.text();
  if (fields.empty()) return {};
  if (context.log != nullptr) context.log->say("ignored", {{"path", request.path}, {"fields", fields}});
  return {{"attend-ignored", fields}};
}

void read_labels(Fields& fields) {
  (void)fields.text("user", "");
  for (const char* name : {"safety_identifier", "prompt_cache_key"}) (void)fields.text(name, "");
  if (const io::Json* metadata = fields.find("metadata")) {
    if (metadata->object() == nullptr)
      refuse_field("metadata", std::string(" is ") + metadata->kind() + ", expected an object of strings");
    for (const auto& [key, value] : *metadata->object())
      if (value.string() == nullptr)
        refuse_field("metadata." + key.substr(0, 100), std::string(" is ") + value.kind() + ", expected a string");
  }
  if (fields.truth("store", false)) fields.ignore("store");  // nothing is stored
  if (const std::string tier = fields.text("service_tier", "auto"); tier != "auto" && tier != "default")
    fields.ignore("service_tier");
  // Prompts are found in the cache again and predicted tokens are guessed from the prompt, whatever these say.
  for (const char* name : {"prompt_cache_retention", "prompt_cache_options", "prediction"}) fields.ignore(name);
}

std::string metrics_text(const ApiContext& context) {
  struct Row {
    const char *name, *type, *help;
    double (*value)(const ModelNumbers&);
  };
  static constexpr Row kRows[] = {
      {"requests_open", "gauge", "Answers that are being written or wait.",
       [](const ModelNumbers& n) { return static_cast<double>(n.open); }},
      {"requests_refused_total", "counter", "Requests refused because the queue was full.",
       [](const ModelNumbers& n) { return static_cast<double>(n.refused); }},
      {"requests_cancelled_total", "counter", "Answers ended early: the client went away, or the server stopped.",
       [](const ModelNumbers& n) { return static_cast<double>(n.cancelled); }},
      {"prompt_tokens_total", "counter", "Tokens of prompts that were read.",
       [](const ModelNumbers& n) { return static_cast<double>(n.engine.prompt_tokens); }},
      {"reused_tokens_total", "counter", "Tokens of prompts that an earlier request had left in the cache.",
       [](const ModelNumbers& n) { return static_cast<double>(n.engine.reused_tokens); }},
      {"generated_tokens_total", "counter", "Tokens that were written.",
       [](const ModelNumbers& n) { return static_cast<double>(n.engine.generated_tokens); }},
      {"drafted_tokens_total", "counter", "Tokens guessed by prompt look-up.",
       [](const ModelNumbers& n) { return static_cast<double>(n.engine.drafted_tokens); }},
      {"accepted_tokens_total", "counter", "Guessed tokens that were right.",
       [](const ModelNumbers& n) { return static_cast<double>(n.engine.accepted_tokens); }},
      {"steps_total", "counter", "Passes of the model.",
       [](const ModelNumbers& n) { return static_cast<double>(n.engine.steps); }},
      {"kept_tokens", "gauge", "Tokens of ended requests in the cache, for reuse.",
       [](const ModelNumbers& n) { return static_cast<double>(n.kept_tokens); }},
      {"longest_step_seconds", "gauge", "The longest pass so far: nobody waited longer between two tokens.",
       [](const ModelNumbers& n) { return n.longest_step; }},
  };
  Metrics m;
  for (const Row& row : kRows) {
    m.head(row.name, row.type, row.help);
    for (const auto& model : context.models.all()) m.put(row.name, label(model->id()), row.value(model->numbers()));
  }
  const Listener* listener = context.listener;
  const ListenNumbers n = listener != nullptr ? listener->numbers() : ListenNumbers{};
  const auto one = [&](const char* name, const char* type, const char* help, std::int64_t value) {
    m.head(name, type, help);
    m.put(name, "", static_cast<double>(value));
  };
  one("connections", "gauge", "Open connections.", n.connections);
  one("connections_total", "counter", "Connections that were made.", n.accepted);
  one("connections_evicted_total", "counter",
      "Connections closed to make room: their clients sent nothing, or took nothing of their answers.", n.evicted);
  one("connections_refused_total", "counter", "Requests answered with 503 because all connections were in use.",
      n.turned_away);
  one("connections_timed_out_total", "counter", "Connections closed because the client was too slow.", n.timed_out);
  one("http_requests_total", "counter", "Requests that reached a handler.", n.requests);
  return m.text();
}

void add_api(Router& router, ApiContext& context) {
  const auto with = [&](auto handler) {
    return [&context, handler](const Request& request, const std::shared_ptr<Reply>& reply) {
      if (context.stopping)
        throw RequestError({.status = 503, .message = "the server is stopping", .code = "server_stopping"});
      handler(context, request, reply);
    };
  };
  router.add("POST", "/v1/chat/completions", with(chat_completions));
  router.add("POST", "/v1/completions", with(completions));
  router.add("POST", "/v1/embeddings", with(embeddings));
  router.add("POST", "/tokenize", with(tokenize));
  router.add("POST", "/detokenize", with(detokenize));
  const RouteOptions quick{.immediate = true}, open{.open = true, .immediate = true};
  router.add(
      "GET", "/v1/models",
      [&context](const Request&, const std::shared_ptr<Reply>& reply) { list_models(context, reply); }, quick);
  router.add(
      "GET", "/v1/models/*",
      [&context](const Request& request, const std::shared_ptr<Reply>& reply) {
        reply->send({.body = model_json(context.models.find(request.path.substr(std::string("/v1/models/").size())))});
      },
      quick);
  for (const char* path : {"/health", "/v1/health"})
    router.add(
        "GET", path, [&context](const Request&, const std::shared_ptr<Reply>& reply) { health(context, reply); }, open);
  router.add(
      "GET", "/metrics",
      [&context](const Request&, const std::shared_ptr<Reply>& reply) {
        reply->send({.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = metrics_text(context)});
      },
      quick);
  router.add(
      "GET", "/openapi.json",
      [](const Request&, const std::shared_ptr<Reply>& reply) { reply->send({.body = openapi_document()}); }, open);
}

}  // namespace attend::server
