// Loads a language model for the commands, with its memory planned and said beforehand.
#include "language_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <stdexcept>

#include "attend/runtime.hpp"
#include "blame.hpp"
#include "command.hpp"
#include "io/closest.hpp"
#include "io/readable.hpp"
#include "llm/text/unicode.hpp"
#include "memory.hpp"
#include "model_store.hpp"
#include "progress.hpp"

namespace attend::cli {

void add_model_arguments(const Subcommand& app, ModelArguments& a, bool with_cache) {
  app.add_option("model", a.model, "A pulled model's name (attend models), a .gguf or .pth file, or a folder")
      .required()
      .type_name("MODEL");
  if (with_cache) {
    app.add_option("--context", a.context, "Longest sequence in tokens; 0: what the model was made for")
        .check(whole_number(0, std::int64_t{1} << 30))
        .type_name("N")
        .show_default();
    app.add_option("--cache", a.cache,
                   "Keys and values are kept as f32, f16, bf16 or int8; auto: f32 beside f32 weights, else f16")
        .check(one_of({"auto", "f32", "f16", "bf16", "int8"}))
        .type_name("NAME")
        .show_default();
    app.add_option(
           "--stream", a.stream,
           "Text without end: keep the first tokens and the last N instead of all; 0: off, the context is the end")
        .check(whole_number(0, std::int64_t{1} << 30))
        .type_name("N")
        .show_default();
  }
  app.add_option("--threads", a.threads, "Threads; 0: ATTEND_THREADS, or one for each CPU")
      .check(whole_number(0, 1024))
      .type_name("N")
      .show_default();
  app.add_flag("--quiet,-q", a.quiet, "Say nothing but the result");
}

void add_sampling_arguments(const Subcommand& app, llm::Sampling& s) {
  // The ranges are those of llm::check_sampling.
  app.add_option("--temperature,-t", s.temperature, "0: always the likeliest token")
      .check(real_number(0, 100))
      .type_name("T")
      .show_default();
  app.add_option("--top-k", s.top_k, "Only the K likeliest tokens; 0: all")
      .check(whole_number(0, INT64_MAX))
      .type_name("K")
      .show_default();
  app.add_option("--top-p", s.top_p, "Only the likeliest that reach P together")
      .check(real_number(0, 1))
      .type_name("P")
      .show_default();
  app.add_option("--min-p", s.min_p, "Only those at least P times as likely as the likeliest")
      .check(real_number(0, 1))
      .type_name("P")
      .show_default();
  app.add_option("--repetition-penalty", s.repetition_penalty, "Above 1: tokens seen before become less likely")
      .check(real_number(0.01, 100))
      .type_name("X")
      .show_default();
  app.add_option("--presence-penalty", s.presence_penalty, "Taken off the logits of tokens already generated")
      .check(real_number(-100, 100))
      .type_name("X")
      .show_default();
  app.add_option("--seed", s.seed, "The same seed gives the same text")
      .check(seed_number())
      .type_name("N")
      .show_default();
}

llm::CacheOptions cache_options(const ModelArguments& a, const llm::ModelFiles& files, std::int64_t tokens) {
  const std::string& name = a.cache;
  llm::CacheOptions options{.tokens = tokens, .dtype = DType::f16, .stream = a.stream};
  if (a.stream > 0)
    options.tokens = std::min(tokens, llm::stream_room({.tokens_per_step = kTokensPerStep, .stream = a.stream}));
  if (name == "f32") options.dtype = DType::f32;
  if (name == "bf16") options.dtype = DType::bf16;
  if (name == "int8") options.int8 = true;
  if (name == "auto") {
    const bool all_f32 = std::all_of(files.tensors().begin(), files.tensors().end(), [](const llm::StoredTensor& t) {
      return !t.format || *t.format == WeightFormat::f32;
    });
    if (all_f32) options.dtype = DType::f32;
  }
  return options;
}

llm::EngineOptions engine_options(const ModelArguments& a, const llm::CacheOptions& cache, std::int64_t context) {
  return {.context = context,
          .cache_tokens = cache.tokens,
          .tokens_per_step = kTokensPerStep,
          .cache_dtype = cache.dtype,
          .cache_int8 = cache.int8,
          .stream = a.stream};
}

MemoryPlan plan_memory(const llm::ModelFiles& files, const llm::CacheOptions& cache, std::int64_t tokens_per_step,
                       std::int64_t logits) {
  const llm::ModelConfig& config = files.config();
  return blame(files.path(), [&] {
    MemoryPlan plan;
    plan.weights = llm::weights_memory(files);
    if (config.causal && cache.tokens > 0) plan.cache = llm::ModelCache::bytes_for(config, cache);
    plan.working = llm::working_memory(config, tokens_per_step, logits, cache.dtype);
    return plan;
  });
}

std::string describe(const MemoryPlan& plan) {
  const auto bytes = [](std::int64_t n) { return io::readable_bytes(static_cast<double>(n)); };
  std::string text = fmt::format("{}: weights {}", bytes(plan.total()), bytes(plan.weights));
  if (plan.cache > 0) text += fmt::format(", keys and values {}", bytes(plan.cache));
  return text + fmt::format(", work {}", bytes(plan.working));
}

void warn_of_unused(const llm::ModelFiles& files) {
  const std::vector<std::string>& names = files.unused();
  if (names.empty()) return;
  constexpr std::size_t kShown = 4;
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, names.size()); ++i)
    text += (i > 0 ? ", \"" : "\"") + io::printable(names[i], 100) + "\"";
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  (void)std::fputs(fmt::format("warning: {}: nothing uses {}: {}\n", files.path().string(),
                               io::counted(std::ssize(names), "tensor"), text)
                       .c_str(),
                   stderr);
}

