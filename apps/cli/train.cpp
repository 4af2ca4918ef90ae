// `attend train`: a tokenizer, a model from nothing, and what comes after.
#include <fmt/format.h>

#include <map>
#include <memory>
#include <type_traits>

#include "attend/llm/store.hpp"
#include "command.hpp"
#include "interrupt.hpp"
#include "io/atomic_folder.hpp"
#include "io/file_error.hpp"
#include "io/readable.hpp"
#include "llm/train/corpus.hpp"
#include "llm/train/prepare.hpp"
#include "llm/train/run_folder.hpp"
#include "llm/train/trainer.hpp"
#include "llm/train_mpi/start_ranks.hpp"
#include "train_progress.hpp"
#include "train_screen.hpp"
#include "train_watch.hpp"

namespace attend::cli {
namespace {

namespace fs = std::filesystem;
using llm::Stage;

struct Arguments {
  std::string what, out, start, config, shape, column;
  std::vector<std::string> inputs;
  std::int64_t vocabulary = 2048;
  bool vocabulary_given = false, force = false, watch = false, skip_broken = false;
  std::int64_t port = 0;
  std::map<std::string, std::string> settings;  // by their names; "" if not given
};

// What was typed, as the value that a config file would hold.
io::Json as_json(const std::string& text, bool is_text, const std::string& option) {
  if (is_text) return io::Json(io::Json::Value(text));
  try {
    return io::parse_json(text, option);
  } catch (const io::FileError&) {
    throw UsageError(fmt::format("{} is \"{}\", expected a number, or true or false", option, text));
  }
}

std::string option_of(std::string field) {
  std::replace(field.begin(), field.end(), '_', '-');
  return "--" + field;
}

// Texts that need not be brought: "stories", where no file is called so.
bool is_built_in(const Arguments& a) {
  return a.inputs.size() == 1 && a.inputs.front() == llm::kBuiltInCorpus && !fs::exists(a.inputs.front());
}

// Defaults of the stage, then a file's settings, then the shape, then what was typed.
void read_settings(const Arguments& a, llm::TrainJob& job) {
  llm::TrainConfig& config = job.config;
  config = is_built_in(a) ? llm::stories_config(job.stage) : llm::default_config(job.stage);
  const auto given = [&](const io::Json& json) {
    for (std::string& field : llm::shape_fields_of(json)) job.shape_given.push_back(std::move(field));
  };
  if (!a.config.empty()) {
    const io::Json json = io::read_json(a.config);
    llm::read_config(json, a.config, config);
    given(json);
  }
  if (!a.shape.empty()) {
    llm::set_shape(a.shape, config);
    given(io::parse_json(llm::config_to_json(config), "--shape"));
  }
  io::Json::Object typed;
  llm::visit_fields(config, [&](const char* field, const auto& value, auto&&...) {
    const std::string& text = a.settings.at(field);
    constexpr bool kText = std::is_same_v<std::decay_t<decltype(value)>, std::string>;
    if (!text.empty()) typed.emplace_back(field, as_json(text, kText, option_of(field)));
  });
  const io::Json json = io::Json(io::Json::Value(std::move(typed)));
  try {
    llm::read_config(json, "the command line", config);
  } catch (const io::FileError& error) {
    throw UsageError(error.what());
  }
  given(json);
}

// What rank 0 shows; the others are silent.
llm::TrainEvents shown_on(TrainScreen& screen) {
  llm::TrainEvents events;
  events.begin = [&](const auto& model, std::int64_t parameters, const auto& memory, std::int64_t steps,
                     std::int64_t done) { screen.begin(model, parameters, memory, steps, done); };
  events.held_out = [&](const llm::DocumentSplit& split) { screen.held_out(split); };
  events.scale = [&](const llm::NgramLosses& losses, double entropy) { screen.scale(losses, entropy); };
  events.note = [&](const std::string& text) { screen.note(text); };
  events.step = [&](const llm::StepReport& report) { screen.step(report); };
  events.validation = [&](std::int64_t step, const llm::Measured& measured, bool best) {
    screen.validation(step, measured, best);
  };
  events.sample = [&](std::int64_t, const std::string& prompt, const std::string& text) {
    screen.sample(prompt, text);
  };
  return events;
}

int run_job(const Arguments& a, const llm::TrainJob& job, llm::Ranks& ranks) {
  TrainScreen screen;
  llm::TrainEvents events;
  if (ranks.rank() == 0) events = shown_on(screen);
  std::optional<Interrupted> interrupted;
  events.stop = [&] {
    try {
      check_interrupted();
    } catch (const Interrupted& signal) {
      interrupted = signal;
    }
    return interrupted.has_value();
  };
  std::optional<TrainWatch> watch;
  if (a.watch && ranks.rank() == 0) watch.emplace(job, static_cast<std::uint16_t>(a.port)).listen(events);
  const llm::TrainResult result = llm::train(job, events, ranks);
  if (ranks.rank() > 0) return kSuccess;
  draw_losses({job.run}, job.run / "loss");
  const std::string run = io::printable(job.run.string());
  if (result.end == llm::TrainEnd::stopped) {
    Interrupted stopped = interrupted.value_or(Interrupted(SIGTERM));  // or another rank was
    stopped.left = fmt::format("{} steps are saved; go on with: attend train resume {}", result.state.step, run);
    throw stopped;
  }
  if (result.end == llm::TrainEnd::no_better) fmt::print("ended early: the validation loss grew no better\n");
  fmt::print("{} steps, {} tokens in {}", io::readable_count(result.state.step),
             io::readable_count(result.state.tokens), io::readable_time(result.state.seconds));
  if (result.state.best_step > 0)
    fmt::print("; best validation loss {:.4f} at step {}", result.state.best, result.state.best_step);
  fmt::print("\n{}/model is the model, {}/loss.png its curve: attend generate {}/model \"...\"\n", run, run, run);
  if (watch) watch->stay();
  return kSuccess;
}

int train_tokenizer(const Arguments& a) {
  StageBars bars;
  const auto progress = [&](const char* stage, std::int64_t done, std::int64_t all) {
    check_interrupted();
    bars.update(stage, done, all);
  };
  llm::RecordReader reader({a.inputs.begin(), a.inputs.end()}, a.skip_broken, a.column);
  io::NewFolder folder(a.out, a.force);
  llm::train_tokenizer(reader, {.vocabulary = a.vocabulary}, "smollm", folder.path(), progress);
  bars.end();
  const auto tokenizer = llm::Tokenizer::open(folder.path());
  folder.commit();
  print_report(reader.report());
  fmt::print("{}: {} tokens\n", io::printable(a.out), io::readable_count(tokenizer.vocabulary()));
  return kSuccess;
}

bool is_prepared(const Arguments& a) {
  return a.inputs.size() == 1 && fs::exists(fs::path(a.inputs.front()) / "data.json");
}
// The data's folder: the one given, or the run's own.
fs::path data_folder(const Arguments& a) {
  return is_prepared(a) ? fs::path(a.inputs.front()) : fs::path(a.out) / "data";
}

// Prepares texts into the run's own, anew if a run ended before its first checkpoint: it may have been another text.
fs::path data_of(const Arguments& a, Stage stage, const std::string& teacher) {
  const fs::path folder = data_folder(a);
  if (is_prepared(a)) {
    if (a.skip_broken || !a.column.empty())
      throw UsageError(fmt::format("{} is prepared data: --skip-broken and --column are options of attend prepare then",
                                   a.inputs.front()));
    return folder;
  }
  llm::PrepareOptions options;
  options.inputs.assign(a.inputs.begin(), a.inputs.end());
  options.out = folder, options.replace = true;
  // A student reads as its teacher does.
  if (const std::string& reader = a.start.empty() ? teacher : a.start; !reader.empty())
    options.tokenizer = llm::find_model(reader);
  options.training.vocabulary = a.vocabulary;
  options.skip_broken = a.skip_broken, options.column = a.column;
  StageBars bars;
  options.progress = [&](const char* what, std::int64_t done, std::int64_t all) {
    check_interrupted();
    bars.update(what, done, all);
  };
  fs::create_directories(a.out);
  if (is_built_in(a)) {
    options.inputs = {fs::path(a.out) / "stories.jsonl"};
    const std::int64_t count = llm::corpus_count(stage);
    (void)llm::write_corpus(options.inputs.front(), llm::corpus_of(stage), count,
                            [&](std::int64_t done) { options.progress("telling stories", done, count); });
  }
  llm::ReadReport report;
  const llm::DataInfo info = llm::prepare(options, &report);
  bars.end();
  if (!is_built_in(a)) print_report(report);
  fmt::print("data     {} documents, {} tokens\n", io::readable_count(info.documents), io::readable_count(info.tokens));
  return folder;
}

// Only a tokenizer that is trained here has a size to choose.
void check_vocabulary(const Arguments& a, const std::string& teacher) {
  if (!a.vocabulary_given) return;
  const auto refuse = [](const std::string& whose) {
    throw UsageError(fmt::format("--vocabulary has no effect: the tokenizer is that of {}; leave it out", whose));
  };
  if (is_prepared(a)) refuse(fmt::format("the prepared data, {}", a.inputs.front()));
  if (!a.start.empty()) refuse(fmt::format("--start, {}", a.start));
  if (!teacher.empty()) refuse(fmt::format("--teacher, {}", teacher));
}

// An option of a run's settings that was typed; "": none.
std::string typed_setting(const Arguments& a) {
  for (const auto& [option, text] : {std::pair{"--start", a.start}, {"--config", a.config}, {"--shape", a.shape}})
    if (!text.empty()) return option;
  for (const auto& [field, text] : a.settings)
    if (!text.empty()) return option_of(field);
  return "";
}

void check_resume(const Arguments& a) {
  if (a.inputs.size() != 1) throw UsageError("resume takes one folder of a run");
  std::string typed = typed_setting(a);
  for (const auto& [option, given] : {std::pair{"--out", !a.out.empty()},
                                      {"--vocabulary", a.vocabulary_given},
                                      {"--force", a.force},
                                      {"--skip-broken", a.skip_broken},
                                      {"--column", !a.column.empty()}})
    if (given) typed = option;
  if (!typed.empty())
    throw UsageError(fmt::format(
        "{} does not go with resume, which takes every setting from the run; start a new run to change one", typed));
}

void check_places(const Arguments& a) {
  if (a.inputs.empty()) throw UsageError("nothing to learn from: name prepared data, or texts");
  if (a.out.empty()) throw UsageError("--out is missing: the folder for what is made");
}

llm::TrainJob job_of(const Arguments& a, llm::Ranks& ranks) {
  if (a.what == "resume") {
    check_resume(a);
    return llm::read_run(a.inputs.front());
  }
  check_places(a);
  llm::TrainJob job;
  for (const Stage stage : {Stage::pretrain, Stage::sft, Stage::lora, Stage::dpo, Stage::distil})
    if (a.what == llm::name(stage)) job.stage = stage;
  read_settings(a, job);
  llm::check_config(job.config, a.start.empty());
  job.run = a.out;
  if (!a.start.empty()) job.start = llm::find_model(a.start);
  check_vocabulary(a, job.config.teacher);
  job.replace = a.force;
  if (job.replace) llm::check_replaceable(job);  // before its data are prepared again
  if (!a.force && fs::exists(job.run / "checkpoint.safetensors"))
    throw UsageError(
        fmt::format("{} holds a run already: 'attend train resume {}' goes on with it, --force replaces it, or choose "
                    "another folder",
                    a.out, a.out));
  // Texts are prepared once; the others find what was made.
  job.data = ranks.rank() == 0 ? data_of(a, job.stage, job.config.teacher) : data_folder(a);
  return job;
}

int run_stage(const Arguments& a, llm::Ranks& ranks) {
  int code = kSuccess;
  if (a.what == "tokenizer") {
    ranks.agree([&] {
      if (a.watch) throw UsageError("--watch shows a model that learns; a tokenizer is made at once");
      check_places(a);
      if (const std::string typed = typed_setting(a); !typed.empty())
        throw UsageError(fmt::format("{} is a setting of a run; a tokenizer has --vocabulary only", typed));
      if (ranks.rank() == 0) code = train_tokenizer(a);
    });
    return code;
  }
  llm::TrainJob job;
  ranks.agree([&] { job = job_of(a, ranks); });
  return run_job(a, job, ranks);
}

int run_train(const Arguments& a) {
  const std::unique_ptr<llm::Ranks> ranks = llm::start_ranks();
  if (ranks->count() == 1) return run_stage(a, *ranks);
  try {
    return run_stage(a, *ranks);
  } catch (const std::exception& error) {
    const bool all_know = ranks->failed() || dynamic_cast<const Interrupted*>(&error) != nullptr;
    if (!all_know) ranks->abort(error.what());
    if (ranks->rank() > 0) return kSuccess;  // rank 0 says why; a failure here and mpirun might end it before that
    throw;
  }
}

}  // namespace

Command add_train(Program& program) {
  auto a = std::make_shared<Arguments>();
  const Subcommand app = program.add_subcommand("train", "Train a tokenizer, a model from nothing, or a model further");
  app.add_option("stage", a->what, "tokenizer, pretrain, sft, lora, dpo, distil, or resume")
      .required()
      .check(one_of({"tokenizer", "pretrain", "sft", "lora", "dpo", "distil", "resume"}))
      .type_name("STAGE");
  app.add_option("inputs", a->inputs,
                 "Prepared data, or files that attend prepare reads: text, JSON, CSV (attend prepare --help lists the "
                 "forms); \"stories\": texts that are generated; for resume, the run's folder")
      .type_name("INPUT");
  app.add_option("--out,-o", a->out, "A folder for the run: checkpoint, metrics, curve, model").type_name("RUN");
  app.add_option("--start", a->start, "A model to train further; without it pretrain begins with random weights")
      .type_name("MODEL");
  app.add_option("--config", a->config, "Settings from a JSON file; those given as options win")
      .check(existing_file())
      .type_name("FILE");
  std::string shapes = "The shape of a model from nothing:";
  for (const auto& [name, about] : llm::shape_names()) shapes += fmt::format(" {} ({});", name, about);
  shapes.back() = '.';
  app.add_option("--shape", a->shape, shapes.c_str()).type_name("NAME");
  const Option vocabulary = app.add_option("--vocabulary", a->vocabulary, "Tokens of a tokenizer that is trained here")
                                .check(whole_number(260, 1 << 20))
                                .type_name("N")
                                .show_default();
  app.add_flag("--skip-broken", a->skip_broken, kSkipBrokenHelp);
  app.add_option("--column", a->column, kColumnHelp).type_name("NAME");
  app.add_flag("--force", a->force, "Replace the run (or tokenizer) that is in the folder; data in it stay");
  app.add_flag("--watch", a->watch,
               "Show the run in the browser: losses, samples, and every head at the steps that are kept");
  app.add_option("--port", a->port, "Of that page; 0: any that is free")
      .check(whole_number(0, 65535))
      .type_name("N")
      .show_default();
  const llm::TrainConfig defaults = llm::default_config(Stage::pretrain);
  llm::visit_fields(defaults, [&](const char* field, const auto& value, auto&&... rest) {
    const char* about = std::get<sizeof...(rest) - 1>(std::tuple(rest...));
    using Value = std::decay_t<decltype(value)>;
    const char* type = std::is_same_v<Value, std::string> ? "TEXT" : std::is_same_v<Value, bool> ? "true|false" : "N";
    const std::string text = fmt::format("{} [{}]", about, value);
    app.add_option(option_of(field).c_str(), a->settings[field], text.c_str()).type_name(type);
  });
  app.footer(
      "A run's folder holds every setting (config.json), a line for each step (metrics.jsonl), the curve (loss.png), "
      "the\n"
      "checkpoint and the model with the best validation loss. Ctrl-C saves and stops; resume goes on to the same "
      "bits,\n"
      "with any number of threads. Memory is planned and told before the first step.\n"
      "\nExamples:\n"
      "  attend train pretrain stories -o run                       from nothing to a model that tells stories\n"
      "  attend train pretrain stories -o run --watch               and see it learn, in the browser\n"
      "  attend train sft stories --start run -o chat               it learns to talk about them: attend chat chat\n"
      "  attend train pretrain book.txt -o run                      your own text\n"
      "  attend train sft chats.jsonl --start run/model -o chat     your own conversations\n"
      "  attend train lora chats.jsonl --start run/model -o lora --lora-rank 8\n"
      "  attend train resume run\n"
      "  mpirun -n 4 attend train pretrain stories.jsonl -o run     over four processes, where it was built with MPI");
  return {app, [a, vocabulary] {
            a->vocabulary_given = vocabulary.given();
            return run_stoppable("attend train", [&] { return run_train(*a); });
          }};
}

}  // namespace attend::cli
