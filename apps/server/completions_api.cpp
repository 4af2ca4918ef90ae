// /v1/completions: texts that are continued.
#include "apps/server/api.hpp"
#include "apps/server/generation.hpp"
#include "io/json_text.hpp"

namespace attend::server {
namespace {

constexpr std::int64_t kDefaultTokens = 16;  // as OpenAI's

bool all_integers(const io::Json::Array& array) {
  for (const io::Json& one : array)
    if (one.integer() == nullptr) return false;
  return !array.empty();
}

std::vector<llm::Token> tokens_of(const io::Json::Array& array, const ServedModel& model) {
  std::vector<llm::Token> tokens;
  for (const io::Json& one : array) {
    const std::int64_t id = *one.integer();
    if (id < 0 || id >= model.config().vocabulary)
      refuse_field("prompt", ": got the token " + std::to_string(id) + ", expected 0 to " +
                                 std::to_string(model.config().vocabulary - 1));
    tokens.push_back(static_cast<llm::Token>(id));
  }
  return tokens;
}

std::vector<llm::Token> one_prompt(const io::Json& value, const ServedModel& model) {
  std::vector<llm::Token> tokens;
  if (value.string() != nullptr)
    tokens = model.tokenizer().encode(*value.string(), true, false);
  else if (value.array() != nullptr && all_integers(*value.array()))
    tokens = tokens_of(*value.array(), model);
  else
    refuse_field("prompt",
                 std::string(" holds ") + value.kind() + ", expected a string, an array of strings, or tokens");
  if (tokens.empty())
    refuse_field("prompt", " is empty, and this model has no token to begin with; expected some text");
  return tokens;
}

// A string, strings, tokens, or arrays of tokens.
std::vector<std::vector<llm::Token>> read_prompts(Fields& fields, const ServedModel& model) {
  const io::Json& value = fields.need("prompt", "a string, an array of strings, or tokens");
  std::vector<std::vector<llm::Token>> prompts;
  if (value.array() == nullptr || all_integers(*value.array())) {
    prompts.push_back(one_prompt(value, model));
  } else {
    if (value.array()->empty() || std::ssize(*value.array()) > model.limits().parallel)
      refuse_field("prompt", " has " + std::to_string(value.array()->size()) + " entries, expected 1 to " +
                                 std::to_string(model.limits().parallel));
    for (const io::Json& one : *value.array()) prompts.push_back(one_prompt(one, model));
  }
  return prompts;
}

}  // namespace

void completions(ApiContext& context, const Request& request, const std::shared_ptr<Reply>& reply) {
  const io::Json body = parse_body(request);
  IgnoredFields ignored;
  Fields fields(body, "", &ignored);
  ServedModel& model = context.models.find(fields.text("model", ""));
  if (!model.generates())
    refuse_field("model", " is one that embeds texts and generates none", "model_cannot_generate");
  const GenerationFields generation = read_generation(fields, model);
  const std::vector<std::vector<llm::Token>> prompts = read_prompts(fields, model);
  AnswerForm form{.chat = false, .stream = generation.stream, .include_usage = generation.include_usage};
  form.logprobs = fields.find("logprobs") != nullptr;
  form.top_logprobs = fields.whole("logprobs", 0, 0, 20);
  const bool echo = fields.truth("echo", false);
  if (fields.whole("best_of", generation.n, 1, 128) != generation.n)
    refuse_field("best_of", " is not n, and only that is supported: every choice is returned", "unsupported_value");
  if (!fields.text("suffix", "").empty())
    refuse_field("suffix", " is not supported: text is continued at its end alone", "unsupported_value");
  const bool limited = fields.find("max_tokens") != nullptr;
  const std::int64_t asked = limited ? read_limit(fields, "max_tokens", 0) : kDefaultTokens;
  form.prompt_alone = asked == 0;  // the model is asked for one token all the same: it comes of reading the prompt
  read_labels(fields);
  fields.only("messages", "null", "/v1/chat/completions answers a conversation");
  fields.only("tools", "[]", "/v1/chat/completions has them");
  fields.only("response_format", "null", "/v1/chat/completions has it");
  fields.only("max_completion_tokens", "null", "max_tokens limits a completion");
  fields.only("top_logprobs", "null", "logprobs says how many");
  fields.done();
  form.headers = note_ignored(context, request, ignored);
  if (std::ssize(prompts) * generation.n > model.limits().parallel)
    refuse_field("n", ": " + std::to_string(prompts.size()) + " prompts with " + std::to_string(generation.n) +
                          " choices each, expected at most " + std::to_string(model.limits().parallel) + " in all");

  std::vector<llm::Request> requests;
  for (const std::vector<llm::Token>& prompt : prompts)
    for (std::int64_t i = 0; i < generation.n; ++i) {
      llm::Request r{.prompt = prompt,
                     .sampling = generation.sampling,
                     .stop = generation.stop,
                     .stop_tokens = model.stop_tokens(false)};
      r.max_tokens = room_for_answer(model, std::ssize(prompt), form.prompt_alone ? 1 : asked, "prompt");
      r.rate_prompt = echo && form.logprobs;
      r.sampling.logprobs = form.top_logprobs;
      r.sampling.seed = choice_seed(generation.sampling.seed, i);
      requests.push_back(std::move(r));
      if (echo) form.echoes.push_back(model.tokenizer().decode(prompt, true));
    }
  answer(model, std::move(requests), std::move(form), reply);
}

}  // namespace attend::server
