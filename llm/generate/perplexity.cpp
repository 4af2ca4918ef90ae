// Windows of a text through the model, and the loss of each token.
#include "llm/generate/perplexity.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "attend/error.hpp"
#include "attend/threads.hpp"

namespace attend::llm {
namespace {

double loss_of(std::span<const float> logits, Token token) {
  const float most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x - most));
  return std::log(sum) + static_cast<double>(most) - static_cast<double>(logits[static_cast<std::size_t>(token)]);
}

}  // namespace

void token_losses(const Transformer& model, const float* hidden, std::span<const Token> next,
                  std::span<double> losses) {
  const std::int64_t H = model.config().hidden, V = model.config().vocabulary, count = std::ssize(next);
  std::vector<float> logits(static_cast<std::size_t>(std::min(kLogitRows, count) * V));
  for (std::int64_t r = 0; r < count; r += kLogitRows) {
    const std::int64_t some = std::min(kLogitRows, count - r);
    model.logits(view_of(hidden + r * H, {1, 1, some, H}), view_of(logits.data(), {1, 1, some, V}));
    parallel_for(some, [&](std::int64_t i, int) {
      const auto row = std::span(logits).subspan(static_cast<std::size_t>(i * V), static_cast<std::size_t>(V));
      losses[static_cast<std::size_t>(r + i)] = loss_of(row, next[static_cast<std::size_t>(r + i)]);
    });
  }
}

Perplexity perplexity(Transformer& model, std::span<const Token> tokens, std::int64_t length,
                      const CacheOptions& options, const std::function<void(std::int64_t)>& progress) {
  const std::int64_t H = model.config().hidden, V = model.config().vocabulary, all = std::ssize(tokens);
  for (const Token token : tokens)  // one may be asked for before the model reads it
    if (token < 0 || token >= V)
      throw InvalidArgument("perplexity: a token is " + std::to_string(token) + ", expected 0 to " +
                            std::to_string(V - 1));
  ModelCache cache(model.config(), {length, options.dtype, options.int8});
  std::vector<float> hidden;
  std::vector<double> losses;
  for (std::int64_t first = 0; first + 1 < all; first += length) {
    const std::int64_t count = std::min(length, all - first);
    if (count < 2) break;
    const std::int64_t sequence = cache.add();
    constexpr std::int64_t kStep = 512;
    for (std::int64_t at = 0; at < count; at += kStep) {
      const std::int64_t now = std::min(kStep, count - at);
      const Continuation part[] = {{sequence, now}};
      const View rows = model.forward(
          tokens.subspan(static_cast<std::size_t>(first + at), static_cast<std::size_t>(now)), part, cache);
      const std::int64_t predict = std::min(now, count - 1 - at);  // the last of a window has nothing to predict
      hidden.assign(static_cast<const float*>(rows.data), static_cast<const float*>(rows.data) + predict * H);
      const std::size_t before = losses.size();
      losses.resize(before + static_cast<std::size_t>(predict));
      token_losses(model, hidden.data(),
                   tokens.subspan(static_cast<std::size_t>(first + at + 1), static_cast<std::size_t>(predict)),
                   std::span(losses).subspan(before));
      if (progress) progress(first + at + now);
    }
    cache.remove(sequence);
  }
  Perplexity result;
  result.predicted = std::ssize(losses);
  if (losses.empty()) return result;
  const auto n = static_cast<double>(losses.size());
  for (const double loss : losses) result.loss += loss / n;
  double variance = 0;
  for (const double loss : losses) variance += (loss - result.loss) * (loss - result.loss) / n;
  result.perplexity = std::exp(result.loss);
  result.error = result.perplexity * std::sqrt(variance / n);
  return result;
}

}  // namespace attend::llm
