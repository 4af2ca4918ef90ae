// The lines of a training run, and its curves.
#include "train_screen.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "draw/columns.hpp"
#include "draw/picture.hpp"
#include "io/atomic_file.hpp"
#include "io/environment.hpp"
#include "io/file_error.hpp"
#include "io/json.hpp"
#include "io/mapped_file.hpp"
#include "io/readable.hpp"
#include "progress.hpp"

namespace attend::cli {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

std::string time_left(double seconds) {
  if (seconds >= 5400) return fmt::format("{:.1f} h", seconds / 3600);
  if (seconds >= 90) return fmt::format("{:.0f} min", seconds / 60);
  return fmt::format("{:.0f} s", seconds);
}

}  // namespace

TrainScreen::TrainScreen()
    : terminal_(::isatty(STDERR_FILENO) != 0 && io::environment("TERM") != "dumb"), next_(Clock::now()) {}

TrainScreen::~TrainScreen() {
  clear();
}

void TrainScreen::clear() {
  if (drawn_) (void)std::fputs("\r\x1b[K", stderr);
  drawn_ = false;
}

void TrainScreen::begin(const llm::ModelConfig& m, std::int64_t parameters, const llm::TrainMemory& memory,
                        std::int64_t steps, std::int64_t done) {
  fmt::print("model    {} parameters: {} layers of {}, {} heads over {} of keys and values, vocabulary {}\n",
             io::readable_count(parameters), m.layers, m.hidden, m.heads, m.kv_heads, io::readable_count(m.vocabulary));
  fmt::print("memory   {}: {}\n", io::readable_bytes(static_cast<double>(memory.total())), describe(memory));
  fmt::print("steps    {}{}\n", io::readable_count(steps),
             done > 0 ? fmt::format(", going on behind {}", io::readable_count(done)) : "");
  (void)std::fflush(stdout);
}

void TrainScreen::held_out(const llm::DocumentSplit& split) {
  fmt::print("held out {}\n", describe(split));
  (void)std::fflush(stdout);
}

void TrainScreen::scale(const llm::NgramLosses& losses, double entropy) {
  clear();
  fmt::print("scale    held-out loss of a unigram {:.3f}, of a 3-gram {:.3f}{} nats a token\n", losses.unigram,
             losses.trigram, entropy > 0 ? fmt::format(", entropy of the texts {:.3f}", entropy) : "");
  (void)std::fflush(stdout);
}

void TrainScreen::note(const std::string& text) {
  clear();
  fmt::print("note     {}\n", io::printable_text(text));
}

void TrainScreen::step(const llm::StepReport& r) {
  const auto now = Clock::now();
  if (now < next_ && r.step != r.steps) return;
  next_ = now + (terminal_ ? Clock::duration(200ms) : Clock::duration(10s));
  std::string line =
      fmt::format("step {}/{}  loss {:.4f}  gradient {:.2f}  rate {:.1e}  {} tokens/s  {}  {} left", r.step, r.steps,
                  r.loss, r.gradient, r.rate, io::readable_count(static_cast<std::int64_t>(r.tokens_per_second)),
                  io::readable_bytes(static_cast<double>(r.memory)), time_left(r.seconds_left));
  for (const auto& [name, value] : r.more) line += fmt::format("  {} {:.4f}", name, value);
  if (terminal_) line = "\r\x1b[K" + draw::cut_to(line, columns_of_terminal() - 1);
  (void)std::fputs((terminal_ ? line : line + "\n").c_str(), stderr);
  (void)std::fflush(stderr);
  drawn_ = terminal_;
}

void TrainScreen::validation(std::int64_t step, const llm::Measured& measured, bool best) {
  clear();
  std::string line = fmt::format("step {:<6} validation loss {:.4f}", step, measured.loss);
  for (const auto& [name, value] : measured.more) line += fmt::format("  {} {:.4f}", name, value);
  fmt::print("{}{}\n", line, best ? "" : "  (no better)");
  (void)std::fflush(stdout);
}

void TrainScreen::sample(const std::string& prompt, const std::string& text) {
  clear();
  std::string shown = io::printable_text(prompt + "|" + text);
  for (std::size_t at = 0; (at = shown.find('\n', at)) != std::string::npos; at += 7) shown.replace(at, 1, "\n       ");
  fmt::print("       {}\n", shown);
  (void)std::fflush(stdout);
}

std::vector<std::pair<double, double>> metric(const std::filesystem::path& run, const std::string& kind,
                                              const std::string& name) {
  std::vector<std::pair<double, double>> points;
  if (!std::filesystem::exists(run / "metrics.jsonl")) return points;
  const io::MappedFile file(run / "metrics.jsonl");
  std::int64_t number = 0;
  for (const std::string_view line : io::lines_of(io::as_text(file.bytes()))) {
    const io::Json json = io::parse_json(line, fmt::format("{}:{}", (run / "metrics.jsonl").string(), ++number));
    const io::Json *is = json.find("kind"), *step = json.find("step"), *value = json.find(name);
    double x = 0, y = 0;
    if (is == nullptr || is->string() == nullptr || *is->string() != kind) continue;
    if (step != nullptr && value != nullptr && step->number(x) && value->number(y)) points.emplace_back(x, y);
  }
  return points;
}

void draw_losses(const std::vector<std::filesystem::path>& runs, const std::filesystem::path& path) {
  draw::Panel panel{"Loss", {}, {.name = "step"}, {.name = "nats a token"}};
  for (const std::filesystem::path& run : runs) {
    const std::string prefix = runs.size() > 1 ? run.filename().string() + ", " : "";
    // Each point of the training loss is the mean of some steps: a line of at most 200 points.
    const auto all = metric(run, "step", "loss");
    std::vector<std::pair<double, double>> points;
    const std::size_t width = std::max<std::size_t>(1, all.size() / 200);
    for (std::size_t i = 0; i < all.size(); i += width) {
      const std::size_t end = std::min(all.size(), i + width);
      double sum = 0;
      for (std::size_t k = i; k < end; ++k) sum += all[k].second;
      points.emplace_back(all[end - 1].first, sum / static_cast<double>(end - i));
    }
    if (runs.size() == 1) panel.series.push_back({prefix + "training", std::move(points)});
    panel.series.push_back({prefix + "validation", metric(run, "validation", "loss")});
  }
  if (std::all_of(panel.series.begin(), panel.series.end(), [](const auto& s) { return s.points.empty(); })) return;
  const draw::Chart chart{{runs.size() > 1 ? "Losses side by side" : runs.front().filename().string()}, {panel}};
  for (const char* ending : {".svg", ".png"}) {
    const std::string file = path.string() + ending;
    io::write_file_atomically(file, draw::to_file_bytes(file, chart));
  }
}

}  // namespace attend::cli
