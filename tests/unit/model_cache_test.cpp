// What windows and streams forget: a window never a bit that counts, a stream what it says.
#include "llm/cache/model_cache.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "attend/error.hpp"
#include "attend/paged_kv_cache.hpp"
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
  // 512 tokens are forgotten, and the token after a cut at 611 sees those from 512 on.
  EXPECT_TRUE(cache.can_cut(sequence, 611));
  EXPECT_FALSE(cache.can_cut(sequence, 610));
  const std::vector<float> all = run_alone(model, tokens, 800, {.tokens = 1024});
  for (const std::int64_t length : {700, 611}) {
    const std::int64_t fork = cache.fork(sequence, length);
    const Continuation again[] = {{fork, 800 - length}};
    const std::vector<float> rows =
        run(model, std::span(tokens).subspan(static_cast<std::size_t>(length)), again, cache);
    EXPECT_EQ(rows, std::vector<float>(all.end() - std::ssize(rows), all.end())) << length;
    cache.remove(fork);
  }
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
  EXPECT_NE(error_of([&] { ModelCache(gpt2, {.tokens = 64, .sinks = -1}); }).find("sinks -1"), std::string::npos);
  EXPECT_NO_THROW(ModelCache(gpt2, {.tokens = 64, .sinks = 0}));
  ModelCache cache(gpt2, {.tokens = 64});
  EXPECT_THROW(cache.slide(0), InvalidArgument);
  EXPECT_THROW(cache.length(0), InvalidArgument);
}

constexpr std::int64_t kWindow = 100;

// Two layers with one head of 8 numbers; a window in those layers that are listed.
ModelConfig two_layers(std::int64_t window, std::vector<std::int64_t> windowed) {
  ModelConfig config;
  config.layers = 2, config.heads = 2, config.kv_heads = 1, config.head_dim = 8;
  config.window = window, config.windowed = std::move(windowed);
  return config;
}

void append(ModelCache& cache, std::int64_t sequence, std::int64_t count) {
  const std::vector<float> zeros(static_cast<std::size_t>(count * 8));
  const View rows = view_of(zeros.data(), {1, 1, count, 8});
  for (std::int64_t n = 0; n < 2; ++n) cache.layer(n).append(sequence, rows, rows);
}

// The next token sees itself and the 99 before it, so 512 tokens are of no use from a length of 611 on.
TEST(ModelCache, AWindowForgetsAtItsExactLength) {
  for (const std::int64_t windowed : {0, 1}) {
    ModelCache cache(two_layers(kWindow, {windowed}), {.tokens = 2048});
    const PagedKvCache &narrow = cache.layer(windowed), &full = cache.layer(1 - windowed);
    const std::int64_t sequence = cache.add();
    append(cache, sequence, 610);
    EXPECT_FALSE(cache.slide(sequence));
    EXPECT_EQ(narrow.length(sequence), 610);
    append(cache, sequence, 1);
    EXPECT_FALSE(cache.slide(sequence));  // a window has no sinks to rotate
    EXPECT_EQ(narrow.length(sequence), 611 - 512);
    EXPECT_EQ(full.length(sequence), 611);
    EXPECT_EQ(cache.length(sequence), 611);
    EXPECT_EQ(narrow.free_pages(), 32 - 2);
    EXPECT_EQ(cache.free_pages(), 32 - 10);  // of the layer that has the fewest

    append(cache, sequence, 50);
    EXPECT_FALSE(cache.can_cut(sequence, 610));
    EXPECT_THROW(cache.fork(sequence, 610), InvalidArgument);
    EXPECT_THROW(cache.truncate(sequence, 610), InvalidArgument);
    EXPECT_EQ(cache.length(sequence), 661);
    EXPECT_TRUE(cache.can_cut(sequence, 611));
    const std::int64_t fork = cache.fork(sequence, 611);
    EXPECT_EQ(cache.length(fork), 611);
    EXPECT_EQ(narrow.length(fork), 611 - 512);
    EXPECT_FALSE(cache.can_cut(fork, 610));  // it knows what the other had forgotten
    cache.truncate(sequence, 611);
    EXPECT_EQ(cache.length(sequence), 611);
    EXPECT_EQ(full.length(sequence), 611);
  }
}

// At the shortest cut that is possible the window still sees all it should.
TEST(ModelCache, TheShortestCutOfAWindowChangesNoBit) {
  Transformer model = with("mistral", "sliding_window", "100");
  const std::vector<Token> tokens = golden_tokens(model, 700);
  ModelCache cache(model.config(), {.tokens = 2048});
  const std::int64_t sequence = cache.add();
  const Continuation all[] = {{sequence, 699}}, one[] = {{sequence, 1}};
  model.forward(std::span(tokens).first(699), all, cache);
  model.forward(std::span(tokens).last(1), one, cache);
  std::int64_t shortest = 700;
  while (cache.can_cut(sequence, shortest - 1)) --shortest;
  EXPECT_EQ(shortest, 512 + 99);
  const Continuation rest[] = {{cache.fork(sequence, shortest), 700 - shortest}};
  const std::vector<float> rows =
      run(model, std::span(tokens).last(static_cast<std::size_t>(700 - shortest)), rest, cache);
  const std::vector<float> whole = run_alone(model, tokens, 700, {.tokens = 1024});
  EXPECT_EQ(rows, std::vector<float>(whole.end() - std::ssize(rows), whole.end()));
}

