// `attend embed`: texts to vectors of length 1, with a model such as MiniLM.
#include <fmt/format.h>

#include <memory>
#include <sstream>

#include "command.hpp"
#include "io/readable.hpp"
#include "language_model.hpp"
#include "progress.hpp"
#include "screen.hpp"

namespace attend::cli {
namespace {

struct Arguments {
  ModelArguments model;
  std::vector<std::string> texts;
  bool similarity = false;
};

std::vector<std::string> lines_of_input() {
  std::istringstream text(read_standard_input());
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

void print_similarities(const std::vector<std::string>& texts, const std::vector<float>& rows, std::int64_t H) {
  const auto at = [&](std::size_t r, std::int64_t j) {
    return static_cast<double>(rows[r * static_cast<std::size_t>(H) + static_cast<std::size_t>(j)]);
  };
  for (std::size_t a = 0; a < texts.size(); ++a) {
    for (std::size_t b = 0; b < texts.size(); ++b) {
      double dot = 0;
      for (std::int64_t j = 0; j < H; ++j) dot += at(a, j) * at(b, j);
      fmt::print("{:7.3f}", dot);
    }
    fmt::print("   {}\n", for_screen(texts[a]));
  }
}

int run_embed(const Arguments& a) {
  llm::OpenModel open = open_model(a.model);
  const llm::ModelConfig config = open.files->config();
  if (config.causal)
    throw UsageError(config.family +
                     " was made to continue text, not to embed it; 'attend pull minilm' brings a model for that");
  const std::vector<std::string> texts = a.texts.empty() ? lines_of_input() : a.texts;
  for (std::size_t n = 0; n < texts.size(); ++n) check_utf8(fmt::format("text {}", n + 1), texts[n]);
  const llm::EncodedTexts encoded = llm::encode_texts(open.tokenizer, config, texts);
  if (encoded.cut > 0 && !a.model.quiet)
    (void)std::fputs(fmt::format("{} longer than {} tokens: what comes after is left out\n",
                                 io::counted(encoded.cut, "text"), encoded.longest)
                         .c_str(),
                     stderr);
  llm::Transformer model = load_model(open, llm::plan_memory(*open.files, {}, llm::kTokensPerEmbed, 0), a.model.quiet);
  ProgressBar bar("embedding", std::ssize(texts), "texts");
  const std::vector<float> rows =
      llm::embed_texts(model, encoded, a.model.model, [&](std::int64_t done) { bar.update(done); });
  if (a.similarity) {
    print_similarities(texts, rows, config.hidden);
    return kSuccess;
  }
  for (std::size_t r = 0; r < texts.size(); ++r) {
    const auto H = static_cast<std::size_t>(config.hidden);
    fmt::print("[{}]\n", fmt::join(rows.begin() + static_cast<std::ptrdiff_t>(r * H),
                                   rows.begin() + static_cast<std::ptrdiff_t>((r + 1) * H), ", "));
  }
  return kSuccess;
}

}  // namespace

Command add_embed(Program& program) {
  auto a = std::make_shared<Arguments>();
  const Subcommand app =
      program.add_subcommand("embed", "Turn texts into vectors that lie close when they mean the same");
  add_model_arguments(app, a->model, false, ModelNamed::always);
  app.add_option("texts", a->texts, "The texts; none: the lines of standard input").type_name("TEXT");
  app.add_flag("--similarity,-s", a->similarity, "Print how similar the texts are instead: 1 means the same");
  app.footer(
      "One line a text: its vector, of length 1, as a JSON array.\n"
      "\nExamples:\n"
      "  attend pull minilm\n"
      "  attend embed minilm \"a cat sits on the mat\" > cat.json\n"
      "  attend embed minilm -s \"a cat\" \"a kitten\" \"a tax form\"\n"
      "  attend embed minilm < sentences.txt > vectors.jsonl");
  return {app, [a] { return run_embed(*a); }};
}

}  // namespace attend::cli
