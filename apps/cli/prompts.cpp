// A file of prompts: read, checked whole, then answered side by side.
#include "prompts.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>

#include "attend/error.hpp"
#include "command.hpp"
#include "io/json.hpp"
#include "io/readable.hpp"
#include "io/utf8_text.hpp"
#include "llm/runtime/file_errors.hpp"
#include "llm/runtime/memory.hpp"
#include "progress.hpp"
#include "screen.hpp"

namespace attend::cli {
namespace {

constexpr std::int64_t kPage = PagedKvCache::kPageTokens;
constexpr std::size_t kLongestLine = std::size_t{16} << 20;

std::string place(const std::string& path, std::int64_t line) {
  return fmt::format("{}:{}", path == "-" ? "standard input" : path, line);
}

std::string prompt_of_json(std::string_view line, const std::string& where) {
  const io::Json json = io::parse_json(line, where, {.bytes = kLongestLine});
  if (json.string() != nullptr) return *json.string();
  const io::Json* prompt = json.find("prompt");
  if (json.object() == nullptr || prompt == nullptr || prompt->string() == nullptr)
    throw io::FileError(fmt::format("{}: expected a string, or an object with a string \"prompt\", got {}", where,
                                    json.object() == nullptr ? json.kind()
                                    : prompt == nullptr      ? "an object without it"
                                                             : prompt->kind()));
  return *prompt->string();
}

struct Answer {
  llm::Request request;
  std::int64_t longest = 0;  // tokens it may have in the cache
  std::string text;
  std::int64_t tokens = 0, prompt_tokens = 0;
  llm::Finish finish = llm::Finish::not_yet;
};

// Checked before the weights are loaded: a bad line at the end of a long file is not found after an hour.
std::vector<Answer> make_requests(const std::vector<Prompt>& prompts, const std::string& path,
                                  const llm::OpenModel& open, bool stream,
                                  const std::function<llm::Request(const std::string&)>& request_of) {
  std::vector<Answer> answers;
  answers.reserve(prompts.size());
  const std::int64_t vocabulary = open.files->config().vocabulary;
  for (const Prompt& prompt : prompts) {
    const std::string where = place(path, prompt.line);
    Answer answer;
    try {
      answer.request = request_of(prompt.text);
    } catch (const InvalidArgument& error) {  // what a chat template has no place for
      throw io::FileError(fmt::format("{}: {}", where, error.what()));
    }
    const std::vector<llm::Token>& tokens = answer.request.prompt;
    answer.prompt_tokens = std::ssize(tokens);
    if (tokens.empty()) throw io::FileError(fmt::format("{}: the prompt has no tokens", where));
    for (const llm::Token token : tokens)
      if (token < 0 || token >= vocabulary)
        throw io::FileError(fmt::format("{}: the prompt has token {}, expected 0 to {}", where, token, vocabulary - 1));
    if (!stream && answer.prompt_tokens >= open.context)
      throw io::FileError(
          fmt::format("{}: the prompt has {}, and the context is {}; shorten it, or ask for a larger "
                      "--context",
                      where, io::counted(answer.prompt_tokens, "token"), open.context));
    answer.longest = answer.prompt_tokens + answer.request.max_tokens;
    if (!stream) answer.longest = std::min(answer.longest, open.context);
    answers.push_back(std::move(answer));
  }
  return answers;
}

// Room for the `batch` longest of them at once, with the page that each may be beyond.
std::int64_t room_for(std::vector<std::int64_t> longest, std::int64_t batch) {
  std::sort(longest.begin(), longest.end(), std::greater<>());
  std::int64_t pages = 0;
  for (std::int64_t n = 0; n < std::min(batch, std::ssize(longest)); ++n)
    pages += PagedKvCache::pages_for(longest[static_cast<std::size_t>(n)]) + 2;
  return pages * kPage;
}

struct Batch {
  std::int64_t sequences = 1;
  llm::CacheOptions cache;
  llm::MemoryPlan plan;
};

// As many side by side as were asked for, or as the memory has room for.
Batch plan_batch(const llm::OpenModel& open, const ModelArguments& arguments, const std::vector<Answer>& answers,
                 std::int64_t wanted) {
  std::vector<std::int64_t> longest;
  for (const Answer& answer : answers) {
    const llm::CacheOptions alone = cache_options(arguments, *open.files, answer.longest);
    longest.push_back(alone.tokens);
  }
  const auto available = llm::available_memory();
  Batch batch;
  for (batch.sequences = std::min(wanted, std::ssize(answers));; --batch.sequences) {
    batch.cache = cache_options(arguments, *open.files, 1);
    batch.cache.tokens = room_for(longest, batch.sequences);
    batch.plan = llm::plan_memory(*open.files, batch.cache, llm::kTokensPerStep, batch.sequences);
    if (batch.sequences == 1 || !available || batch.plan.total() <= *available) return batch;
  }
}

void print_answer(const Prompt& prompt, const Answer& answer) {
  fmt::print("{}\n",
             for_screen(fmt::format("{{\"line\": {}, \"prompt\": {}, \"text\": {}, \"finish\": {}, "
                                    "\"prompt_tokens\": {}, \"tokens\": {}}}",
                                    prompt.line, io::json_quoted(prompt.text), io::json_quoted(answer.text),
                                    io::json_quoted(llm::name(answer.finish)), answer.prompt_tokens, answer.tokens)));
}

}  // namespace

std::vector<Prompt> read_prompts(const std::string& path) {
  const std::string all = path == "-" ? read_standard_input() : io::read_utf8_file(path);
  std::string_view text = all;
  const bool json = path.ends_with(".jsonl");
  std::vector<Prompt> prompts;
  for (std::int64_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);  // of a last line without an end
    if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
    const std::string where = place(path, number);
    if (line.size() > kLongestLine)
      throw io::FileError(fmt::format("{}: it has {} bytes, expected at most {}", where, line.size(), kLongestLine));
    prompts.push_back({number, json ? prompt_of_json(line, where) : std::string(line)});
  }
  if (prompts.empty()) throw io::FileError((path == "-" ? "standard input" : path) + ": there are no prompts in it");
  return prompts;
}