OpenModel::OpenModel(const ModelArguments& arguments)
    : files(std::make_unique<llm::ModelFiles>(find_model(arguments.model))),
      tokenizer(llm::load_tokenizer(*files)),
      context(arguments.context > 0 ? arguments.context : files->config().context) {
  (void)kernel_name();  // an ATTEND_ISA that cannot be had is the caller's fault, and said before any file's
  if (arguments.threads > 0) set_threads(arguments.threads);
  if (!arguments.quiet) warn_of_unused(*files);
  const llm::ModelConfig& config = files->config();
  if (!config.causal || context <= config.context) return;
  const bool learnt = config.positions == llm::PositionKind::learned;
  if (learnt) context = config.context;
  if (arguments.quiet) return;
  (void)std::fputs(fmt::format("warning: --context is {}, and the model was made for {}: {}\n", arguments.context,
                               io::counted(config.context, "token"),
                               learnt ? "its learnt positions end there, and so does the context"
                                      : "what it writes beyond them may make no sense")
                       .c_str(),
                   stderr);
}

llm::Model OpenModel::load(const MemoryPlan& plan, bool quiet) {
  if (!quiet) {
    (void)std::fputs(fmt::format("memory: {}\n", describe(plan)).c_str(), stderr);
  }
  const auto available = available_memory();
  if (available && plan.total() > *available)
    throw std::runtime_error(fmt::format(
        "this needs {} of memory, and {} are free; ask for a shorter --context, or take a smaller model",
        io::readable_bytes(static_cast<double>(plan.total())), io::readable_bytes(static_cast<double>(*available))));
  ProgressBar bar("loading", files->bytes());
  llm::Model model = blame(
      files->path(), [&] { return llm::Model(*files, [&](std::int64_t done, std::int64_t) { bar.update(done); }); });
  files.reset();
  return model;
}

void check_utf8(const std::string& what, std::string_view text) {
  for (std::size_t place = 0; place < text.size();) {
    const Utf8Step step = utf8_step(text, place);
    if (step.kind != Utf8Step::Kind::whole)
      throw UsageError(fmt::format("{} is not UTF-8 at byte {}, expected text in UTF-8", what, place));
    place += step.bytes;
  }
}

void add_chat_arguments(const Subcommand& app, ChatArguments& a) {
  app.add_option("--template", a.chat_template, "Use this chat template instead of the model's own").type_name("NAME");
  app.add_option(
         "--thinking", a.thinking,
         "Whether answers begin with thoughts: on or off, where the template leaves the choice (MiniMind 3, Qwen 3)")
      .check(one_of({"on", "off"}))
      .type_name("NAME");
}

namespace {

llm::ChatTemplate template_by_name(const llm::Tokenizer& tokenizer, const std::string& name) {
  if (!name.empty()) {
    const auto named = llm::ChatTemplate::named(name);
    const std::vector<std::string> known = llm::ChatTemplate::names();
    if (!named)
      throw UsageError(fmt::format("--template is '{}', expected one of {}{}", name, fmt::join(known, ", "),
                                   io::did_you_mean(name, known)));
    return *named;
  }
  if (tokenizer.chat_template().empty())
    throw UsageError(
        fmt::format("this model brings no chat template: it was made to continue text (attend generate), "
                    "or name one with --template: {}",
                    fmt::join(llm::ChatTemplate::names(), ", ")));
  return llm::ChatTemplate::detect(tokenizer.chat_template());
}

}  // namespace

llm::ChatTemplate chat_template_of(const llm::Tokenizer& tokenizer, const ChatArguments& a) {
  llm::ChatTemplate chat = template_by_name(tokenizer, a.chat_template);
  if (!a.thinking.empty()) chat.set_thinking(a.thinking == "on");
  return chat;
}

void check_tokens(const std::vector<llm::Token>& tokens, std::int64_t vocabulary, const std::string& model) {
  for (const llm::Token token : tokens)
    if (token >= vocabulary)
      throw io::FileError(fmt::format("{}: its tokenizer gives token {}, and the model knows {}", model, token,
                                      io::counted(vocabulary, "token")));
}

std::vector<llm::Token> stop_tokens(const llm::Tokenizer& tokenizer, const llm::ModelConfig& config,
                                    const llm::ChatTemplate* chat) {
  std::vector<llm::Token> stops;
  for (const std::int64_t id : config.eos) stops.push_back(static_cast<llm::Token>(id));
  if (tokenizer.special().eos) stops.push_back(*tokenizer.special().eos);
  if (chat != nullptr)
    for (const std::string& piece : chat->stop_pieces())
      if (const auto token = tokenizer.find(piece)) stops.push_back(*token);
  return stops;
}

std::string describe(const Tally& t) {
  const auto rate = [](std::int64_t tokens, double seconds) {
    return seconds > 0 ? fmt::format("{:.1f} tokens/s", static_cast<double>(tokens) / seconds) : "";
  };
  std::string text = fmt::format("prompt {}", io::counted(t.prompt + t.reused, "token"));
  if (t.reused > 0) text += fmt::format(" ({} of them from the cache)", t.reused);
  if (t.prompt > 0) text += fmt::format(", {}", rate(t.prompt, t.prompt_seconds));
  text += fmt::format("; answer {}", io::counted(t.generated, "token"));
  if (t.generated > 1) text += fmt::format(", {}", rate(t.generated - 1, t.generate_seconds));
  return text;
}

}  // namespace attend::cli
