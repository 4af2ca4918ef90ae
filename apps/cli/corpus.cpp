// `attend corpus`: texts told from a seed, to train on and to check heads against.
#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <random>

#include "command.hpp"
#include "interrupt.hpp"
#include "io/file_error.hpp"
#include "io/json.hpp"
#include "io/readable.hpp"
#include "llm/train/corpus.hpp"
#include "progress.hpp"

namespace attend::cli {
namespace {

struct Arguments {
  std::string kind = "stories", out, language = "both", format = "text";
  std::int64_t count = 10000;
  std::uint64_t seed = 1;
  bool relations = false;
};

int run_corpus(const Arguments& a) {
  llm::CorpusOptions options{.seed = a.seed, .relations = a.relations};
  options.format = a.format == "chat"        ? llm::CorpusFormat::chat
                   : a.format == "exercises" ? llm::CorpusFormat::exercises
                   : a.format == "easy"      ? llm::CorpusFormat::easy
                   : a.format == "pairs"     ? llm::CorpusFormat::preference
                                             : llm::CorpusFormat::text;
  options.english = a.language != "zh", options.chinese = a.language != "en";
  if (a.out.empty()) {
    for (std::int64_t n = 0; n < a.count; ++n) {
      check_interrupted();
      fmt::print("{}\n", llm::corpus_line(options, n));
    }
    return kSuccess;
  }
  ProgressBar bar("telling", a.count, "stories");
  const std::int64_t bytes = llm::write_corpus(a.out, options, a.count, [&](std::int64_t done) {
    check_interrupted();
    bar.update(done);
  });
  fmt::print("{}: {} documents, {}\n", io::printable(a.out), io::readable_count(a.count),
             io::readable_bytes(static_cast<double>(bytes)));
  return kSuccess;
}

}  // namespace

Command add_corpus(Program& program) {
  auto a = std::make_shared<Arguments>();
  const Subcommand app = program.add_subcommand("corpus", "Write stories told from a seed: a text to train on");
  app.add_option("kind", a->kind, "What is written: stories").check(one_of({"stories"})).type_name("KIND");
  app.add_option("--out,-o", a->out, "A file that ends in .jsonl; without it the lines are printed").type_name("FILE");
  app.add_option("--count,-n", a->count, "How many")
      .check(whole_number(1, std::int64_t{1} << 40))
      .type_name("N")
      .show_default();
  app.add_option("--language", a->language, "en, zh or both, in turn")
      .check(one_of({"en", "zh", "both"}))
      .type_name("NAME")
      .show_default();
  app.add_option(
         "--format", a->format,
         "text: the story and its questions; chat: a talk about it; pairs: a right and a wrong answer; exercises: "
         "talks that look back at what was said, without a story; easy: the same with little to remember")
      .check(one_of({"text", "chat", "pairs", "exercises", "easy"}))
      .type_name("NAME")
      .show_default();
  app.add_flag("--relations", a->relations,
               "With each text, which word belongs to which: adjective and noun, pronoun and name, ...");
  app.add_option("--seed", a->seed, "Another seed tells other stories")
      .check(seed_number())
      .type_name("N")
      .show_default();
  app.footer(
      "A line is a JSON object, as attend prepare reads it. \"nats\" is the information in it: no model can reach a "
      "lower\n"
      "loss on average. The same seed gives the same stories everywhere.\n"
      "\nExamples:\n"
      "  attend corpus stories -n 3                                     look at three\n"
      "  attend corpus stories -n 30000 -o stories.jsonl                to pretrain on: about 30 MB\n"
      "  attend corpus stories -n 20000 --format chat -o chats.jsonl    to fine-tune on\n"
      "  attend corpus stories -n 5 --relations                         which word belongs to which");
  return {app, [a] { return run_stoppable("attend corpus", [&] { return run_corpus(*a); }); }};
}

}  // namespace attend::cli
