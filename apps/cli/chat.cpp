// `attend chat`: a conversation in the terminal.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>

#include "command.hpp"
#include "interrupt.hpp"
#include "language_model.hpp"
#include "progress.hpp"
#include "readable.hpp"
#include "screen.hpp"

namespace attend::cli {
namespace {

struct Arguments {
  ModelArguments model;
  llm::Sampling sampling{.temperature = 0.7, .top_p = 0.9, .repetition_penalty = 1.1};
  ChatArguments form;
  std::string system;
  std::int64_t tokens = 512;
};

constexpr const char* kCommands =
    "  /reset          forget the conversation\n"
    "  /system TEXT    forget it, and tell the model TEXT first\n"
    "  /stats          tokens, rates and memory so far\n"
    "  /help           these lines\n"
    "  /quit           end (so does Ctrl-D)\n"
    "  Ctrl-C          stops an answer; at the prompt it ends the program\n";

class Conversation {
 public:
  Conversation(const Arguments& a, llm::Engine& engine, const llm::Tokenizer& tokenizer, llm::ChatTemplate chat,
               std::vector<llm::Token> stops)
      : a_(a), engine_(engine), tokenizer_(tokenizer), chat_(std::move(chat)), stops_(std::move(stops)) {
    reset(a.system);
  }

  void reset(const std::string& system) {
    messages_.clear();
    if (!system.empty()) messages_.push_back({"system", system});
  }

  // Streams the answer; what Ctrl-C leaves of it stays part of the conversation.
  void say(const std::string& text) {
    messages_.push_back({"user", text});
    llm::Request request{.prompt = llm::encode_chat(tokenizer_, chat_, messages_, true),
                         .max_tokens = a_.tokens,
                         .sampling = a_.sampling,
                         .stop_tokens = stops_};
    if (a_.model.stream == 0) request.max_tokens = std::min(a_.tokens, engine_.context() - std::ssize(request.prompt));
    if (request.max_tokens < 1) {
      messages_.pop_back();
      fmt::print("(the conversation has filled the context of {} tokens; /reset begins a new one)\n",
                 engine_.context());
      return;
    }
    request.sampling.seed = a_.sampling.seed + static_cast<std::uint64_t>(turns_++);  // answers differ, and repeat
    messages_.push_back({"assistant", stream(std::move(request))});
  }

  void stats() const {
    fmt::print("{}; {} in the cache, {} each\n", describe(total_), counted(engine_.kept_tokens(), "token"),
               readable_bytes(static_cast<double>(engine_.cache().bytes_per_token())));
  }

 private:
  std::string stream(llm::Request request) {
    using Clock = std::chrono::steady_clock;
    const InterruptWatch watch;
    const auto before = engine_.stats();
    const auto start = Clock::now();
    auto first = start;
    std::int64_t made = 0;
    std::string answer;
    std::optional<ProgressBar> bar;
    if (!a_.model.quiet) bar.emplace("reading", std::ssize(request.prompt), "tokens");
    const std::int64_t number = engine_.submit(std::move(request));
    while (!engine_.idle()) {
      try {
        check_interrupted();
      } catch (const Interrupted& interrupted) {
        engine_.cancel(number);
        if (interrupted.signal != SIGINT) throw;
        fmt::print(" ...");
      }
      const std::vector<llm::Event> events = engine_.step();
      const auto& now = engine_.stats();
      if (bar) bar->update(now.prompt_tokens + now.reused_tokens - before.prompt_tokens - before.reused_tokens);
      for (const llm::Event& event : events) {
        bar.reset();  // the answer has begun
        if (event.has_token && ++made == 1) first = Clock::now();
        answer += event.text;
        fmt::print("{}", event.text);
      }
      (void)std::fflush(stdout);
    }
    fmt::print("\n");
    const auto& after = engine_.stats();
    total_.prompt += after.prompt_tokens - before.prompt_tokens;
    total_.reused += after.reused_tokens - before.reused_tokens;
    total_.generated += made;
    total_.prompt_seconds += std::chrono::duration<double>(first - start).count();
    total_.generate_seconds += std::chrono::duration<double>(Clock::now() - first).count();
    return answer;
  }

