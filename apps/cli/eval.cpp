// `attend eval`: how well a model predicts a text.
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <memory>

#include "command.hpp"
#include "io/readable.hpp"
#include "io/utf8_text.hpp"
#include "language_model.hpp"
#include "llm/generate/perplexity.hpp"
#include "llm/runtime/file_errors.hpp"
#include "progress.hpp"

namespace attend::cli {
namespace {

struct Arguments {
  ModelArguments model;
  std::string file;
  std::int64_t length = 512;
};

int run_eval(const Arguments& a) {
  llm::OpenModel open = open_model(a.model);
  const std::string text = io::read_utf8_file(a.file);  // replaced characters would be predicted as if they were there
  const std::vector<llm::Token> tokens = open.tokenizer.encode(text, false);
  if (tokens.size() < 2) throw UsageError(a.file + " has fewer than two tokens: there is nothing to predict");
  const llm::ModelConfig config = open.files->config();
  if (!config.causal) throw UsageError(config.family + " does not predict the next token");
  const std::int64_t length = std::min({a.length, open.context, std::ssize(tokens)});
  const llm::CacheOptions cache = cache_options(a.model, *open.files, length);
  llm::Transformer model =
      load_model(open, llm::plan_memory(*open.files, cache, length, llm::kLogitRows), a.model.quiet);
  const auto start = std::chrono::steady_clock::now();
  ProgressBar bar("reading", std::ssize(tokens), "tokens");
  const llm::Perplexity result = llm::with_file_errors(a.model.model, [&] {
    return llm::perplexity(model, tokens, length, cache, [&](std::int64_t done) { bar.update(done); });
  });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  fmt::print("perplexity  {:.4f} +- {:.4f}\n", result.perplexity, result.error);
  const double tokens_per_byte = static_cast<double>(tokens.size()) / static_cast<double>(text.size());
  fmt::print("loss        {:.5f} nats a token, {:.4f} bits a byte\n", result.loss,
             result.loss / std::log(2.0) * tokens_per_byte);
  fmt::print("tokens      {} of {} predicted, in windows of {}\n", io::readable_count(result.predicted),
             io::readable_count(std::ssize(tokens)), length);
  if (!a.model.quiet)
    (void)std::fputs(fmt::format("{:.0f} tokens/s\n", static_cast<double>(tokens.size()) / seconds).c_str(), stderr);
  return kSuccess;
}

}  // namespace

Command add_eval(Program& program) {
  auto a = std::make_shared<Arguments>();
  const Subcommand app = program.add_subcommand("eval", "Measure how well a model predicts a text (perplexity)");
  add_model_arguments(app, a->model, true, ModelNamed::always);
  app.add_option("file", a->file, "The text, in UTF-8").required().type_name("FILE");
  app.add_option("--window", a->length, "Tokens the model sees at most; each window begins afresh")
      .check(whole_number(2, std::int64_t{1} << 30))
      .type_name("N")
      .show_default();
  app.footer(
      "The text is cut into windows; in each, every token but the first is predicted from those before it. Perplexity "
      "is\n"
      "exp of the mean loss: 1 is a perfect guess, the size of the vocabulary is none at all. Only compare models "
      "that\n"
      "have the same tokenizer; bits a byte compare across them.\n"
      "\nExamples:\n"
      "  attend eval smollm2 book.txt\n"
      "  attend eval smollm2 book.txt --window 2048 --cache int8     what a smaller cache costs");
  return {app, [a] { return run_eval(*a); }};
}

}  // namespace attend::cli
