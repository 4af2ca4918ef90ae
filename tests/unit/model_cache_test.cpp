// What windows and streams forget: a window never a bit that counts, a stream what it says.
#include "llm/cache/model_cache.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "attend/error.hpp"
#include "error_of.hpp"
#include "golden_models.hpp"

namespace attend::llm::test {
namespace {

using attend::test::error_of;

// A golden model with one field of its config changed.
Transformer with(const char* name, const std::string& field, const std::string& value) {
  const GoldenModel golden(name);
  std::string config = read_text(golden.path() / "config.json");
  const std::size_t at = config.find("\"" + field + "\": ");
  const std::size_t begin = config.find(' ', at) + 1, end = config.find_first_of(",\n", begin);
  config.replace(begin, end - begin, value);
  write_text(golden.path() / "config.json", config);
  if (field == "num_hidden_layers")  // of one: the second layer's tensors go, too
    golden.change_weights([](std::vector<io::StoredTensor>& tensors) {
      std::erase_if(tensors, [](const io::StoredTensor& t) { return t.name.starts_with("model.layers.1."); });
    });
  return golden.load();
}

std::vector<float> logits_of(Transformer& model, View rows) {
  const std::int64_t V = model.config().vocabulary;
  std::vector<float> out(static_cast<std::size_t>(rows.length() * V));
  model.logits(rows, view_of(out.data(), {1, 1, rows.length(), V}));
  return out;
}

TEST(ModelCache, AWindowForgetsWithoutChangingABit) {
  Transformer model = with("mistral", "sliding_window", "100");
  const std::vector<Token> tokens = golden_tokens(model, 1500);
  const std::int64_t lengths[] = {1500};
  const std::vector<float> expected = logits_of(model, model.encode(tokens, lengths));  // keeps all of it
  for (const std::int64_t chunk : {1, 64, 333, 500}) {
    // Room for the window, for what is forgotten at once and for the chunk: less than the sequence.
    const std::int64_t room = 100 + PagedKvCache::kSplitTokens + std::max<std::int64_t>(chunk, 64) + 64;
    EXPECT_EQ(run_alone(model, tokens, chunk, {.tokens = room}), expected) << chunk;
  }
}

TEST(ModelCache, WhatAWindowForgotCannotBeForked) {
  Transformer model = with("mistral", "sliding_window", "100");
  const std::vector<Token> tokens = golden_tokens(model, 800);
  ModelCache cache(model.config(), {.tokens = 2048});
  const std::int64_t sequence = cache.add();
  const Continuation parts[] = {{sequence, 799}}, one[] = {{sequence, 1}};
  model.forward(std::span(tokens).first(799), parts, cache);
  model.forward(std::span(tokens).last(1), one, cache);
  EXPECT_EQ(cache.length(sequence), 800);
  EXPECT_TRUE(cache.can_cut(sequence, 800));
  EXPECT_TRUE(cache.can_cut(sequence, 700));
  EXPECT_FALSE(cache.can_cut(sequence, 500));
  EXPECT_NE(error_of([&] { cache.fork(sequence, 500); }).find("forgotten"), std::string::npos);
  EXPECT_NE(error_of([&] { cache.truncate(sequence, 500); }).find("forgotten"), std::string::npos);
  const std::int64_t fork = cache.fork(sequence, 700);
  const Continuation again[] = {{fork, 100}};
  const std::vector<float> rows = run(model, std::span(tokens).last(100), again, cache);
  EXPECT_EQ(rows, [&] {
    std::vector<float> all = run_alone(model, tokens, 800, {.tokens = 1024});
    return std::vector<float>(all.end() - std::ssize(rows), all.end());
  }());
}

// With one layer keys and values are those of the tokens alone, so a stream must see what a fresh sequence of the
// tokens it kept would.
TEST(ModelCache, AStreamSeesItsFirstAndItsLastTokens) {
  Transformer model = with("llama", "num_hidden_layers", "1");
  for (const DType dtype : {DType::f32, DType::f16}) {
    const std::vector<Token> tokens = golden_tokens(model, 700);
    ModelCache cache(model.config(), {.tokens = 64 + 128 + 128, .dtype = dtype, .stream = 100, .sinks = 4});
    const std::int64_t sequence = cache.add();
    for (std::int64_t t = 0; t < 700; ++t) {
      const Continuation part[] = {{sequence, 1}};
      const std::vector<float> row = run(model, std::span(tokens).subspan(static_cast<std::size_t>(t), 1), part, cache);
      if (t % 97 != 96) continue;
      const std::int64_t gone = cache.forgotten(sequence);
      EXPECT_EQ(gone > 0, t > 64 + 100 + 64);
      std::vector<Token> kept(tokens.begin(), tokens.begin() + std::min<std::int64_t>(64, t + 1));
      if (t >= 64) kept.insert(kept.end(), tokens.begin() + 64 + gone, tokens.begin() + t + 1);
      const std::vector<float> fresh = run_alone(model, kept, std::ssize(kept), {.tokens = 512, .dtype = dtype});
      const auto V = static_cast<std::ptrdiff_t>(model.config().vocabulary);
      EXPECT_LE(relative_error(row, std::vector<float>(fresh.end() - V, fresh.end())),
                dtype == DType::f32 ? 1e-5 : 2e-3)
          << t;
      EXPECT_GE(std::ssize(kept), std::min<std::int64_t>(t + 1, 64 + 100));
    }
  }
}

TEST(ModelCache, AStreamTakesBoundedRoom) {
  Transformer model = GoldenModel("qwen3").load();
  ModelCache cache(model.config(), {.tokens = 64 + 128 + 64 + 64, .stream = 128, .sinks = 1});
  const std::int64_t sequence = cache.add();
  const std::vector<Token> tokens = golden_tokens(model, 60);
  for (int n = 0; n < 200; ++n) {
    const Continuation part[] = {{sequence, 60}};
    ASSERT_NO_THROW(model.forward(tokens, part, cache)) << n;
  }
  EXPECT_EQ(cache.length(sequence), 200 * 60);
  EXPECT_FALSE(cache.can_cut(sequence, 100));
}

TEST(ModelCache, RefusesWhatMakesNoSense) {
  const ModelConfig gpt2 = GoldenModel("gpt2").load().config(), bert = GoldenModel("bert").load().config();
  EXPECT_NE(error_of([&] { ModelCache(gpt2, {.tokens = 64, .stream = 64}); }).find("rotated positions"),
            std::string::npos);
  EXPECT_NE(error_of([&] { ModelCache(bert, {.tokens = 64}); }).find("not causal"), std::string::npos);
  EXPECT_NE(error_of([&] { ModelCache(gpt2, {.tokens = 64, .stream = -1}); }).find("stream is -1"), std::string::npos);
}

}  // namespace
}  // namespace attend::llm::test
