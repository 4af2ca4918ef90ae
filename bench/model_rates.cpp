// A language model that is timed from outside.
#include "model_rates.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <sstream>
#include <vector>

#include "base/random.hpp"
#include "llm/generate/perplexity.hpp"
#include "llm/generate/sampler.hpp"
#include "measure.hpp"

namespace attend::bench {
namespace {

using llm::Token;

class Timed {
 public:
  Timed(const std::string& path, DType dtype)
      : model_(llm::ModelFiles(path)), dtype_(dtype), logits_(static_cast<std::size_t>(model_.config().vocabulary)) {}

  double prefill(std::int64_t count) {
    llm::ModelCache& cache = room_for(count);
    const std::int64_t sequence = cache.add();
    const std::vector<Token> tokens = some_tokens(count);
    const double start = seconds();
    read(sequence, tokens, cache);
    const double time = seconds() - start;
    cache.remove(sequence);
    return time;
  }

  double decode(std::int64_t before, std::int64_t count) {
    llm::ModelCache& cache = room_for(before + count);
    const std::int64_t sequence = cache.add();
    const std::vector<Token> tokens = some_tokens(before + count);
    const auto at = static_cast<std::size_t>(before);
    read(sequence, std::span(tokens).first(at), cache);
    const double start = seconds();
    for (std::size_t i = at; i < tokens.size(); ++i) read(sequence, std::span(tokens).subspan(i, 1), cache);
    const double time = seconds() - start;
    cache.remove(sequence);
    return time;
  }

  std::vector<Token> greedy(std::int64_t count, const std::vector<Token>& prompt) {
    llm::ModelCache& cache = room_for(std::ssize(prompt) + count);
    const std::int64_t sequence = cache.add();
    std::vector<Token> made;
    read(sequence, prompt, cache);
    while (std::ssize(made) < count) {
      made.push_back(llm::sample(logits_, {}, {}, {}, 0).token);
      read(sequence, std::span(made).last(1), cache);
    }
    cache.remove(sequence);
    return made;
  }

  double loss(const std::vector<Token>& tokens) {
    const llm::Perplexity p = llm::perplexity(model_, tokens, std::ssize(tokens), {std::ssize(tokens), dtype_, false});
    return p.loss * static_cast<double>(p.predicted);
  }

  const std::vector<float>& logits(const std::vector<Token>& tokens) {
    greedy(0, tokens);
    return logits_;
  }

 private:
  std::vector<Token> some_tokens(std::int64_t count) const {
    std::vector<Token> tokens;
    for (std::int64_t i = 0; i < count; ++i)
      tokens.push_back(static_cast<Token>(uniform(1, static_cast<std::uint64_t>(i)) *
                                          static_cast<double>(model_.config().vocabulary)));
    return tokens;
  }
  llm::ModelCache& room_for(std::int64_t tokens) {
    if (!cache_ || room_ < tokens) {
      room_ = tokens;
      cache_ = std::make_unique<llm::ModelCache>(model_.config(), llm::CacheOptions{tokens, dtype_, false});
    }
    return *cache_;
  }
  void read(std::int64_t sequence, std::span<const Token> tokens, llm::ModelCache& cache) {
    constexpr std::size_t kStep = 512;
    const std::int64_t H = model_.config().hidden;
    while (!tokens.empty()) {
      const auto some = tokens.first(std::min(kStep, tokens.size()));
      tokens = tokens.subspan(some.size());
      const llm::Continuation part[] = {{sequence, std::ssize(some)}};
      const View rows = model_.forward(some, part, cache);
      if (tokens.empty())
        model_.logits(view_of(static_cast<const float*>(rows.data) + (std::ssize(some) - 1) * H, {1, 1, 1, H}),
                      view_of(logits_.data(), {1, 1, 1, std::ssize(logits_)}));
    }
  }

  llm::Transformer model_;
  DType dtype_;
  std::vector<float> logits_;
  std::unique_ptr<llm::ModelCache> cache_;
  std::int64_t room_ = 0;
};

}  // namespace

void serve_model(const std::string& path, const std::string& cache_dtype) {
  Timed model(path, cache_dtype == "f32" ? DType::f32 : cache_dtype == "bf16" ? DType::bf16 : DType::f16);
  fmt::print("{{\"ready\": true}}\n");
  std::cout.flush();
  for (std::string line; std::getline(std::cin, line);) {
    (void)std::fflush(stdout);
    std::istringstream words(line);
    std::string command;
    std::int64_t a = 0, b = 0;
    words >> command;
    const auto ids = [&] {
      std::vector<Token> tokens;
      for (Token token = 0; words >> token;) tokens.push_back(token);
      return tokens;
    };
    if (command == "prefill" && words >> a) {
      fmt::print("{{\"seconds\": {}}}\n", model.prefill(a));
    } else if (command == "decode" && words >> a >> b) {
      fmt::print("{{\"seconds\": {}}}\n", model.decode(a, b));
    } else if (command == "greedy" && words >> a) {
      fmt::print("{{\"tokens\": [{}]}}\n", fmt::join(model.greedy(a, ids()), ", "));
    } else if (command == "loss") {
      fmt::print("{{\"loss\": {}}}\n", model.loss(ids()));
    } else if (command == "logits") {
      fmt::print("{{\"logits\": [{}]}}\n", fmt::join(model.logits(ids()), ", "));
    } else {
      fmt::print("{{\"error\": \"unknown\"}}\n");
    }
    (void)std::fflush(stdout);
  }
}

}  // namespace attend::bench
