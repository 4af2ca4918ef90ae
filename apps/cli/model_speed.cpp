// Measures the machine's memory, and models.
#include "model_speed.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <new>
#include <numeric>
#include <thread>
#include <vector>

#include "attend/llm/model.hpp"
#include "attend/runtime.hpp"

namespace attend::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kWords = (std::size_t{96} << 20) / sizeof(std::uint64_t);  // larger than caches
constexpr int kReads = 3;
// An assumption: decode reaches this share of the memory bandwidth, because products take time too. --speed measures.
constexpr double kShareOfMemoryRate = 0.6;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Runs job(first word, past the last) on every thread.
template <class Job>
void on_all_threads(const Job& job) {
  const auto count = static_cast<std::size_t>(threads());
  std::vector<std::thread> running;
  for (std::size_t n = 0; n < count; ++n)
    running.emplace_back([&, n] { job(n, kWords * n / count, kWords * (n + 1) / count); });
  for (std::thread& thread : running) thread.join();
}

}  // namespace

double memory_read_rate() {
  const std::unique_ptr<std::uint64_t[]> words(new (std::nothrow) std::uint64_t[kWords]);
  if (!words) return 0;
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(threads()));
  on_all_threads([&](std::size_t, std::size_t first, std::size_t last) {
    std::iota(words.get() + first, words.get() + last, std::uint64_t{first});
  });
  double best = 1e9;
  std::uint64_t total = 0;
  for (int n = 0; n < kReads; ++n) {
    const auto start = Clock::now();
    on_all_threads([&](std::size_t thread, std::size_t first, std::size_t last) {
      std::uint64_t sum = 0;
      for (std::size_t i = first; i < last; ++i) sum += words[i];
      sums[thread] = sum;
    });
    best = std::min(best, seconds_since(start));
    total += std::accumulate(sums.begin(), sums.end(), std::uint64_t{0});
  }
  return total == 0 ? 0
                    : static_cast<double>(kWords * sizeof(std::uint64_t)) / best;  // the sum is looked at: it is made
}

double estimated_tokens_per_second(double read_rate, std::int64_t model_bytes) {
  return model_bytes > 0 ? kShareOfMemoryRate * read_rate / static_cast<double>(model_bytes) : 0;
}

std::string measured_speed(const std::string& name) {
  constexpr std::int64_t kPrompt = 256, kAnswer = 32, kTexts = 32;
  llm::Model model = llm::Model::open(name, {.context = 512});
  if (!model.info().generates) {
    const std::vector<std::string> texts(kTexts, "The quick brown fox jumps over the lazy dog near the old river.");
    (void)model.embed(texts);
    const auto start = Clock::now();
    (void)model.embed(texts);
    return fmt::format("{:.0f} short texts/s", static_cast<double>(kTexts) / seconds_since(start));
  }
  std::vector<llm::Token> prompt;
  for (std::int64_t i = 0; i < kPrompt; ++i)
    prompt.push_back(static_cast<llm::Token>((i * 7919 + 13) % model.info().vocabulary));
  auto start = Clock::now();
  (void)model.generate(prompt, {.max_tokens = 1});
  const double reading = seconds_since(start);
  start = Clock::now();  // the prompt is in the cache now
  const llm::Answer answer = model.generate(prompt, {.max_tokens = kAnswer});
  return fmt::format("{:.1f} tokens/s, prompts {:.0f} tokens/s",
                     static_cast<double>(answer.tokens.size()) / seconds_since(start),
                     static_cast<double>(kPrompt) / reading);
}

}  // namespace attend::cli
