// The public face of training, over the parts that the program uses too.
#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "attend/error.hpp"
#include "attend/llm/store.hpp"
#include "attend/llm/training.hpp"
#include "io/atomic_folder.hpp"
#include "io/closest.hpp"
#include "io/readable.hpp"
#include "llm/model/transformer.hpp"
#include "llm/train/corpus.hpp"
#include "llm/train/prepare.hpp"
#include "llm/train/trained_model.hpp"
#include "llm/train/trainer.hpp"
#include "llm/train/watched_run.hpp"

namespace attend::llm {
namespace {

// The one of `choices` that is named so.
template <class T, std::size_t N>
T chosen(const std::string& what, const std::string& got, const std::array<std::pair<const char*, T>, N>& choices) {
  std::vector<std::string> names;
  for (const auto& [name, value] : choices) {
    if (got == name) return value;
    names.emplace_back(name);
  }
  throw InvalidArgument(what + " is " + io::json_quoted(got) + ", expected one of " + io::joined(names, ", ") +
                        io::did_you_mean(got, names));
}

Stage stage_named(const std::string& name) {
  using Choice = std::pair<const char*, Stage>;
  constexpr std::array kStages = {Choice{"pretrain", Stage::pretrain}, Choice{"sft", Stage::sft},
                                  Choice{"lora", Stage::lora}, Choice{"dpo", Stage::dpo},
                                  Choice{"distil", Stage::distil}};
  return chosen("training: the stage", name, kStages);
}

void read_settings(const std::string& settings, TrainConfig& config) {
  try {
    read_config(io::parse_json(settings, "the settings"), "the settings", config);
  } catch (const io::FileError& error) {
    throw InvalidArgument(std::string("training: ") + error.what());
  }
}

PrepareOptions prepare_options(const TextInputs& inputs) {
  PrepareOptions options;
  options.inputs = inputs.paths, options.out = inputs.out;
  options.training.vocabulary = inputs.vocabulary;
  options.skip_broken = inputs.skip_broken, options.replace = inputs.replace;
  options.progress = inputs.progress, options.column = inputs.column;
  return options;
}

TrainingEnd run_job(const TrainJob& job, const TrainingEvents& events, bool watch) {
  TrainEvents inside;
  inside.stop = events.stop, inside.note = events.note, inside.sample = events.sample;
  if (events.begin)
    inside.begin = [&](const ModelConfig&, std::int64_t parameters, const TrainMemory& memory, std::int64_t steps,
                       std::int64_t) { events.begin(parameters, memory.total(), steps); };
  if (events.step)
    inside.step = [&](const StepReport& r) {
      events.step({.step = r.step,
                   .steps = r.steps,
                   .tokens = r.tokens,
                   .loss = r.loss,
                   .gradient = r.gradient,
                   .rate = r.rate,
                   .tokens_per_second = r.tokens_per_second,
                   .seconds_left = r.seconds_left,
                   .more = r.more});
    };
  if (events.note) inside.held_out = [&](const DocumentSplit& split) { events.note("held out " + describe(split)); };
  if (events.validation)
    inside.validation = [&](std::int64_t step, const Measured& measured, bool) {
      events.validation(step, measured.loss);
    };
  WatchedRun kept(job);
  if (watch) kept.listen(inside);
  const TrainResult result = train(job, inside);
  const char* ends[] = {"done", "no_better", "stopped"};
  return {.end = ends[static_cast<std::size_t>(result.end)],
          .step = result.state.step,
          .tokens = result.state.tokens,
          .held_out = result.held_out_tokens,
          .best_step = result.state.best_step,
          .loss = result.last_loss,
          .best = result.state.best_step > 0 ? std::optional(result.state.best) : std::nullopt};
}

}  // namespace

std::string story(const StoryOptions& o, std::int64_t number) {
  if (number < 0) throw InvalidArgument("story: the number is " + std::to_string(number) + ", expected 0 or more");
  using Format = std::pair<const char*, CorpusFormat>;
  constexpr std::array kFormats = {Format{"text", CorpusFormat::text}, Format{"chat", CorpusFormat::chat},
                                   Format{"pairs", CorpusFormat::preference},
                                   Format{"exercises", CorpusFormat::exercises}, Format{"easy", CorpusFormat::easy}};
  using Spoken = std::pair<const char*, int>;
  constexpr std::array kLanguages = {Spoken{"en", 1}, Spoken{"zh", 2}, Spoken{"both", 3}};
  const int spoken = chosen("story: the language", o.language, kLanguages);
  const CorpusOptions options{.seed = o.seed,
                              .english = (spoken & 1) != 0,
                              .chinese = (spoken & 2) != 0,
                              .format = chosen("story: the format", o.format, kFormats),
                              .relations = o.relations};
  return corpus_line(options, number);
}

void make_tokenizer(const TextInputs& inputs) {
  RecordReader reader(inputs.paths, inputs.skip_broken, inputs.column);
  io::NewFolder folder(inputs.out, inputs.replace);
  train_tokenizer(reader, {.vocabulary = inputs.vocabulary}, "smollm", folder.path(), inputs.progress);
  folder.commit();
}

PreparedData make_data(const TextInputs& inputs, const std::string& tokenizer) {
  PrepareOptions options = prepare_options(inputs);
  if (!tokenizer.empty()) options.tokenizer = find_model(tokenizer);
  ReadReport report;
  const DataInfo info = prepare(options, &report);
  return {.kind = name(info.kind),
          .documents = info.documents,
          .tokens = info.tokens,
          .learnt = info.learnt,
          .vocabulary = info.vocabulary,
          .skipped = info.skipped,
          .nats = info.nats,
          .rows = report.rows,
          .report = report.lines()};
}

std::string training_defaults(const std::string& stage, const std::string& shape) {
  TrainConfig config = default_config(stage_named(stage));
  if (!shape.empty()) set_shape(shape, config);
  return config_to_json(config);
}

TrainingEnd run_training(const TrainingRun& run, const TrainingEvents& events) {
  TrainJob job;
  job.stage = stage_named(run.stage);
  job.config = default_config(job.stage);
  read_settings(run.settings, job.config);
  job.shape_given = shape_fields_of(io::parse_json(run.settings, "the settings"));
  check_config(job.config, run.start.empty());
  job.data = run.data, job.run = run.folder, job.replace = run.replace;
  if (!run.start.empty()) job.start = find_model(run.start);
  if (!run.replace && std::filesystem::exists(job.run / "checkpoint.safetensors"))
    throw InvalidArgument("training: " + job.run.string() +
                          " holds a run already: go on with it, replace it, or choose another folder");
  std::filesystem::create_directories(job.run);
  return run_job(job, events, run.watch);
}

TrainingEnd resume_training(const std::filesystem::path& folder, const TrainingEvents& events) {
  return run_job(read_run(folder), events, std::filesystem::exists(WatchFolder{folder}.about_file()));
}

// ---- a step at a time ----

struct Learner::State {
  explicit State(ModelConfig model, const TrainConfig& settings)
      : config(std::move(model)),
        train(settings),
        network(std::make_unique<Network>(config, options(1))),
        moments(network->layout()) {}