// The last 100 tokens and the page of sinks stay: 64 others are forgotten from a length of 64 + 99 + 64 on.
TEST(ModelCache, AStreamForgetsAtItsExactLength) {
  for (const std::int64_t sinks : {0, 4, 64, 65}) {
    const std::int64_t kept_sinks = sinks == 0 ? 0 : sinks == 65 ? 128 : 64;
    // The window of the model counts for nothing in a stream.
    ModelCache cache(two_layers(20, {}), {.tokens = 2048, .stream = 100, .sinks = sinks});
    EXPECT_EQ(cache.sink_tokens(), kept_sinks);
    const std::int64_t sequence = cache.add(), length = kept_sinks + 99 + 64;
    EXPECT_EQ(std::ssize(cache.sinks_of(sequence)), 2 * 2 * kept_sinks * 8);
    append(cache, sequence, length - 1);
    EXPECT_FALSE(cache.slide(sequence));
    EXPECT_EQ(cache.forgotten(sequence), 0);
    EXPECT_TRUE(cache.can_cut(sequence, 1));
    append(cache, sequence, 1);
    EXPECT_EQ(cache.slide(sequence), sinks > 0);
    EXPECT_FALSE(cache.slide(sequence));  // nothing more to forget
    EXPECT_EQ(cache.forgotten(sequence), 64);
    for (std::int64_t n = 0; n < 2; ++n) EXPECT_EQ(cache.layer(n).length(sequence), length - 64);
    EXPECT_EQ(cache.length(sequence), length);
    EXPECT_TRUE(cache.can_cut(sequence, length));
    EXPECT_FALSE(cache.can_cut(sequence, length - 1));  // the middle is gone
  }
}

TEST(ModelCache, AForkHasTheSinksAndAnAddedSequenceHasNothing) {
  ModelCache cache(two_layers(0, {}), {.tokens = 2048, .stream = 64});
  const std::int64_t first = cache.add();
  cache.sinks_of(first).back() = 7;
  append(cache, first, 300);
  EXPECT_TRUE(cache.slide(first));
  const std::int64_t fork = cache.fork(first, 300);
  EXPECT_EQ(cache.sinks_of(fork), cache.sinks_of(first));
  EXPECT_EQ(cache.forgotten(fork), cache.forgotten(first));
  cache.remove(first);
  EXPECT_THROW(cache.length(first), InvalidArgument);
  EXPECT_EQ(cache.add(), first);  // the number is used again, and nothing else
  EXPECT_EQ(cache.length(first), 0);
  EXPECT_EQ(cache.forgotten(first), 0);
  EXPECT_EQ(cache.sinks_of(first), std::vector<float>(2 * 2 * 64 * 8));
  EXPECT_EQ(cache.length(fork), 300);
}

TEST(ModelCache, TheShortestStreamHasSinks) {
  ModelCache cache(two_layers(0, {}), {.tokens = 640, .stream = 1, .sinks = 1});
  const std::int64_t sequence = cache.add();
  EXPECT_EQ(std::ssize(cache.sinks_of(sequence)), 2 * 2 * 64 * 8);
  append(cache, sequence, 128);
  EXPECT_TRUE(cache.slide(sequence));
  EXPECT_EQ(cache.forgotten(sequence), 64);
}

// A layer that has forgotten a page holds it for no one, while in the other it is still shared, and has to be copied.
TEST(ModelCache, PagesToAppendAreThoseOfTheLayerThatTakesTheMost) {
  for (const std::int64_t windowed : {0, 1}) {
    ModelCache cache(two_layers(1, {windowed}), {.tokens = 2048});
    const std::int64_t first = cache.add();
    append(cache, first, 512);
    const std::int64_t fork = cache.fork(first, 512);
    cache.slide(first);
    EXPECT_EQ(cache.layer(windowed).length(first), 0);
    cache.truncate(fork, 500);
    EXPECT_EQ(cache.layer(windowed).pages_to_append(fork, 1), 0);
    EXPECT_EQ(cache.layer(1 - windowed).pages_to_append(fork, 1), 1);
    EXPECT_EQ(cache.pages_to_append(fork, 1), 1);
  }
}

TEST(ModelCache, RoomIsThatOfWholePagesInEveryLayer) {
  for (const auto& [tokens, pages] : {std::pair{1, 1}, {64, 1}, {65, 2}, {640, 10}}) {
    const CacheOptions options{.tokens = tokens, .dtype = DType::f16};
    const ModelConfig config = two_layers(0, {});
    const ModelCache cache(config, options);
    const PagedKvCache layer({DType::f16, 1, 8, 8, pages});
    EXPECT_EQ(cache.free_pages(), pages);
    EXPECT_EQ(cache.bytes(), 2 * layer.bytes());
    EXPECT_EQ(cache.bytes_per_token(), 2 * layer.bytes_per_token());
    EXPECT_EQ(ModelCache::bytes_for(config, options), cache.bytes());
  }
}

}  // namespace
}  // namespace attend::llm::test
