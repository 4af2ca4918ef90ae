// `attend prepare`: texts into tokens that training reads.
#include <fmt/format.h>

#include <memory>

#include "attend/llm/store.hpp"
#include "command.hpp"
#include "interrupt.hpp"
#include "io/file_error.hpp"
#include "io/readable.hpp"
#include "llm/train/prepare.hpp"
#include "progress.hpp"
#include "train_progress.hpp"

namespace attend::cli {
namespace {

struct Arguments {
  std::vector<std::string> inputs;
  std::string out, tokenizer, column;
  std::int64_t vocabulary = 2048;
  bool skip_broken = false, force = false;
};

int run_prepare(const Arguments& a) {
  llm::PrepareOptions options;
  options.inputs.assign(a.inputs.begin(), a.inputs.end());
  options.out = a.out;
  if (!a.tokenizer.empty()) options.tokenizer = llm::find_model(a.tokenizer);
  options.training.vocabulary = a.vocabulary;
  options.skip_broken = a.skip_broken, options.replace = a.force;
  options.column = a.column;
  StageBars bars;
  options.progress = [&](const char* stage, std::int64_t done, std::int64_t all) {
    check_interrupted();
    bars.update(stage, done, all);
  };
  llm::ReadReport report;
  const llm::DataInfo info = llm::prepare(options, &report);
  bars.end();
  print_report(report);
  const double per_token = static_cast<double>(info.bytes) / static_cast<double>(info.tokens);
  fmt::print("{}: {} {} documents, {} tokens, {} to learn, {:.2f} bytes a token, vocabulary {}\n", io::printable(a.out),
             io::readable_count(info.documents), name(info.kind), io::readable_count(info.tokens),
             io::readable_count(info.learnt), per_token, io::readable_count(info.vocabulary));
  return kSuccess;
}

}  // namespace

Command add_prepare(Program& program) {
  auto a = std::make_shared<Arguments>();
  const Subcommand app = program.add_subcommand("prepare", "Turn texts into tokens to train on");
  app.add_option("inputs", a->inputs, "Files of text, JSON or CSV, also compressed, or folders of them")
      .required()
      .type_name("INPUT");
  app.add_option("--out,-o", a->out, "A new folder").required().type_name("DATA");
  const Option tokenizer =
      app.add_option("--tokenizer", a->tokenizer,
                     "That of a model or of other prepared data; without it one is trained on the texts")
          .type_name("PATH");
  app.add_option("--vocabulary", a->vocabulary, "Tokens of a tokenizer that is trained here")
      .check(whole_number(260, 1 << 20))
      .type_name("N")
      .show_default()
      .excludes(tokenizer);
  app.add_flag("--skip-broken", a->skip_broken, kSkipBrokenHelp);
  app.add_option("--column", a->column, kColumnHelp).type_name("NAME");
  app.add_flag("--force", a->force, "Replace what is at DATA");
  app.footer(fmt::format(
      "Files: {}.\n\n"
      "A file of text is one document, or several between lines that hold only <|endoftext|>. JSON is an array, or a\n"
      "value a line; the first row of CSV names its columns. A row is a text, or has the fields of one of these "
      "forms:\n"
      "{}"
      "P is a text or messages; A and B are a text, a message or messages. An assistant's message with \"weight\": 0 "
      "is\n"
      "not learned. The tokenizer's chat template is applied, with the tools. Texts are UTF-8; a byte-order mark is\n"
      "dropped, and CRLF of a text file is read as LF. Texts and conversations may be mixed; all are read a document\n"
      "at a time.\n"
      "\nExamples:\n"
      "  attend prepare stories.jsonl -o stories              train a tokenizer, write tokens\n"
      "  attend prepare chats.jsonl -o chats --tokenizer stories\n"
      "  attend prepare book/ -o book --vocabulary 6400       a folder of .txt files\n"
      "  attend prepare reviews.csv.gz -o reviews --column review",
      llm::kFileFormats, llm::forms_help()));
  return {app, [a] { return run_stoppable("attend prepare", [&] { return run_prepare(*a); }); }};
}

}  // namespace attend::cli