  NetworkOptions options(std::int64_t tokens) const {
    return {.compute = train.compute_type(),
            .tokens = tokens,
            .recompute = train.recompute,
            .dropout = train.dropout,
            .balance = train.balance};
  }
  std::span<float> values(const MutableView& flat) const {
    return {static_cast<float*>(flat.data), static_cast<std::size_t>(network->layout().count())};
  }
  // Makes room for more tokens at once; the parameters stay.
  void make_room(std::int64_t tokens) {
    if (tokens <= network->options().tokens) return;
    auto larger = std::make_unique<Network>(config, options(tokens));
    std::ranges::copy(values(network->parameters()), values(larger->parameters()).begin());
    larger->changed();
    network = std::move(larger);
  }
  TrainingBatch batch(std::span<const std::int64_t> tokens, std::span<const std::int64_t> targets, std::int64_t rows) {
    const std::int64_t count = std::ssize(tokens);
    if (rows < 1 || count < 1 || count % rows != 0 || std::ssize(targets) != count)
      throw InvalidArgument("learner: " + std::to_string(count) + " tokens and " + std::to_string(targets.size()) +
                            " targets in " + std::to_string(rows) +
                            " rows, expected rows of one length, as many of both");
    TrainingBatch made{
        .tokens = {tokens.begin(), tokens.end()}, .targets = {targets.begin(), targets.end()}, .starts = {}};
    for (std::int64_t r = 0; r <= rows; ++r) made.starts.push_back(r * (count / rows));
    learnt = std::count_if(targets.begin(), targets.end(), [](std::int64_t t) { return t != kIgnored; });
    if (learnt == 0) throw InvalidArgument("learner: every target is -100: there is nothing to predict");
    make_room(count);
    return made;
  }

