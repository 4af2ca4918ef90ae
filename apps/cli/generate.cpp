// `attend generate`: continues a text, token by token.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "command.hpp"
#include "io/readable.hpp"
#include "language_model.hpp"
#include "llm/runtime/file_errors.hpp"
#include "llm/runtime/memory.hpp"
#include "progress.hpp"
#include "prompts.hpp"
#include "screen.hpp"

namespace attend::cli {
namespace {

struct Arguments {
  ModelArguments model;
  llm::Sampling sampling;
  ChatArguments form;
  std::string prompt, system;
  std::vector<std::string> stop;
  PromptsJob prompts;
  std::int64_t tokens = 128;
  bool chat = false, echo = false;
};

std::string read_prompt(const std::string& given) {
  if (given == "-") return read_standard_input();
  check_utf8("the prompt", given);
  return given;
}

std::vector<llm::Token> encode_prompt(const Arguments& a, const llm::Tokenizer& tokenizer,
                                      const std::optional<llm::ChatTemplate>& chat, const std::string& text) {
  if (!chat) return tokenizer.encode(text);
  std::vector<llm::Message> messages;
  if (!a.system.empty()) messages.push_back({"system", a.system});
  messages.push_back({"user", text});
  return llm::encode_chat(tokenizer, *chat, messages, true);
}

void print_likeliest(const llm::Tokenizer& tokenizer, const llm::Choice& choice) {
  const auto quoted = [&](llm::Token token) { return for_screen(io::json_quoted(tokenizer.piece(token))); };
  fmt::print("{:>10.4f}  {}\n", choice.logprob, quoted(choice.token));
  for (const auto& [token, logprob] : choice.likeliest)
    fmt::print("            {:>10.4f}  {}\n", logprob, quoted(token));
}

// One prompt, its answer shown as it grows.
int answer_one(const Arguments& a, llm::OpenModel& open, const std::string& text, llm::Request request) {
  const std::int64_t prompt = std::ssize(request.prompt),
                     longest = a.model.stream > 0 ? prompt + a.tokens : std::min(prompt + a.tokens, open.context);
  const llm::CacheOptions cache = cache_options(a.model, *open.files, longest);
  const llm::MemoryPlan plan = llm::plan_memory(*open.files, cache, std::min(prompt, llm::kTokensPerStep), 1);
  const llm::MemoryWatch watch;
  llm::Transformer model = load_model(open, plan, a.model.quiet);
  llm::RunningBatch engine(model, open.tokenizer, llm::batch_options(cache, open.context));
  engine.submit(std::move(request));
  if (a.echo) fmt::print("{}", for_screen(text));
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  auto first = start;
  Tally tally{.prompt = prompt};
  llm::Finish finish = llm::Finish::not_yet;
  std::optional<ProgressBar> bar;
  if (!a.model.quiet) bar.emplace("reading", prompt, "tokens");
  while (!engine.idle()) {
    const std::vector<llm::Event> events = llm::with_file_errors(a.model.model, [&] { return engine.step(); });
    if (bar) bar->update(engine.stats().prompt_tokens);
    for (const llm::Event& event : events) {
      bar.reset();  // the answer has begun
      if (event.has_token && ++tally.generated == 1) first = Clock::now();
      if (a.sampling.logprobs > 0 && event.has_token)
        print_likeliest(open.tokenizer, event.choice);
      else
        fmt::print("{}", for_screen(event.text));
      finish = event.finish;
    }
    if (std::fflush(stdout) != 0) return kFailure;  // nobody reads any more
  }
  fmt::print("\n");
  if (!a.model.quiet) {
    tally.prompt_seconds = std::chrono::duration<double>(first - start).count();
    tally.generate_seconds = std::chrono::duration<double>(Clock::now() - first).count();
    std::string used;
    if (const auto growth = watch.growth())
      used = fmt::format("; memory used {}", io::readable_bytes(static_cast<double>(*growth)));
    (void)std::fputs(fmt::format("{}; ended by {}{}\n", describe(tally), llm::name(finish), used).c_str(), stderr);
  }
  return kSuccess;
}

int run_generate(Arguments a) {
  if (a.prompts.path.empty()) find_text(a.model.model, a.prompt);
  llm::check_sampling(a.sampling);
  const bool many = !a.prompts.path.empty();
  if (!a.form.thinking.empty() && !a.chat && a.form.chat_template.empty())
    throw UsageError("--thinking is about answers in a chat: expected --chat beside it");
  if (many && !a.prompt.empty()) throw UsageError("got a prompt and --prompts, expected one of them");
  llm::OpenModel open = open_model(a.model);
  std::optional<llm::ChatTemplate> chat;
  if (a.chat || !a.form.chat_template.empty()) chat = chat_template_of(open.tokenizer, a.form);
  const llm::ModelConfig& config = open.files->config();
  if (!config.causal) throw UsageError(config.family + " does not generate text; 'attend embed' runs it");
  if (chat && !a.model.quiet) introduce_small_model(a.model.model, config);
  const auto stops = llm::stop_tokens(open.tokenizer, config, chat ? &*chat : nullptr);
  const auto request_of = [&, vocabulary = config.vocabulary](const std::string& text) {
    std::vector<llm::Token> prompt = encode_prompt(a, open.tokenizer, chat, text);
    llm::check_tokens(prompt, vocabulary, a.model.model);
    return llm::Request{.prompt = std::move(prompt),
                        .max_tokens = a.tokens,
                        .sampling = a.sampling,
                        .stop = a.stop,
                        .stop_tokens = stops};
  };
  if (many) return answer_prompts(open, a.model, a.prompts, request_of);
  const std::string text = read_prompt(a.prompt);
  llm::Request request = request_of(text);
  if (request.prompt.empty())
    throw UsageError("the prompt is empty; give some text, or '-' to read it from standard input");
  return answer_one(a, open, text, std::move(request));
}

}  // namespace

Command add_generate(Program& program) {
  auto a = std::make_shared<Arguments>();
  const Subcommand app = program.add_subcommand("generate", "Continue a text with a language model");
  add_model_arguments(app, a->model, true, ModelNamed::or_default);
  app.add_option("prompt", a->prompt, "The text to continue; '-' reads standard input").type_name("TEXT");
  const Option prompts = app.add_option("--prompts", a->prompts.path,
                                        "A file of prompts, one a line (.jsonl: a JSON string, or an object with "
                                        "\"prompt\"); '-' reads standard input; answers are printed as JSON lines")
                             .type_name("FILE");
  app.add_option("--batch", a->prompts.batch, "With --prompts: answers under way at once, if there is memory")
      .check(whole_number(1, 1024))
      .needs(prompts)
      .type_name("N")
      .show_default();
  app.add_option("--tokens,-n", a->tokens, "At most so many new tokens")
      .check(whole_number(1, std::int64_t{1} << 30))
      .type_name("N")
      .show_default();
  add_sampling_arguments(app, a->sampling);
  app.add_option("--stop", a->stop, "A text that ends the answer; may be given several times").type_name("TEXT");
  app.add_option("--logprobs", a->sampling.logprobs,
                 "Instead of the text, each token with its log-probability and the N likeliest")
      .check(whole_number(0, 100))
      .excludes(prompts)
      .type_name("N");
  app.add_flag("--chat", a->chat, "The prompt is a user's message: put it into the model's chat template");
  add_chat_arguments(app, a->form);
  app.add_option("--system", a->system, "With --chat: what the model is told before the message").type_name("TEXT");
  app.add_flag("--echo", a->echo, "Print the prompt before its continuation").excludes(prompts);
  app.footer(
      "Examples:\n"
      "  attend generate \"Once upon a time\"                         with the model inside the program\n"
      "  attend pull smollm2\n"
      "  attend generate smollm2 \"The capital of France is\" -n 20\n"
      "  attend generate smollm2 --chat \"Why is the sky blue?\" -t 0.7 --top-p 0.9 --seed 7\n"
      "  attend generate smollm2 \"1, 2, 3,\" -n 8 --logprobs 3     what else it thought of\n"
      "  attend generate model.gguf - -q < prompt.txt > answer.txt\n"
      "  attend generate smollm2 --chat --prompts questions.txt > answers.jsonl     many at once\n"
      "\nThe same prompt, seed and options give the same text, whatever the threads.");
  return {app, [a] { return run_generate(*a); }};
}

}  // namespace attend::cli
