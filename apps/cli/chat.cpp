// `attend chat`: a conversation in the terminal.
#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>

#include "chat_server.hpp"
#include "command.hpp"
#include "conversation.hpp"
#include "draw/wrapped_text.hpp"
#include "interrupt.hpp"
#include "io/readable.hpp"
#include "language_model.hpp"
#include "llm/runtime/file_errors.hpp"
#include "progress.hpp"

namespace attend::cli {
namespace {

struct Arguments {
  ModelArguments model;
  llm::Sampling sampling = llm::default_sampling();
  std::optional<SamplingOptions> options{};
  ChatArguments form;
  std::string system, server;
  std::int64_t tokens = 512;
};

// The model runs here.
class LocalConversation : public Conversation {
 public:
  LocalConversation(const Arguments& a, llm::RunningBatch& engine, const llm::Tokenizer& tokenizer,
                    llm::ChatTemplate chat, std::vector<llm::Token> stops)
      : Conversation(a.system),
        a_(a),
        engine_(engine),
        tokenizer_(tokenizer),
        chat_(std::move(chat)),
        stops_(std::move(stops)) {}

  void stats() const override {
    note(fmt::format("{}; {} in the cache, {} each\n", describe(total_), io::counted(engine_.kept_tokens(), "token"),
                     io::readable_bytes(static_cast<double>(engine_.cache().bytes_per_token()))));
  }

 private:
  std::optional<std::string> answer(const std::vector<llm::Message>& messages) override {
    llm::Request request{.prompt = llm::encode_chat(tokenizer_, chat_, messages, true),
                         .max_tokens = a_.tokens,
                         .sampling = a_.sampling,
                         .stop_tokens = stops_};
    if (a_.model.stream == 0) request.max_tokens = std::min(a_.tokens, engine_.context() - std::ssize(request.prompt));
    if (request.max_tokens < 1) {
      note(fmt::format("(the conversation has filled the context of {} tokens; /reset begins a new one)\n",
                       engine_.context()));
      return std::nullopt;
    }
    request.sampling.seed = a_.sampling.seed + static_cast<std::uint64_t>(turns_++);  // answers differ, and repeat
    return stream(std::move(request));
  }

  std::string stream(llm::Request request) {
    using Clock = std::chrono::steady_clock;
    const InterruptWatch watch;
    const auto before = engine_.stats();
    const auto start = Clock::now();
    auto first = start;
    std::int64_t made = 0;
    std::string answer;
    draw::WrappedText shown;
    llm::Finish finish = llm::Finish::not_yet;
    std::optional<ProgressBar> bar;
    if (!a_.model.quiet) bar.emplace("reading", std::ssize(request.prompt), "tokens");
    const std::int64_t number = engine_.submit(std::move(request));
    while (!engine_.idle()) {
      try {
        check_interrupted();
      } catch (const Interrupted& interrupted) {
        engine_.cancel(number);
        if (interrupted.signal != SIGINT) throw;
        show(shown, " ...");
      }
      const std::vector<llm::Event> events = llm::with_file_errors(a_.model.model, [&] { return engine_.step(); });
      const auto& now = engine_.stats();
      if (bar) bar->update(now.prompt_tokens + now.reused_tokens - before.prompt_tokens - before.reused_tokens);
      for (const llm::Event& event : events) {
        bar.reset();  // the answer has begun
        if (event.has_token && ++made == 1) first = Clock::now();
        answer += event.text;
        show(shown, event.text);
        finish = event.finish;
      }
      (void)std::fflush(stdout);
    }
    fmt::print("\n");
    if (on_terminal() && (finish == llm::Finish::length || finish == llm::Finish::context))
      note(fmt::format("(cut after {}: {})\n", io::counted(made, "token"),
                       made == a_.tokens ? "-n allows longer answers" : "the context is full, /reset empties it"));
    const auto& after = engine_.stats();
    total_.prompt += after.prompt_tokens - before.prompt_tokens;
    total_.reused += after.reused_tokens - before.reused_tokens;
    total_.generated += made;
    total_.prompt_seconds += std::chrono::duration<double>(first - start).count();
    total_.generate_seconds += std::chrono::duration<double>(Clock::now() - first).count();
    return answer;
  }