  ModelConfig config;
  TrainConfig train;
  std::unique_ptr<Network> network;
  Moments moments;
  std::int64_t steps = 0, learnt = 0;
  bool has_gradients = false;
};

Learner::Learner(std::unique_ptr<State> state) : state_("Learner", std::move(state)) {}
Learner::~Learner() = default;
Learner::Learner(Learner&&) noexcept = default;
Learner& Learner::operator=(Learner&&) noexcept = default;

Learner Learner::from_nothing(std::int64_t vocabulary, const std::string& settings) {
  if (vocabulary < 1)
    throw InvalidArgument("learner: the vocabulary is " + std::to_string(vocabulary) + ", expected 1 or more");
  TrainConfig config = default_config(Stage::pretrain);
  read_settings(settings, config);
  check_config(config);
  auto state = std::make_unique<State>(model_config(config, vocabulary), config);
  initialise(state->network->layout(), config.seed, state->network->parameters());
  state->network->changed();
  return Learner(std::move(state));
}

Learner Learner::from_model(const std::string& name_or_path, const std::string& settings) {
  TrainConfig config = default_config(Stage::pretrain);
  read_settings(settings, config);
  check_config(config, false);
  const ModelFiles files(find_model(name_or_path));
  if (!files.config().causal)
    throw InvalidArgument("learner: " + files.config().family + " does not predict the next token");
  const std::vector<std::string> ignored =
      take_shape(files.config(), shape_fields_of(io::parse_json(settings, "the settings")), config);
  if (!ignored.empty())
    throw InvalidArgument("learner: " + io::joined(ignored, ", ") + " cannot be set: the model keeps its shape");
  auto state = std::make_unique<State>(files.config(), config);
  load_parameters(files, state->network->layout(), state->network->parameters());
  state->network->changed();
  return Learner(std::move(state));
}

std::vector<Learner::Parameter> Learner::parameters() {
  std::vector<Parameter> list;
  Network& network = *state_->network;
  const std::span<float> values = state_->values(network.parameters()), gradients = state_->values(network.gradients());
  for (const llm::Parameter& p : network.layout().all()) {
    const auto first = static_cast<std::size_t>(p.offset), count = static_cast<std::size_t>(p.count());
    list.push_back({.name = p.name,
                    .shape = p.rows == 1 && !p.matrix ? std::vector{p.cols} : std::vector{p.rows, p.cols},
                    .values = values.subspan(first, count),
                    .gradient = gradients.subspan(first, count)});
  }
  return list;
}

void Learner::changed() {
  state_->network->changed();
}
std::int64_t Learner::parameter_count() const {
  return state_->network->layout().parameters();
}
std::int64_t Learner::vocabulary() const {
  return state_->config.vocabulary;
}
std::int64_t Learner::steps() const {
  return state_->steps;
}

double Learner::loss(std::span<const std::int64_t> tokens, std::span<const std::int64_t> targets, std::int64_t rows) {
  const TrainingBatch batch = state_->batch(tokens, targets, rows);
  return state_->network->loss(batch) / static_cast<double>(state_->learnt);
}

double Learner::gradients(std::span<const std::int64_t> tokens, std::span<const std::int64_t> targets,
                          std::int64_t rows) {
  const TrainingBatch batch = state_->batch(tokens, targets, rows);
  const double share = 1.0 / static_cast<double>(state_->learnt);
  const auto seed = state_->train.seed + static_cast<std::uint64_t>(state_->steps + 1) * 0x9E3779B97F4A7C15ULL;
  const double sum = state_->network->loss_and_gradients(batch, share, false, seed);
  state_->has_gradients = true;
  return sum * share;
}

double Learner::update(double rate) {
  State& s = *state_;
  if (!s.has_gradients)
    throw InvalidArgument("learner: there are no gradients to step along: expected gradients() before");
  if (!(rate >= 0) || !std::isfinite(rate))
    throw InvalidArgument("learner: the rate is " + std::to_string(rate) + ", expected 0 or more");
  const double length = gradient_norm(s.network->layout(), s.network->gradients());
  if (!std::isfinite(length)) throw TrainingFailed("learner: the gradient is no number: nothing was changed");
  const double factor = s.train.clip > 0 && length > s.train.clip ? s.train.clip / length : 1.0;
  adamw_step(s.network->layout(), adamw_of(s.train), rate, ++s.steps, s.network->gradients(), factor, s.moments,
             s.network->parameters());
  s.network->changed();
  s.has_gradients = false;
  return length;
}

void Learner::save(const std::filesystem::path& folder, const std::string& tokenizer) {
  const std::filesystem::path from = find_model(tokenizer);
  const Tokenizer words =
      std::filesystem::is_directory(from) ? tokenizer_from_folder(from) : load_tokenizer(ModelFiles(from));
  ModelConfig config = state_->config;
  if (words.vocabulary() > config.vocabulary)
    throw InvalidArgument("learner: the tokenizer has " + std::to_string(words.vocabulary()) +
                          " tokens, and the model knows " + std::to_string(config.vocabulary));
  if (!config.bos && words.special().bos) config.bos = *words.special().bos;
  if (config.eos.empty() && words.special().eos) config.eos = {*words.special().eos};
  write_trained(folder, config, state_->network->layout(), state_->network->parameters(), from);
}

}  // namespace attend::llm
