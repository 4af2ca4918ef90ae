// The page of a training run, served by the process that trains.
#include "train_watch.hpp"

#include <fmt/format.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "command.hpp"
#include "interrupt.hpp"
#include "io/atomic_file.hpp"
#include "io/json.hpp"
#include "io/readable.hpp"
#include "llm/train/dataset.hpp"
#include "llm/train/packing.hpp"
#include "llm/train/run_folder.hpp"
#include "llm/train/train_tokenizer.hpp"
#include "open_browser.hpp"

namespace attend::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kTextTokens = 48;
constexpr std::int64_t kParts = 10;  // of a run, with a model kept behind each

// The beginning of a text that is not learnt: heads are looked at with the same words at every step.
std::string held_out_text(const llm::TrainJob& job) {
  const llm::Dataset data(job.data);
  const bool pairs = data.info().kind == llm::DataKind::preference;
  const llm::DocumentSplit split(pairs ? data.count() / 2 : data.count(), job.config.held_out, job.config.seed);
  const std::int64_t n = split.held_out() > 0 ? split.held_out_document(0) : split.training_document(0);
  std::vector<llm::Token> tokens;
  for (const std::int32_t stored : data.document(pairs ? 2 * n : n)) {
    if (std::ssize(tokens) == std::min(kTextTokens, job.config.length)) break;
    tokens.push_back(static_cast<llm::Token>(llm::token_of(stored)));
  }
  return llm::tokenizer_from_folder(job.data).decode(tokens);
}

}  // namespace

void TrainWatch::listen(llm::TrainEvents& events) {
  const auto before = events;
  events.begin = [this, before](const auto& model, std::int64_t parameters, const auto& memory, std::int64_t steps,
                                std::int64_t done) {
    if (before.begin) before.begin(model, parameters, memory, steps, done);
    begin(parameters, steps, done);
  };
  events.scale = [this, before](const llm::NgramLosses& losses, double entropy) {
    if (before.scale) before.scale(losses, entropy);
    scale_ = losses, entropy_ = entropy;
    write_about();
  };
  events.sample = [this, before](std::int64_t step, const std::string& prompt, const std::string& text) {
    if (before.sample) before.sample(step, prompt, text);
    add_sample(step, prompt, text);
  };
  events.keep_model = [this](std::int64_t step) { return is_kept(step) ? folder_.model(step) : fs::path(); };
  events.stop = [this, before] {
    if (!listener_) serve();  // the first model is there now
    return before.stop && before.stop();
  };
}

// Most happens early: steps 1, 2, 5, 10, ... are kept there, then one of every tenth of the run.
bool TrainWatch::is_kept(std::int64_t step) const {
  const std::int64_t part = std::max<std::int64_t>(1, steps_ / kParts);
  if (step == first_ || step == steps_ || step % part == 0) return true;
  std::int64_t digits = step;
  while (digits % 10 == 0) digits /= 10;
  return step < part && (digits == 1 || digits == 2 || digits == 5);
}

void TrainWatch::begin(std::int64_t parameters, std::int64_t steps, std::int64_t done) {
  steps_ = steps, parameters_ = parameters, first_ = done;
  std::int64_t count = 0;
  for (std::int64_t step = done; step <= steps; ++step) count += is_kept(step) ? 1 : 0;
  const auto each = static_cast<double>(parameters) * 4, wanted = each * static_cast<double>(count);
  fs::create_directories(folder_.about_file().parent_path());
  const auto free = static_cast<double>(fs::space(job_.run).available);
  if (wanted > free)
    throw std::runtime_error(
        fmt::format("--watch keeps {} models of {}, and the disk of {} has {} left; train without "
                    "it, or choose another folder",
                    count, io::readable_bytes(each), job_.run.string(), io::readable_bytes(free)));
  fmt::print("watch    keeps the model of {} steps, {} each, in {}\n", count, io::readable_bytes(each),
             folder_.about_file().parent_path().string());
  // What a run that ended before its checkpoint left behind will come again.
  for (const std::int64_t step : folder_.steps())
    if (step > done) fs::remove_all(folder_.model(step));
  const llm::Metrics drops_later_lines(folder_.samples_file(), done);
  text_ = held_out_text(job_);
  write_about();
}

void TrainWatch::write_about() {
  io::JsonObject about;
  about.string("stage", llm::name(job_.stage));
  about.number("steps", steps_);
  about.number("parameters", parameters_);
  about.string("text", text_);
  if (scale_) {
    about.number("unigram", scale_->unigram);
    about.number("trigram", scale_->trigram);
  }
  if (entropy_ > 0) about.number("entropy", entropy_);
  const std::string text = about.text() + "\n";
  io::write_file_atomically(folder_.about_file(), std::as_bytes(std::span(text)));
}

void TrainWatch::add_sample(std::int64_t step, const std::string& prompt, const std::string& text) const {
  io::JsonObject sample;
  sample.number("step", step);
  sample.string("prompt", prompt);
  sample.string("text", text);
  std::ofstream file(folder_.samples_file(), std::ios::app);
  file << sample.text() << '\n' << std::flush;
  if (!file) throw io::FileError("cannot write " + folder_.samples_file().string());
}

void TrainWatch::serve() {
  server::add_assets(router_);
  folder_.add_routes(router_);
  explorer_ = std::make_unique<server::Explorer>(folder_.models(job_.config.length),
                                                 server::ExploreLimits{.bytes = std::int64_t{512} << 20});
  explorer_->add_routes(router_);
  listener_ = std::make_unique<server::Listener>(router_, server::ListenOptions{.port = port_}, log_);
  const std::string url = fmt::format("http://127.0.0.1:{}/", listener_->port());
  fmt::print("watch    {}\n", url);
  (void)std::fflush(stdout);
  open_browser(url);
}

void TrainWatch::stay() const {
  if (!listener_) return;
  fmt::print("watch    http://127.0.0.1:{}/ stays open; Ctrl-C ends it, and attend explore {} opens it again\n",
             listener_->port(), job_.run.string());
  (void)std::fflush(stdout);
  try {
    for (;;) {
      check_interrupted();
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  } catch (const Interrupted&) {
    // the run was over before
  }
}

}  // namespace attend::cli
