// `attend chat`: a conversation in the terminal.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>

#include "command.hpp"
#include "draw/wrapped_text.hpp"
#include "interrupt.hpp"
#include "io/closest.hpp"
#include "io/environment.hpp"
#include "io/json.hpp"
#include "io/readable.hpp"
#include "language_model.hpp"
#include "line_reader.hpp"
#include "llm/runtime/file_errors.hpp"
#include "llm/text/unicode.hpp"
#include "progress.hpp"
#include "screen.hpp"
#include "terminal_lines.hpp"

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
    "  /reset          forget the conversation; what the model was told first (--system) stays\n"
    "  /system TEXT    forget it, and tell the model TEXT first; without TEXT, nothing\n"
    "  /stats          tokens, rates and memory so far\n"
    "  /help           these lines\n"
    "  /quit           end (so does Ctrl-D)\n"
    "  Ctrl-C          stops an answer; at the prompt it ends the program\n";

class Conversation {
 public:
  Conversation(const Arguments& a, llm::RunningBatch& engine, const llm::Tokenizer& tokenizer, llm::ChatTemplate chat,
               std::vector<llm::Token> stops, bool on_terminal)
      : a_(a),
        engine_(engine),
        tokenizer_(tokenizer),
        chat_(std::move(chat)),
        stops_(std::move(stops)),
        on_terminal_(on_terminal),
        system_(a.system) {
    reset();
  }

  void reset() {
    messages_.clear();
    if (!system_.empty()) messages_.push_back({"system", system_});
  }
  void set_system(std::string text) {
    system_ = std::move(text);
    reset();
  }

  // Streams the answer; what Ctrl-C leaves of it stays part of the conversation.
  void say(const std::string& text) {
    if (!is_utf8(text)) {
      note("(that line is not UTF-8: it was not sent)\n");
      return;
    }
    messages_.push_back({"user", text});
    llm::Request request{.prompt = llm::encode_chat(tokenizer_, chat_, messages_, true),
                         .max_tokens = a_.tokens,
                         .sampling = a_.sampling,
                         .stop_tokens = stops_};
    if (a_.model.stream == 0) request.max_tokens = std::min(a_.tokens, engine_.context() - std::ssize(request.prompt));
    if (request.max_tokens < 1) {
      messages_.pop_back();
      note(fmt::format("(the conversation has filled the context of {} tokens; /reset begins a new one)\n",
                       engine_.context()));
      return;
    }
    request.sampling.seed = a_.sampling.seed + static_cast<std::uint64_t>(turns_++);  // answers differ, and repeat
    messages_.push_back({"assistant", stream(std::move(request))});
  }

  // What the program itself says, wrapped like an answer.
  void note(const std::string& text) const {
    draw::WrappedText wrapped;
    show(wrapped, text);
  }

  void stats() const {
    note(fmt::format("{}; {} in the cache, {} each\n", describe(total_), io::counted(engine_.kept_tokens(), "token"),
                     io::readable_bytes(static_cast<double>(engine_.cache().bytes_per_token()))));
  }

 private:
  // On a terminal words stay whole at the right edge, which may move; elsewhere the text goes out as it is.
  void show(draw::WrappedText& wrapped, const std::string& text) const {
    fmt::print("{}", on_terminal_ ? wrapped.put(text, look_at_screen(false).columns) : text);
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
    if (on_terminal_ && (finish == llm::Finish::length || finish == llm::Finish::context))
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
  bool on_terminal_;
  std::string system_;  // what the model is told before the conversation
  std::vector<llm::Message> messages_;
  std::int64_t turns_ = 0;
  Tally total_;
};

// False when the conversation is over.
bool obey(Conversation& conversation, const std::string& line) {
  const std::string command = line.substr(0, line.find(' '));
  if (command == "/quit" || command == "/exit") return false;
  if (command == "/reset") {
    conversation.reset();
    conversation.note("(a new conversation)\n");
  } else if (command == "/system") {
    conversation.set_system(line.size() > command.size() ? line.substr(command.size() + 1) : "");
    conversation.note("(a new conversation)\n");
  } else if (command == "/stats") {
    conversation.stats();
  } else if (command == "/help") {
    conversation.note(kCommands);
  } else {
    const std::vector<std::string> known = {"/reset", "/system", "/stats", "/help", "/quit", "/exit"};
    conversation.note(fmt::format("(there is no command {}{})\n{}", io::json_quoted(command),
                                  io::did_you_mean(command, known), kCommands));
  }
  return true;
}

void converse(Conversation& conversation, bool asks) {
  std::optional<LineReader> reader;
  if (asks) {
    reader.emplace("> ", look_at_screen(true).colours != draw::Colours::none);
    fmt::print("Type a message; /help lists commands.\n");
  }
  while (true) {
    if (asks) fmt::print("\n");
    const std::optional<std::string> line = asks ? reader->read() : read_plain_line("");
    if (!line) break;
    if (line->find_first_not_of(" \t\r") == std::string::npos) continue;
    if (line->front() != '/')
      conversation.say(*line);
    else if (!obey(conversation, *line))
      return;
  }
  if (asks) fmt::print("\n");
}

int run_chat(const Arguments& a) {
  llm::check_sampling(a.sampling);
  llm::OpenModel open = open_model(a.model);
  const llm::ModelConfig& config = open.files->config();
  if (!config.causal) throw UsageError(config.family + " does not generate text; 'attend embed' runs it");
  llm::ChatTemplate chat = chat_template_of(open.tokenizer, a.form);
  const auto stops = llm::stop_tokens(open.tokenizer, config, &chat);
  // A conversation may go on for as long as its cache lets it: a stream has no end.
  const std::int64_t longest = a.model.stream > 0 ? std::numeric_limits<std::int64_t>::max() : open.context;
  const llm::CacheOptions cache = cache_options(a.model, *open.files, longest);
  llm::Transformer model =
      load_model(open, llm::plan_memory(*open.files, cache, llm::kTokensPerStep, 1), a.model.quiet);
  llm::RunningBatch engine(model, open.tokenizer, llm::batch_options(cache, open.context));
  const bool asks = ::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1;
  const std::string_view terminal = io::environment("TERM");
  const bool wraps = ::isatty(STDOUT_FILENO) == 1 && !terminal.empty() && terminal != "dumb";
  Conversation conversation(a, engine, open.tokenizer, std::move(chat), stops, wraps);
  converse(conversation, asks);
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
  add_sampling_arguments(app, a->sampling);
  add_chat_arguments(app, a->form);
  app.footer(std::string("In the conversation:\n") + kCommands +
             "\nExamples:\n"
             "  attend chat                                                  with the model inside the program\n"
             "  attend pull smollm2 && attend chat smollm2\n"
             "  attend chat smollm2 --system \"Answer in one sentence.\" -t 0\n"
             "  attend chat smollm2 --stream 1024                            without end, in bounded memory\n"
             "  echo \"Name three rivers.\" | attend chat smollm2 -q\n"
             "\nEarlier turns stay in the cache: only what is new is read before an answer.");
  return {app, [a] { return run_chat(*a); }};
}

}  // namespace attend::cli
