// The public Model, over the parts that the program uses too.
#include "attend/llm/model.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "attend/error.hpp"
#include "attend/llm/store.hpp"
#include "llm/generate/perplexity.hpp"
#include "llm/runtime/file_errors.hpp"
#include "llm/runtime/memory.hpp"
#include "llm/runtime/model_state.hpp"
#include "llm/runtime/open_model.hpp"

namespace attend::llm {
namespace {

// The cache that generate() runs in: an answer may fill the context, or a stream.
CacheOptions cache_of(const ModelOptions& options, const ModelFiles& files, std::int64_t context) {
  if (!files.config().causal) return {};
  const std::int64_t longest = options.stream > 0 ? std::numeric_limits<std::int64_t>::max() : context;
  return cache_options(options.cache, options.stream, files, longest);
}

MemoryPlan plan_of(const ModelFiles& files, const CacheOptions& cache) {
  return files.config().causal ? plan_memory(files, cache, kTokensPerStep, 1)
                               : plan_memory(files, {}, kTokensPerEmbed, 0);
}

void check_options(const ModelOptions& options) {
  if (options.context < 0 || options.stream < 0)
    throw InvalidArgument("model: context is " + std::to_string(options.context) + " and stream " +
                          std::to_string(options.stream) + ", expected 0 or more");
}

}  // namespace

ModelInfo model_info(const std::string& name_or_path) {
  return info_of(ModelFiles(find_model(name_or_path)));
}

MemoryPlan plan_memory(const std::string& name_or_path, const ModelOptions& options) {
  check_options(options);
  const ModelFiles files(find_model(name_or_path), options.compute);
  const std::int64_t context = options.context > 0 ? options.context : files.config().context;
  return plan_of(files, cache_of(options, files, context));
}

std::int64_t free_memory() {
  return available_memory().value_or(-1);
}

RunningBatch& Model::State::running() {
  if (batch == nullptr) batch = std::make_unique<RunningBatch>(transformer, tokenizer, batch_options(cache, context));
  return *batch;
}

void Model::State::must_generate() const {
  if (!config().causal)
    throw InvalidArgument("model: " + config().family +
                          " embeds texts and generates none; expected a model such as llama");
}

Model::Model(std::shared_ptr<State> state) : state_("Model", std::move(state)) {}
Model::~Model() = default;
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;

Model Model::open(const std::string& name_or_path, const ModelOptions& options) {
  check_options(options);
  OpenModel open(name_or_path, options.context, options.compute);
  if (options.warning)
    for (const std::string& text :
         {unused_warning(*open.files), context_warning("context", options.context, open.files->config())})
      if (!text.empty()) options.warning(text);
  ModelInfo info = info_of(*open.files);
  const CacheOptions cache = cache_of(options, *open.files, open.context);
  const MemoryPlan plan = plan_of(*open.files, cache);
  const std::int64_t context = open.context;
  Transformer transformer = open.load(plan, options.check_memory, options.progress);
  return Model(std::shared_ptr<State>(
      new State{std::move(info), plan, std::move(transformer), std::move(open.tokenizer), context, cache, nullptr}));
}

const ModelInfo& Model::info() const {
  return state_->info;
}
const MemoryPlan& Model::memory() const {
  return state_->memory;
}
std::int64_t Model::context() const {
  return state_->context;
}
const Tokenizer& Model::tokenizer() const {
  return state_->tokenizer;
}

ChatTemplate Model::chat_template(const std::string& name) const {
  return chat_template_of(state_->tokenizer, name, "chat_template");
}

std::vector<Token> Model::stop_tokens(const ChatTemplate* chat) const {
  return llm::stop_tokens(state_->tokenizer, state_->config(), chat);
}

Answer Model::generate(std::string_view prompt, const GenerateOptions& options, const OnText& on_text) {
  return generate(state_->tokenizer.encode(prompt), options, on_text);
}

Answer Model::generate(std::span<const Token> prompt, const GenerateOptions& options, const OnText& on_text) {
  state_->must_generate();
  RunningBatch& batch = state_->running();
  Request request{.prompt = {prompt.begin(), prompt.end()},
                  .max_tokens = options.max_tokens,
                  .sampling = options.sampling,
                  .stop = options.stop,
                  .stop_tokens = stop_tokens()};
  request.stop_tokens.insert(request.stop_tokens.end(), options.stop_tokens.begin(), options.stop_tokens.end());
  const EngineStats before = batch.stats();
  const std::int64_t number = batch.submit(std::move(request));
  Answer answer;
  answer.prompt_tokens = std::ssize(prompt);
  try {
    while (!batch.idle())
      for (const Event& event : with_file_errors(state_->info.path.string(), [&] { return batch.step(); })) {
        answer.text += event.text;
        answer.finish = event.finish;
        if (event.has_token && event.finish != Finish::stop_token) answer.tokens.push_back(event.choice.token);
        if (event.has_token && options.sampling.logprobs > 0) answer.choices.push_back(event.choice);
        if (on_text && !event.text.empty() && !on_text(event.text) && event.finish == Finish::not_yet) {
          batch.cancel(number);
          answer.finish = Finish::cancelled;
        }
      }
  } catch (...) {  // of the callback or the model: the next call begins afresh
    state_->batch.reset();
    throw;
  }
  if (answer.finish == Finish::cancelled) (void)batch.step();  // takes the event of the end
  answer.reused_tokens = batch.stats().reused_tokens - before.reused_tokens;
  return answer;
}

Answer Model::chat(std::span<const Message> messages, const GenerateOptions& options, const OnText& on_text) {
  const ChatTemplate chat = chat_template();
  GenerateOptions with_stops = options;
  const std::vector<Token> stops = stop_tokens(&chat);
  with_stops.stop_tokens.insert(with_stops.stop_tokens.end(), stops.begin(), stops.end());
  return generate(encode_chat(state_->tokenizer, chat, messages, true), with_stops, on_text);
}

std::vector<float> Model::logits(std::span<const Token> tokens, bool last_alone) {
  state_->must_generate();
  if (tokens.empty()) throw InvalidArgument("logits: there are no tokens, expected at least one");
  Transformer& model = state_->transformer;
  const std::int64_t T = std::ssize(tokens), H = model.config().hidden, V = model.config().vocabulary;
  const std::int64_t rows = last_alone ? 1 : T;
  CacheOptions options = state_->cache;
  options.tokens = T;
  options.stream = 0;
  ModelCache cache(model.config(), options);
  const std::int64_t sequence = cache.add();
  std::vector<float> logits(static_cast<std::size_t>(rows) * static_cast<std::size_t>(V));
  for (std::int64_t first = 0; first < T; first += kTokensPerStep) {
    const std::int64_t count = std::min(kTokensPerStep, T - first);
    const Continuation part[] = {{sequence, count}};
    const View hidden =
        model.forward(tokens.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)), part, cache);
    const auto* from = static_cast<const float*>(hidden.data);
    if (!last_alone)
      model.logits(hidden, view_of(logits.data() + first * V, {1, 1, count, V}));
    else if (first + count == T)
      model.logits(view_of(from + (count - 1) * H, {1, 1, 1, H}), view_of(logits.data(), {1, 1, 1, V}));
  }
  return logits;
}

std::vector<float> Model::embed(std::span<const std::string> texts, const OnProgress& progress) {
  if (state_->config().causal)
    throw InvalidArgument("embed: " + state_->config().family +
                          " was made to continue text, expected a model for embeddings such as minilm");
  const EncodedTexts encoded = encode_texts(state_->tokenizer, state_->config(), texts);
  return embed_texts(state_->transformer, encoded, state_->info.path.string(), [&](std::int64_t done) {
    if (progress) progress(done, std::ssize(texts));
  });
}

Perplexity Model::perplexity(std::span<const Token> tokens, std::int64_t window, const OnProgress& progress) {
  state_->must_generate();
  if (window < 2) throw InvalidArgument("perplexity: window is " + std::to_string(window) + ", expected at least 2");
  const std::int64_t length = std::min({window, state_->context, std::max<std::int64_t>(2, std::ssize(tokens))});
  return llm::perplexity(state_->transformer, tokens, length, state_->cache, [&](std::int64_t done) {
    if (progress) progress(done, std::ssize(tokens));
  });
}

}  // namespace attend::llm
