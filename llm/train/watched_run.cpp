// Keeps models of a run's steps beside it, and tells what the run is.
#include "llm/train/watched_run.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>

#include "io/atomic_file.hpp"
#include "io/json.hpp"
#include "io/readable.hpp"
#include "llm/train/dataset.hpp"
#include "llm/train/packing.hpp"
#include "llm/train/run_folder.hpp"
#include "llm/train/train_tokenizer.hpp"

namespace attend::llm {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kTextTokens = 48;
constexpr std::int64_t kParts = 10;  // of a run, with a model kept behind each

// The beginning of a text that is not learnt: heads are looked at with the same words at every step.
std::string held_out_text(const TrainJob& job) {
  const Dataset data(job.data);
  const DocumentSplit split = split_of(data, job.config);
  std::vector<Token> tokens;
  for (const std::int32_t stored : split.held_out() > 0 ? split.held_out_part(0) : split.training_part(0)) {
    if (std::ssize(tokens) == std::min(kTextTokens, job.config.length)) break;
    tokens.push_back(static_cast<Token>(token_of(stored)));
  }
  return tokenizer_from_folder(job.data).decode(tokens);
}

}  // namespace

bool is_step(const std::string& name, std::int64_t& step) {
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  return error == std::errc{} && end == name.data() + name.size() && step >= 0 && std::to_string(step) == name;
}

std::vector<std::int64_t> WatchFolder::steps() const {
  std::vector<std::int64_t> out;
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder(), none)) {
    std::int64_t step = 0;
    if (is_step(entry.path().filename().string(), step) && fs::exists(entry.path() / "config.json", none))
      out.push_back(step);
  }
  std::sort(out.begin(), out.end());
  return out;
}

void WatchedRun::listen(TrainEvents& events) {
  const auto before = events;
  events.begin = [this, before](const auto& model, std::int64_t parameters, const auto& memory, std::int64_t steps,
                                std::int64_t done) {
    if (before.begin) before.begin(model, parameters, memory, steps, done);
    begin(parameters, steps, done);
  };
  events.scale = [this, before](const NgramLosses& losses, double entropy) {
    if (before.scale) before.scale(losses, entropy);
    scale_ = losses, entropy_ = entropy;
    write_about();
  };
  events.sample = [this, before](std::int64_t step, const std::string& prompt, const std::string& text) {
    if (before.sample) before.sample(step, prompt, text);
    add_sample(step, prompt, text);
  };
  events.keep_model = [this](std::int64_t step) { return is_kept(step) ? files_.model(step) : fs::path(); };
}

// Most happens early: steps 1, 2, 5, 10, ... are kept there, then one of every tenth of the run.
bool WatchedRun::is_kept(std::int64_t step) const {
  const std::int64_t part = std::max<std::int64_t>(1, steps_ / kParts);
  if (step == first_ || step == steps_ || step % part == 0) return true;
  std::int64_t digits = step;
  while (digits % 10 == 0) digits /= 10;
  return step < part && (digits == 1 || digits == 2 || digits == 5);
}

void WatchedRun::begin(std::int64_t parameters, std::int64_t steps, std::int64_t done) {
  steps_ = steps, parameters_ = parameters, first_ = done;
  std::int64_t count = 0;
  for (std::int64_t step = done; step <= steps; ++step) count += is_kept(step) ? 1 : 0;
  const auto each = static_cast<double>(parameters) * 4, wanted = each * static_cast<double>(count);
  fs::create_directories(files_.folder());
  const auto free = static_cast<double>(fs::space(job_.run).available);
  if (wanted > free)
    throw std::runtime_error("a watched run keeps " + std::to_string(count) + " models of " + io::readable_bytes(each) +
                             ", and the disk of " + job_.run.string() + " has " + io::readable_bytes(free) +
                             " left; train without watching, or choose another folder");
  if (begun) begun(count, each);
  // What a run that ended before its checkpoint left behind will come again.
  for (const std::int64_t step : files_.steps())
    if (step > done) fs::remove_all(files_.model(step));
  const Metrics drops_later_lines(files_.samples_file(), done);
  text_ = held_out_text(job_);
  write_about();
}

void WatchedRun::write_about() {
  io::JsonObject about;
  about.string("stage", name(job_.stage));
  about.number("steps", steps_);
  about.number("parameters", parameters_);
  about.string("text", text_);
  if (scale_) {
    about.number("unigram", scale_->unigram);
    about.number("trigram", scale_->trigram);
  }
  if (entropy_ > 0) about.number("entropy", entropy_);
  const std::string text = about.text() + "\n";
  io::write_file_atomically(files_.about_file(), std::as_bytes(std::span(text)));
}

void WatchedRun::add_sample(std::int64_t step, const std::string& prompt, const std::string& text) const {
  io::JsonObject sample;
  sample.number("step", step);
  sample.string("prompt", prompt);
  sample.string("text", text);
  std::ofstream file(files_.samples_file(), std::ios::app);
  file << sample.text() << '\n' << std::flush;
  if (!file) throw io::FileError("cannot write " + files_.samples_file().string());
}

}  // namespace attend::llm
