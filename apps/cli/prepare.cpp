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
  std::string out, tokenizer;
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
  StageBars bars;
  options.progress = [&](const char* stage, std::int64_t done, std::int64_t all) {
    check_interrupted();
    bars.update(stage, done, all);
  };
  const llm::DataInfo info = llm::prepare(options);
  bars.end();
  const double per_token = static_cast<double>(info.bytes) / static_cast<double>(info.tokens);
  fmt::print("{}: {} {} documents, {} tokens, {} to learn, {:.2f} bytes a token, vocabulary {}\n", io::printable(a.out),
             io::readable_count(info.documents), name(info.kind), io::readable_count(info.tokens),
             io::readable_count(info.learnt), per_token, io::readable_count(info.vocabulary));
  if (info.skipped > 0) fmt::print("{} broken lines were skipped\n", io::readable_count(info.skipped));
  return kSuccess;
}

}  // namespace

Command add_prepare(Program& program) {
  auto a = std::make_shared<Arguments>();
  const Subcommand app = program.add_subcommand("prepare", "Turn texts into tokens to train on");
  app.add_option("inputs", a->inputs, "Text files, JSONL files, or folders of them").required().type_name("INPUT");
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
  app.add_flag("--skip-broken", a->skip_broken, "Leave out lines that cannot be read, and count them");
  app.add_flag("--force", a->force, "Replace what is at DATA");
  app.footer(
      "A text file is one document, or several between lines that hold <|endoftext|> alone. A line of JSONL is one of\n"
      "  {\"text\": \"...\"}                                                      all of it is learnt\n"
      "  {\"conversations\": [{\"role\": \"user\", \"content\": \"...\"}, ...]}        answers are learnt\n"
      "  {\"chosen\": [...], \"rejected\": [...]}                                pairs, for DPO\n"
      "Texts are UTF-8; a byte-order mark is dropped, and CRLF of a text file is read as LF.\n"
      "Texts and conversations may stand together; all are read a document at a time and never held whole.\n"
      "\nExamples:\n"
      "  attend prepare stories.jsonl -o stories              train a tokenizer, write tokens\n"
      "  attend prepare chats.jsonl -o chats --tokenizer stories\n"
      "  attend prepare book/ -o book --vocabulary 6400       a folder of .txt files");
  return {app, [a] { return run_stoppable("attend prepare", [&] { return run_prepare(*a); }); }};
}

}  // namespace attend::cli
