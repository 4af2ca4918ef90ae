// /v1/embeddings: texts as vectors, a slice at a time on the model's thread.
#include <bit>
#include <cstring>

#include "apps/server/api.hpp"
#include "apps/server/fields.hpp"
#include "io/json_text.hpp"

namespace attend::server {
namespace {

constexpr std::size_t kMostInputs = 2048;

std::string base64(const std::string& bytes) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t j = 0; j < 3; ++j)
      group = group << 8 | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0U);
    for (std::size_t j = 0; j < 4; ++j) text += i + j <= bytes.size() ? kDigits[group >> (18 - 6 * j) & 63] : '=';
  }
  return text;
}

// 32-bit floats, the lowest byte first.
std::string float_bytes(std::span<const float> row) {
  std::string bytes;
  for (const float x : row)
    for (int shift = 0; shift < 32; shift += 8)
      bytes += static_cast<char>(std::bit_cast<std::uint32_t>(x) >> shift & 255);
  return bytes;
}

struct Job {
  ServedModel& model;
  std::shared_ptr<Reply> reply;
  llm::EncodedTexts texts;
  bool as_base64 = false;
  std::size_t done = 0;
  Headers headers{};
  std::string data{};
  std::atomic<bool> gone{false};
};

void finish(Job& job) {
  std::int64_t tokens = 0;
  for (const auto& text : job.texts.tokens) tokens += std::ssize(text);
  io::JsonObject usage;
  usage.number("prompt_tokens", tokens);
  usage.number("total_tokens", tokens);
  io::JsonObject object;
  object.string("object", "list");
  object.put("data", "[" + job.data + "]");
  object.string("model", job.model.id());
  object.put("usage", usage.text());
  job.reply->send({.body = object.text(), .headers = job.headers});
}

// Some texts, then the next job: others come in between.
void run_slice(const std::shared_ptr<Job>& job, ModelParts& parts) {
  if (job->gone) return;
  try {
    llm::EncodedTexts slice;
    std::int64_t tokens = 0;
    std::size_t end = job->done;
    do {
      slice.tokens.push_back(job->texts.tokens[end]);
      tokens += std::ssize(job->texts.tokens[end++]);
    } while (end < job->texts.tokens.size() && tokens + std::ssize(job->texts.tokens[end]) <= llm::kTokensPerEmbed);
    const std::vector<float> rows = llm::embed_texts(parts.transformer, slice, job->model.id(), {});
    const std::size_t width = rows.size() / slice.tokens.size();
    for (std::size_t i = 0; i < slice.tokens.size(); ++i) {
      const auto row = std::span(rows).subspan(i * width, width);
      std::string values;
      if (job->as_base64) {
        values = "\"" + base64(float_bytes(row)) + "\"";
      } else {
        for (const float x : row) values += (values.empty() ? "[" : ",") + io::json_number(static_cast<double>(x));
        values += "]";
      }
      io::JsonObject object;
      object.string("object", "embedding");
      object.number("index", static_cast<std::int64_t>(job->done + i));
      object.put("embedding", values);
      job->data += (job->data.empty() ? "" : ", ") + object.text();
    }
    job->done = end;
    if (end == job->texts.tokens.size()) return finish(*job);
  } catch (const std::exception& error) {
    return job->reply->send(error_response({.status = 500, .message = error.what(), .code = "internal_error"}));
  }
  if (!job->model.run([job](ModelParts& more) { run_slice(job, more); }))
    job->reply->send(error_response({.status = 503, .message = "the server is stopping", .code = "request_ended"}));
}

// A client's token ids are often those of another tokenizer (LangChain's OpenAIEmbeddings sends tiktoken's), and in
// range all the same: their vectors would be nonsense without an error.
void check_token_ids(const ApiContext& context, const std::string& where) {
  if (context.accept_token_ids) return;
  refuse_field(
      "input",
      where +
          " holds token ids, expected text: ids of another tokenizer would be embedded as other words. With "
          "LangChain's OpenAIEmbeddings set check_embedding_ctx_length=False; if the ids are this model's own, "
          "start the server with --accept-token-ids",
      "token_ids_not_accepted");
}