  const Arguments& a_;
  llm::RunningBatch& engine_;
  const llm::Tokenizer& tokenizer_;
  llm::ChatTemplate chat_;
  std::vector<llm::Token> stops_;
  std::int64_t turns_ = 0;
  Tally total_;
};

int run_chat(Arguments a) {
  llm::check_sampling(a.sampling);
  const llm::SamplingSettings given = given_settings(*a.options, a.sampling);
  if (!a.server.empty() && llm::compute_named(a.model.compute) != llm::Compute::file)
    throw UsageError(fmt::format(
        "--compute is '{}' with --server, which has loaded its model already: start 'attend serve' with --compute",
        a.model.compute));
  if (!a.server.empty())
    return chat_with_server(
        {a.server, a.model.model, a.system, given, a.sampling.presence_penalty, a.sampling.seed, a.tokens});
  llm::OpenModel open = open_model(a.model);
  const llm::ModelConfig& config = open.files->config();
  if (!config.causal) throw UsageError(config.family + " does not generate text; 'attend embed' runs it");
  llm::Sampling sampling = llm::complete_sampling(given, config.sampling);
  sampling.presence_penalty = a.sampling.presence_penalty;
  sampling.seed = a.sampling.seed;
  a.sampling = sampling;
  llm::ChatTemplate chat = chat_template_of(open.tokenizer, a.form);
  if (!a.model.quiet) introduce_small_model(a.model.model, config);
  const auto stops = llm::stop_tokens(open.tokenizer, config, &chat);
  // A conversation may go on for as long as its cache lets it: a stream has no end.
  const std::int64_t longest = a.model.stream > 0 ? std::numeric_limits<std::int64_t>::max() : open.context;
  const llm::CacheOptions cache = cache_options(a.model, *open.files, longest);
  llm::Transformer model =
      load_model(open, llm::plan_memory(*open.files, cache, llm::kTokensPerStep, 1), a.model.quiet);
  llm::RunningBatch engine(model, open.tokenizer, llm::batch_options(cache, open.context));
  LocalConversation conversation(a, engine, open.tokenizer, std::move(chat), stops);
  converse(conversation);
  return kSuccess;
}

}  // namespace

Command add_chat(Program& program) {
  auto a = std::make_shared<Arguments>();
  const Subcommand app = program.add_subcommand("chat", "Talk with a language model");
  add_model_arguments(app, a->model, true, ModelNamed::or_default);
  app.add_option("--system", a->system, "What the model is told before the conversation").type_name("TEXT");
  app.add_option("--tokens,-n", a->tokens, "Longest answer, in tokens")
      .check(whole_number(1, std::int64_t{1} << 30))
      .type_name("N")
      .show_default();
  app.add_option(
         "--server", a->server,
         "Ask the model of a server that speaks OpenAI's API (attend serve), at its address; ATTEND_TOKEN is its key")
      .type_name("URL");
  a->options = add_sampling_arguments(app, a->sampling);
  add_chat_arguments(app, a->form);
  app.footer(
      std::string("In the conversation:\n") + kConversationCommands +
      "\nExamples:\n"
      "  attend chat                                                  with the model inside the program\n"
      "  attend pull smollm2 && attend chat smollm2\n"
      "  attend chat smollm2 --system \"Answer in one sentence.\" -t 0\n"
      "  attend chat smollm2 --stream 1024                            without end, in bounded memory\n"
      "  attend chat --server http://127.0.0.1:8080                   with a model that is served\n"
      "  echo \"Name three rivers.\" | attend chat smollm2 -q\n"
      "\nEarlier turns stay in the cache: only what is new is read before an answer.\n"
      "What a model's generation_config.json says of sampling replaces the defaults above; options win over both.\n"
      "With --server only the options that are given are sent: the server has its own defaults.");
  return {app, [a] { return run_chat(*a); }};
}

}  // namespace attend::cli