  const Arguments& a_;
  llm::Engine& engine_;
  const llm::Tokenizer& tokenizer_;
  llm::ChatTemplate chat_;
  std::vector<llm::Token> stops_;
  std::vector<llm::Message> messages_;
  std::int64_t turns_ = 0;
  Tally total_;
};

// False when the conversation is over.
bool obey(Conversation& conversation, const std::string& line) {
  const std::string command = line.substr(0, line.find(' '));
  if (command == "/quit" || command == "/exit") return false;
  if (command == "/reset") {
    conversation.reset({});
    fmt::print("(a new conversation)\n");
  } else if (command == "/system") {
    conversation.reset(line.size() > command.size() ? line.substr(command.size() + 1) : "");
    fmt::print("(a new conversation)\n");
  } else if (command == "/stats") {
    conversation.stats();
  } else {
    fmt::print("{}", kCommands);
  }
  return true;
}

int run_chat(const Arguments& a) {
  llm::check_sampling(a.sampling);
  OpenModel open(a.model);
  const llm::ModelConfig& config = open.files->config();
  if (!config.causal) throw UsageError(config.family + " does not generate text; 'attend embed' runs it");
  llm::ChatTemplate chat = chat_template_of(open.tokenizer, a.form);
  const auto stops = stop_tokens(open.tokenizer, config, &chat);
  // A conversation may go on for as long as its cache lets it: a stream has no end.
  const std::int64_t longest = a.model.stream > 0 ? std::numeric_limits<std::int64_t>::max() : open.context;
  const llm::CacheOptions cache = cache_options(a.model, *open.files, longest);
  llm::Model model = open.load(plan_memory(*open.files, cache, kTokensPerStep, 1), a.model.quiet);
  llm::Engine engine(model, open.tokenizer, engine_options(a.model, cache, open.context));
  Conversation conversation(a, engine, open.tokenizer, std::move(chat), stops);
  const bool asks = ::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1;
  const Screen screen = look_at_screen(true);
  if (asks) fmt::print("Type a message; /help lists commands.\n");
  for (std::string line;;) {
    if (asks) fmt::print("\n{} ", emphasised(screen, ">"));
    (void)std::fflush(stdout);
    if (!std::getline(std::cin, line)) break;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (line.front() == '/') {
      if (!obey(conversation, line)) break;
      continue;
    }
    conversation.say(line);
  }
  if (asks) fmt::print("\n");
  return kSuccess;
}

}  // namespace

Command add_chat(CLI::App& program) {
  auto a = std::make_shared<Arguments>();
  CLI::App* app = program.add_subcommand("chat", "Talk with a language model");
  add_model_arguments(*app, a->model, true);
  app->add_option("--system", a->system, "What the model is told before the conversation")->type_name("TEXT");
  app->add_option("--tokens,-n", a->tokens, "Longest answer, in tokens")
      ->check(whole_number(1, std::int64_t{1} << 30))
      ->type_name("N")
      ->capture_default_str();
  add_sampling_arguments(*app, a->sampling);
  add_chat_arguments(*app, a->form);
  app->footer(std::string("In the conversation:\n") + kCommands +
              "\nExamples:\n"
              "  attend pull smollm2 && attend chat smollm2\n"
              "  attend chat smollm2 --system \"Answer in one sentence.\" -t 0\n"
              "  attend chat smollm2 --stream 1024                            without end, in bounded memory\n"
              "  echo \"Name three rivers.\" | attend chat smollm2 -q\n"
              "\nEarlier turns stay in the cache: only what is new is read before an answer.");
  return {app, [a] { return run_chat(*a); }};
}

}  // namespace attend::cli