std::vector<llm::Token> one_input(const ApiContext& context, const io::Json& value, const ServedModel& model,
                                  const std::string& where) {
  std::vector<llm::Token> tokens;
  if (value.string() != nullptr) {
    if (value.string()->empty()) refuse_field("input", where + " is an empty string, expected some text");
    tokens = model.tokenizer().encode(*value.string());
  } else if (value.array() != nullptr && !value.array()->empty()) {
    if (value.array()->front().integer() != nullptr) check_token_ids(context, where);
    for (const io::Json& one : *value.array()) {
      if (one.integer() == nullptr || *one.integer() < 0 || *one.integer() >= model.config().vocabulary)
        refuse_field("input", where + " holds what is no token: " + io::json_text(one).substr(0, 60) +
                                  ", expected 0 to " + std::to_string(model.config().vocabulary - 1));
      tokens.push_back(static_cast<llm::Token>(*one.integer()));
    }
  } else {
    refuse_field("input", where + std::string(" is ") + value.kind() + ", expected a string or tokens");
  }
  if (std::ssize(tokens) > model.context())
    refuse_field("input",
                 where + " has " + std::to_string(tokens.size()) + " tokens, and " + io::json_quoted(model.id()) +
                     " takes " + std::to_string(model.context()) + "; shorten it",
                 "context_length_exceeded");
  return tokens;
}

}  // namespace

void embeddings(ApiContext& context, const Request& request, const std::shared_ptr<Reply>& reply) {
  const io::Json body = parse_body(request);
  IgnoredFields ignored;
  Fields fields(body, "", &ignored);
  std::string name = fields.text("model", "");
  if (name.empty())  // the first that can
    for (const auto& model : context.models.all())
      if (!model->generates() && name.empty()) name = model->id();
  ServedModel& model = context.models.find(name);
  if (model.generates())
    refuse_field("model",
                 " " + io::json_quoted(model.id()) +
                     " was made to continue text, expected a model for embeddings; serve one besides: attend serve " +
                     model.id() + " minilm",
                 "model_cannot_embed");
  const io::Json& input = fields.need("input", "a string, an array of strings, or tokens");
  const std::string format = fields.text("encoding_format", "float");
  if (format != "float" && format != "base64")
    refuse_field("encoding_format", " is " + io::json_quoted(format.substr(0, 100)) + ", expected float or base64");
  const std::int64_t width = model.config().hidden;
  if (fields.whole("dimensions", width, 1, 1 << 20) != width)
    refuse_field("dimensions",
                 " is not " + std::to_string(width) +
                     ", and only that is supported: this model's vectors are not made to be cut",
                 "unsupported_value");
  (void)fields.text("user", "");  // who asks: nothing here depends on it
  fields.done();
  const auto job = std::make_shared<Job>(model, reply, llm::EncodedTexts{}, format == "base64");
  job->headers = note_ignored(context, request, ignored);
  const io::Json::Array* many = input.array();
  if (many != nullptr && !many->empty() && (*many)[0].integer() != nullptr) many = nullptr;  // one text as tokens
  if (many == nullptr) {
    job->texts.tokens.push_back(one_input(context, input, model, ""));
  } else {
    if (many->empty() || many->size() > kMostInputs)
      refuse_field("input",
                   " has " + std::to_string(many->size()) + " entries, expected 1 to " + std::to_string(kMostInputs));
    for (std::size_t i = 0; i < many->size(); ++i)
      job->texts.tokens.push_back(one_input(context, (*many)[i], model, "[" + std::to_string(i) + "]"));
  }
  if (!model.run([job](ModelParts& parts) { run_slice(job, parts); })) {
    Response full = error_response(
        {.status = 429, .message = "too many requests wait; try again in a moment", .code = "queue_full"});
    full.headers.emplace_back("Retry-After", "1");
    return reply->send(std::move(full));
  }
  reply->when_gone([job] { job->gone = true; });
}

}  // namespace attend::server