int answer_prompts(llm::OpenModel& open, const ModelArguments& arguments, const PromptsJob& job,
                   const std::function<llm::Request(const std::string& text)>& request_of) {
  const std::vector<Prompt> prompts = read_prompts(job.path);
  std::vector<Answer> answers = make_requests(prompts, job.path, open, arguments.stream > 0, request_of);
  const Batch batch = plan_batch(open, arguments, answers, job.batch);
  llm::Transformer model = load_model(open, batch.plan, arguments.quiet);
  llm::BatchOptions options = llm::batch_options(batch.cache, open.context);
  options.sequences = batch.sequences;
  llm::RunningBatch engine(model, open.tokenizer, options);
  for (Answer& answer : answers) engine.submit(std::move(answer.request));  // numbered from 0, as they lie here

  const auto start = std::chrono::steady_clock::now();
  std::optional<ProgressBar> bar;
  // On a terminal the answers themselves show how far it is.
  if (!arguments.quiet && ::isatty(STDOUT_FILENO) == 0) bar.emplace("answering", std::ssize(prompts), "prompts");
  std::size_t printed = 0;
  std::int64_t done = 0, tokens = 0;
  while (!engine.idle()) {
    for (const llm::Event& event : llm::with_file_errors(arguments.model, [&] { return engine.step(); })) {
      Answer& answer = answers[static_cast<std::size_t>(event.request)];
      answer.text += event.text;
      answer.finish = event.finish;
      if (event.has_token && event.finish != llm::Finish::stop_token) ++answer.tokens;
      if (event.has_token) ++tokens;
      if (event.finish != llm::Finish::not_yet) ++done;
    }
    for (; printed < answers.size() && answers[printed].finish != llm::Finish::not_yet; ++printed) {
      print_answer(prompts[printed], answers[printed]);
      answers[printed].text = {};
    }
    if (std::fflush(stdout) != 0) return kFailure;  // nobody reads any more
    if (bar) bar->update(done);
  }
  bar.reset();
  if (!arguments.quiet) {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    (void)std::fputs(fmt::format("{} answered, {} at a time: {}, {:.1f} tokens/s\n", io::counted(done, "prompt"),
                                 batch.sequences, io::counted(tokens, "token"), static_cast<double>(tokens) / seconds)
                         .c_str(),
                     stderr);
  }
  return kSuccess;
}

}  // namespace attend::cli
