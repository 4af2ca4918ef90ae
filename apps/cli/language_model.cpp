// Describes the arguments of a language model, and loads it with what people see of that.
#include "language_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <utility>

#include "attend/llm/store.hpp"
#include "attend/runtime.hpp"
#include "io/readable.hpp"
#include "io/utf8_text.hpp"
#include "progress.hpp"
#include "screen.hpp"

namespace attend::cli {

const char* const kModelHelp =
    "A model's name (attend models), a .gguf or .pth file, or a folder; without it the model pulled last, or the one "
    "inside the program";

void add_compute_argument(const Subcommand& app, std::string& compute) {
  app.add_option("--compute", compute,
                 "file: weights keep their format; with quantised ones, rows are rounded to int8 before each product. "
                 "f32: weights are dequantised on loading: more memory, no such rounding")
      .check(one_of({name(llm::Compute::file), name(llm::Compute::f32)}))
      .type_name("NAME")
      .show_default();
}

void add_model_arguments(const Subcommand& app, ModelArguments& a, bool with_cache, ModelNamed named) {
  if (named == ModelNamed::always)
    app.add_option("model", a.model, "A model's name (attend models), a .gguf or .pth file, or a folder")
        .required()
        .type_name("MODEL");
  else
    app.add_option("model", a.model, kModelHelp).type_name("MODEL");
  if (with_cache) {
    app.add_option("--context", a.context, "Longest sequence in tokens; 0: what the model was made for")
        .check(whole_number(0, std::int64_t{1} << 30))
        .type_name("N")
        .show_default();
    app.add_option("--cache", a.cache,
                   "Keys and values are kept as f32, f16, bf16 or int8; auto: f32 with f32 weights or --compute f32, "
                   "else f16")
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
  add_compute_argument(app, a.compute);
  app.add_option("--threads", a.threads, "Threads; 0: ATTEND_THREADS, or one for each CPU")
      .check(whole_number(0, 1024))
      .type_name("N")
      .show_default();
  app.add_flag("--quiet,-q", a.quiet, "Say nothing but the result");
}

SamplingOptions add_sampling_arguments(const Subcommand& app, llm::Sampling& s) {
  // The ranges are those of llm::check_sampling.
  const auto number = [&](const char* names, auto& value, const char* about, const Check& check, const char* type) {
    return app.add_option(names, value, about).check(check).type_name(type).show_default();
  };
  const SamplingOptions options{
      .temperature =
          number("--temperature,-t", s.temperature, "0: always the likeliest token", real_number(0, 100), "T"),
      .top_k = number("--top-k", s.top_k, "Only the K likeliest tokens; 0: all", whole_number(0, INT64_MAX), "K"),
      .top_p = number("--top-p", s.top_p, "Only the likeliest that reach P together", real_number(0, 1), "P"),
      .min_p =
          number("--min-p", s.min_p, "Only those at least P times as likely as the likeliest", real_number(0, 1), "P"),
      .repetition_penalty = number("--repetition-penalty", s.repetition_penalty,
                                   "Above 1: tokens seen before become less likely", real_number(0.01, 100), "X")};
  (void)number("--presence-penalty", s.presence_penalty, "Taken off the logits of tokens already generated",
               real_number(-100, 100), "X");
  (void)number("--seed", s.seed, "The same seed gives the same text", seed_number(), "N");
  return options;
}

llm::SamplingSettings given_settings(const SamplingOptions& options, const llm::Sampling& s) {
  llm::SamplingSettings given;
  if (options.temperature.given()) given.temperature = s.temperature;
  if (options.top_k.given()) given.top_k = s.top_k;
  if (options.top_p.given()) given.top_p = s.top_p;
  if (options.min_p.given()) given.min_p = s.min_p;
  if (options.repetition_penalty.given()) given.repetition_penalty = s.repetition_penalty;
  return given;
}

llm::CacheOptions cache_options(const ModelArguments& a, const llm::ModelFiles& files, std::int64_t tokens) {
  using llm::CacheFormat;
  const CacheFormat format = a.cache == "f32"    ? CacheFormat::f32
                             : a.cache == "f16"  ? CacheFormat::f16
                             : a.cache == "bf16" ? CacheFormat::bf16
                             : a.cache == "int8" ? CacheFormat::int8
                                                 : CacheFormat::automatic;
  return llm::cache_options(format, a.stream, files, tokens);
}

namespace {

void warn(const std::string& text) {
  if (!text.empty()) tell("warning: " + text);
}

}  // namespace

void say_default_model() {
  const std::string name = llm::default_model();
  const bool inside = name == llm::embedded_model();
  tell(fmt::format("model: {}{}; 'attend models' lists others", name,
                   inside ? ", a small one inside the program that tells stories" : ", pulled last"));
}

void introduce_small_model(const std::string& named, const llm::ModelConfig& config) {
  constexpr std::int64_t kSmall = 1'000'000'000;  // parameters; below it answers to questions are often wrong
  const std::int64_t parameters = llm::count_parameters(config).total();
  const std::string name = named.empty() ? llm::default_model() : named;
  const bool inside = name == llm::embedded_model();
  if (parameters >= kSmall || (named.empty() && inside)) return;  // say_default_model has introduced that one
  tell(fmt::format("{} is a small model ({} parameters): {}; 'attend models' lists larger ones", name,
                   io::readable_count(parameters),
                   inside ? "it tells stories and knows nothing else" : "its answers are often wrong"));
}

void warn_of_unused(const llm::ModelFiles& files) {
  warn(llm::unused_warning(files));
}

llm::OpenModel open_model(const ModelArguments& a) {
  if (a.model.empty() && !a.quiet) say_default_model();
  llm::OpenModel open(a.model, a.context, llm::compute_named(a.compute));
  if (a.threads > 0) set_threads(a.threads);
  if (a.quiet) return open;
  warn_of_unused(*open.files);
  warn(llm::context_warning("--context", a.context, open.files->config()));
  return open;
}

llm::Transformer load_model(llm::OpenModel& open, const llm::MemoryPlan& plan, bool quiet) {
  if (!quiet) (void)std::fputs(fmt::format("memory: {}\n", llm::describe(plan)).c_str(), stderr);
  ProgressBar bar("loading", open.files->bytes());
  return open.load(plan, true, [&](std::int64_t done, std::int64_t) { bar.update(done); });
}

void check_utf8(const std::string& what, std::string_view text) {
  try {
    io::check_utf8(text, 0, text.size(), {what, false});
  } catch (const io::FileError& error) {
    throw UsageError(error.what());
  }
}

std::string read_standard_input() {
  const std::string all(std::istreambuf_iterator<char>(std::cin), {});
  return io::utf8_text(all, {"standard input", false});
}

void find_text(std::string& model, std::string& text) {
  const bool words =
      std::any_of(model.begin(), model.end(), [](char c) { return c == ' ' || static_cast<unsigned char>(c) >= 0x80; });
  std::error_code error;
  if (text.empty() && (words || model == "-") && !std::filesystem::exists(model, error))
    text = std::exchange(model, "");
}

void add_chat_arguments(const Subcommand& app, ChatArguments& a) {
  app.add_option("--template", a.chat_template, "Use this chat template instead of the model's own").type_name("NAME");
  app.add_option(
         "--thinking", a.thinking,
         "Whether answers begin with thoughts: on or off, where the template leaves the choice (MiniMind 3, Qwen 3)")
      .check(one_of({"on", "off"}))
      .type_name("NAME");
}

llm::ChatTemplate chat_template_of(const llm::Tokenizer& tokenizer, const ChatArguments& a) {
  llm::ChatTemplate chat = llm::chat_template_of(tokenizer, a.chat_template, "--template");
  if (!a.thinking.empty()) chat.set_thinking(a.thinking == "on");
  return chat;
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
