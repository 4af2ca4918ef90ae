// Opens a model: its memory is planned and checked before anything is loaded.
#include "llm/runtime/open_model.hpp"

#include <algorithm>
#include <stdexcept>

#include "attend/error.hpp"
#include "attend/llm/store.hpp"
#include "attend/runtime.hpp"
#include "io/closest.hpp"
#include "io/readable.hpp"
#include "llm/runtime/file_errors.hpp"
#include "llm/runtime/memory.hpp"

namespace attend::llm {
namespace {

std::string bytes(std::int64_t n) {
  return io::readable_bytes(static_cast<double>(n));
}

}  // namespace

CacheFormat chosen_format(CacheFormat format, const ModelFiles& files) {
  if (format != CacheFormat::automatic) return format;
  if (files.compute() == Compute::f32) return CacheFormat::f32;
  const bool all_f32 = std::all_of(files.tensors().begin(), files.tensors().end(),
                                   [](const StoredTensor& t) { return !t.format || *t.format == WeightFormat::f32; });
  return all_f32 ? CacheFormat::f32 : CacheFormat::f16;
}

CacheOptions cache_options(CacheFormat format, std::int64_t stream, const ModelFiles& files, std::int64_t tokens) {
  format = chosen_format(format, files);
  CacheOptions options{.tokens = tokens, .dtype = DType::f16, .stream = stream};
  if (stream > 0) options.tokens = std::min(tokens, stream_room({.tokens_per_step = kTokensPerStep, .stream = stream}));
  if (format == CacheFormat::f32) options.dtype = DType::f32;
  if (format == CacheFormat::bf16) options.dtype = DType::bf16;
  options.int8 = format == CacheFormat::int8;
  return options;
}

BatchOptions batch_options(const CacheOptions& cache, std::int64_t context) {
  return {.context = context,
          .cache_tokens = cache.tokens,
          .tokens_per_step = kTokensPerStep,
          .cache_dtype = cache.dtype,
          .cache_int8 = cache.int8,
          .stream = cache.stream};
}

MemoryPlan plan_memory(const ModelFiles& files, const CacheOptions& cache, std::int64_t tokens_per_step,
                       std::int64_t logits) {
  const ModelConfig& config = files.config();
  return with_file_errors(files.path(), [&] {
    MemoryPlan plan;
    plan.weights = weights_memory(files);
    if (config.causal && cache.tokens > 0) plan.cache = ModelCache::bytes_for(config, cache);
    plan.working = working_memory(config, tokens_per_step, logits, cache.dtype);
    return plan;
  });
}

std::string describe(const MemoryPlan& plan) {
  std::string text = bytes(plan.total()) + ": weights " + bytes(plan.weights);
  if (plan.cache > 0) text += ", keys and values " + bytes(plan.cache);
  return text + ", work " + bytes(plan.working);
}

void check_memory(const MemoryPlan& plan, const ModelFiles& files) {
  const auto available = available_memory();
  if (!available || plan.total() <= *available) return;
  const bool dequantised = files.quantised() && files.compute() == Compute::f32;
  throw std::runtime_error("this needs " + bytes(plan.total()) + " of memory, and " + bytes(*available) +
                           " are free; ask for a shorter context, or take a smaller model" +
                           (dequantised ? ", or compute = file, which keeps weights quantised" : ""));
}

ModelInfo info_of(const ModelFiles& files) {
  const ModelConfig& c = files.config();
  return {.path = files.path(),
          .family = c.family,
          .generates = c.causal,
          .layers = c.layers,
          .hidden = c.hidden,
          .heads = c.heads,
          .kv_heads = c.kv_heads,
          .head_dim = c.head_dim,
          .vocabulary = c.vocabulary,
          .context = c.context,
          .parameters = with_file_errors(files.path(), [&] { return count_parameters(c).total(); }),
          .file_bytes = files.bytes(),
          .quantised = files.quantised(),
          .compute = files.compute()};
}

std::string unused_warning(const ModelFiles& files) {
  const std::vector<std::string>& names = files.unused();
  if (names.empty()) return "";
  constexpr std::size_t kShown = 4;
  std::string text = files.path().string() + ": nothing uses " + io::counted(std::ssize(names), "tensor") + ": ";
  for (std::size_t i = 0; i < std::min(kShown, names.size()); ++i)
    text += (i > 0 ? ", \"" : "\"") + io::printable(names[i], 100) + "\"";
  if (names.size() > kShown) text += " and " + std::to_string(names.size() - kShown) + " more";
  return text;
}

std::string context_warning(const std::string& what, std::int64_t asked, const ModelConfig& config) {
  if (!config.causal || asked <= config.context) return "";
  const bool learnt = config.positions == PositionKind::learned;
  return what + " is " + std::to_string(asked) + ", and the model was made for " +
         io::counted(config.context, "token") + ": " +
         (learnt ? "its learnt positions end there, and so does the context"
                 : "what it writes beyond them may make no sense");
}

OpenModel::OpenModel(const std::string& name_or_path, std::int64_t asked, Compute compute)
    : files(std::make_unique<ModelFiles>(find_model(name_or_path), compute)),
      tokenizer(load_tokenizer(*files)),
      context(asked > 0 ? asked : files->config().context) {
  (void)kernel_name();  // an ATTEND_ISA that cannot be had is the caller's fault, and said before any file's
  const ModelConfig& config = files->config();
  if (config.causal && config.positions == PositionKind::learned) context = std::min(context, config.context);
}

Transformer OpenModel::load(const MemoryPlan& plan, bool check, const LoadProgress& progress) {
  if (check) check_memory(plan, *files);
  Transformer model = with_file_errors(files->path(), [&] { return Transformer(*files, progress); });
  files.reset();
  return model;
}

ChatTemplate chat_template_of(const Tokenizer& tokenizer, const std::string& name, const std::string& option) {
  const std::vector<std::string> known = ChatTemplate::names();
  if (!name.empty()) {
    const auto named = ChatTemplate::named(name);
    if (!named)
      throw InvalidArgument(option + " is '" + name + "', expected one of " + io::joined(known, ", ") +
                            io::did_you_mean(name, known));
    return *named;
  }
  if (tokenizer.chat_template().empty())
    throw InvalidArgument(
        "this model brings no chat template: it was made to continue text (attend generate), or name "
        "one with " +
        option + ": " + io::joined(known, ", "));
  return ChatTemplate::detect(tokenizer.chat_template());
}

void check_tokens(std::span<const Token> tokens, std::int64_t vocabulary, const std::string& model) {
  for (const Token token : tokens)
    if (token >= vocabulary)
      throw io::FileError(model + ": its tokenizer gives token " + std::to_string(token) + ", and the model knows " +
                          io::counted(vocabulary, "token"));
}

std::vector<Token> stop_tokens(const Tokenizer& tokenizer, const ModelConfig& config, const ChatTemplate* chat) {
  std::vector<Token> stops;
  for (const std::int64_t id : config.eos) stops.push_back(static_cast<Token>(id));
  if (tokenizer.special().eos) stops.push_back(*tokenizer.special().eos);
  if (chat != nullptr)
    for (const std::string& piece : chat->stop_pieces())
      if (const auto token = tokenizer.find(piece)) stops.push_back(*token);
  return stops;
}

EncodedTexts encode_texts(const Tokenizer& tokenizer, const ModelConfig& config, std::span<const std::string> texts) {
  EncodedTexts encoded;
  encoded.longest = config.longest_text > 0 ? config.longest_text : config.context;
  for (const std::string& text : texts) {
    std::vector<Token>& tokens = encoded.tokens.emplace_back(tokenizer.encode(text));
    if (std::ssize(tokens) <= encoded.longest) continue;
    ++encoded.cut;
    const Token last = tokens.back();
    tokens.resize(static_cast<std::size_t>(encoded.longest));
    tokens.back() = last;
  }
  return encoded;
}

std::vector<float> embed_texts(Transformer& model, const EncodedTexts& texts, const std::string& what,
                               const std::function<void(std::int64_t done)>& progress) {
  const std::vector<std::vector<Token>>& encoded = texts.tokens;
  std::vector<float> rows;
  for (std::size_t first = 0; first < encoded.size();) {
    std::vector<Token> tokens;
    std::vector<std::int64_t> lengths;
    do {
      tokens.insert(tokens.end(), encoded[first].begin(), encoded[first].end());
      lengths.push_back(std::ssize(encoded[first]));
      ++first;
    } while (first < encoded.size() && std::ssize(tokens) + std::ssize(encoded[first]) <= kTokensPerEmbed);
    const std::vector<float> some = with_file_errors(what, [&] { return model.embed(tokens, lengths); });
    rows.insert(rows.end(), some.begin(), some.end());
    if (progress) progress(static_cast<std::int64_t>(first));
  }
  return rows;
}

}  // namespace attend::llm
