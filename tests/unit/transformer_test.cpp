// The forward pass: Transformers' rows for every family, and the same bits however the work is cut, shared or threaded.
#include "llm/model/transformer.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "attend/add.hpp"
#include "attend/error.hpp"
#include "attend/runtime.hpp"
#include "error_of.hpp"
#include "golden_models.hpp"

namespace attend::llm::test {
namespace {

using attend::test::error_of;

constexpr double kBound = 1e-4;
const char* const kDecoders[] = {
    "llama",           "llama3",        "yarn",  "linear",    "mistral",       "minimind2",
    "llama_bias",      "qwen2",         "qwen3", "minimind3", "qwen3_moe",     "qwen3_moe_raw",
    "qwen3_moe_dense", "minimind3_moe", "gpt2",  "minimind1", "minimind1_moe", "minimind2_moe"};

class GoldenDecoder : public testing::TestWithParam<const char*> {};

TEST_P(GoldenDecoder, HasTheRowsOfTheReference) {
  const GoldenModel golden(GetParam());
  Transformer model = golden.load();
  EXPECT_LE(relative_error(run_alone(model, golden_tokens(model), 24), golden.expected()), kBound);
}

TEST_P(GoldenDecoder, HasTheSameBitsInPieces) {
  Transformer model = GoldenModel(GetParam()).load();
  const std::vector<Token> tokens = golden_tokens(model, 64);
  const std::vector<float> whole = run_alone(model, tokens, 64);
  for (const std::int64_t chunk : {1, 5, 7, 33}) EXPECT_EQ(run_alone(model, tokens, chunk), whole) << chunk;
}

TEST_P(GoldenDecoder, HasTheSameBitsBesideOthers) {
  Transformer model = GoldenModel(GetParam()).load();
  const std::vector<Token> sequences[] = {golden_tokens(model, 24), golden_tokens(model, 9, 40),
                                          golden_tokens(model, 17, 3), golden_tokens(model, 24, 90)};
  ModelCache cache(model.config(), {.tokens = 4 * 64});
  std::vector<std::vector<float>> rows(4);
  std::int64_t numbers[4];
  for (std::int64_t& number : numbers) number = cache.add();
  for (std::int64_t at = 0; at < 24; at += 4) {  // they leave at different times
    std::vector<Token> tokens;
    std::vector<Continuation> parts;
    std::vector<std::size_t> owners;
    for (std::size_t s = 0; s < 4; ++s) {
      const std::int64_t count = std::min<std::int64_t>(4, std::ssize(sequences[s]) - at);
      if (count <= 0) continue;
      tokens.insert(tokens.end(), sequences[s].begin() + at, sequences[s].begin() + at + count);
      parts.push_back({numbers[s], count});
      owners.insert(owners.end(), static_cast<std::size_t>(count), s);
    }
    const std::vector<float> out = run(model, tokens, parts, cache);
    const std::int64_t V = model.config().vocabulary;
    for (std::size_t t = 0; t < owners.size(); ++t)
      rows[owners[t]].insert(rows[owners[t]].end(), out.begin() + static_cast<std::int64_t>(t) * V,
                             out.begin() + static_cast<std::int64_t>(t + 1) * V);
  }
  for (std::size_t s = 0; s < 4; ++s) EXPECT_EQ(rows[s], run_alone(model, sequences[s], 24)) << s;
}

TEST_P(GoldenDecoder, HasTheSameBitsOnAnyNumberOfThreads) {
  Transformer model = GoldenModel(GetParam()).load();
  const std::vector<Token> tokens = golden_tokens(model, 64);
  const int before = threads();
  set_threads(1);
  const std::vector<float> one = run_alone(model, tokens, 40);
  for (const int count : {2, 3}) {
    set_threads(count);
    EXPECT_EQ(run_alone(model, tokens, 40), one) << count;
  }
  set_threads(before);
}

TEST_P(GoldenDecoder, ContinuesAForkWithTheSameBits) {
  Transformer model = GoldenModel(GetParam()).load();
  const std::int64_t V = model.config().vocabulary;
  const std::vector<Token> tokens = golden_tokens(model, 24);
  const std::vector<float> whole = run_alone(model, tokens, 24);
  ModelCache cache(model.config(), {.tokens = 3 * 64});
  const Continuation first[] = {{cache.add(), 20}};
  run(model, std::span(tokens).first(20), first, cache);
  const Continuation rest[] = {{cache.fork(first[0].sequence, 13), 11}};
  const std::vector<float> behind(whole.begin() + 13 * V, whole.end());
  EXPECT_EQ(run(model, std::span(tokens).subspan(13), rest, cache), behind);
  // The one it was forked from is as it was.
  const Continuation more[] = {{first[0].sequence, 4}};
  EXPECT_EQ(run(model, std::span(tokens).subspan(20), more, cache),
            std::vector<float>(whole.begin() + 20 * V, whole.end()));
  // What is forgotten can be read again.
  cache.truncate(first[0].sequence, 5);
  const Continuation again[] = {{first[0].sequence, 19}};
  EXPECT_EQ(run(model, std::span(tokens).subspan(5), again, cache),
            std::vector<float>(whole.begin() + 5 * V, whole.end()));
}

INSTANTIATE_TEST_SUITE_P(Transformer, GoldenDecoder, testing::ValuesIn(kDecoders),
                         [](const auto& test) { return std::string(test.param); });

TEST(Transformer, LongSequencesHaveTheSameBitsAcrossPages) {
  for (const char* name : {"llama", "mistral", "qwen3_moe"}) {
    Transformer model = GoldenModel(name).load();
    const std::int64_t V = model.config().vocabulary;
    const std::vector<Token> tokens = golden_tokens(model, 150);
    const std::vector<float> whole = run_alone(model, tokens, 150);
    for (const std::int64_t chunk : {1, 7, 64, 100}) EXPECT_EQ(run_alone(model, tokens, chunk), whole) << name;
    for (const std::int64_t shared : {63, 64, 65, 128}) {
      ModelCache cache(model.config(), {.tokens = 8 * 64});
      const Continuation first[] = {{cache.add(), 140}};
      run(model, std::span(tokens).first(140), first, cache);
      const std::int64_t fork = cache.fork(first[0].sequence, shared);
      cache.remove(first[0].sequence);
      const Continuation rest[] = {{fork, 150 - shared}};
      EXPECT_EQ(run(model, std::span(tokens).subspan(static_cast<std::size_t>(shared)), rest, cache),
                std::vector<float>(whole.begin() + shared * V, whole.end()))
          << name << " " << shared;
    }
  }
}

TEST(Transformer, NarrowCachesAreCloseAndKeepTheirBits) {
  const GoldenModel golden("llama");
  Transformer model = golden.load();
  const std::vector<Token> tokens = golden_tokens(model);
  for (const auto& [options, bound] : {std::pair{CacheOptions{256, DType::f16, false}, 5e-3},
                                       {CacheOptions{256, DType::bf16, false}, 4e-2},
                                       {CacheOptions{256, DType::f16, true}, 4e-2}}) {
    const std::vector<float> rows = run_alone(model, tokens, 24, options);
    const double error = relative_error(rows, golden.expected());
    EXPECT_LE(error, bound);
    EXPECT_GT(error, 0.0);
    EXPECT_EQ(run_alone(model, tokens, 5, options), rows) << bound;
  }
}

TEST(Transformer, OutOfPagesChangesNothing) {
  Transformer model = GoldenModel("llama").load();
  const std::vector<Token> tokens = golden_tokens(model, 64);
  const std::vector<float> whole = run_alone(model, tokens, 64);
  const std::int64_t V = model.config().vocabulary;
  ModelCache cache(model.config(), {.tokens = 64});
  const std::int64_t a = cache.add(), b = cache.add();
  const Continuation first[] = {{a, 60}};
  run(model, std::span(tokens).first(60), first, cache);
  const Continuation both[] = {{a, 1}, {b, 3}};
  const Token four[] = {1, 2, 3, 4};
  EXPECT_THROW(run(model, four, both, cache), OutOfPages);
  const Continuation too_many[] = {{a, 5}};
  EXPECT_THROW(run(model, std::span(tokens).first(5), too_many, cache), OutOfPages);
  EXPECT_EQ(cache.length(a), 60);
  EXPECT_EQ(cache.length(b), 0);
  EXPECT_EQ(cache.free_pages(), 0);
  const Continuation rest[] = {{a, 4}};
  EXPECT_EQ(run(model, std::span(tokens).subspan(60), rest, cache),
            std::vector<float>(whole.begin() + 60 * V, whole.end()));
  cache.remove(a);
  EXPECT_EQ(cache.free_pages(), 1);
  const Continuation other[] = {{b, 64}};
  EXPECT_EQ(run(model, tokens, other, cache), whole);
}

TEST(Transformer, RefusesBadCallsAndGoesOn) {
  for (const char* name : {"llama", "mistral"}) {
    Transformer model = GoldenModel(name).load();
    ModelCache cache(model.config(), {.tokens = 128});
    const std::int64_t a = cache.add();
    const auto error = [&](std::vector<Token> tokens, std::vector<Continuation> parts) {
      return error_of([&] { model.forward(tokens, parts, cache); });
    };
    EXPECT_EQ(error({3, 64}, {{a, 2}}), "model: a token is 64, expected 0 to 63");
    EXPECT_EQ(error({-1}, {{a, 1}}), "model: a token is -1, expected 0 to 63");
    EXPECT_EQ(error({1, 2}, {{a, 1}}), "model: 2 tokens, but continuations of 1");
    EXPECT_EQ(error({1}, {{a, -1}}), "model: a continuation of -1 tokens");
    EXPECT_NE(error({1}, {{a + 7, 1}}), "");
    EXPECT_EQ(cache.length(a), 0);
    EXPECT_EQ(error({}, {}), "");
    EXPECT_EQ(error({}, {{a, 0}}), "");
    const std::vector<Token> tokens = golden_tokens(model);
    const Continuation part[] = {{a, 24}};
    EXPECT_EQ(run(model, tokens, part, cache), run_alone(model, tokens, 24));
  }
}

TEST(Transformer, LearntPositionsEnd) {
  Transformer model = GoldenModel("gpt2").load();
  ModelCache cache(model.config(), {.tokens = 128});
  const Continuation all[] = {{cache.add(), 64}}, one[] = {{all[0].sequence, 1}};
  model.forward(golden_tokens(model, 64), all, cache);
  const Token token[] = {1};
  EXPECT_EQ(error_of([&] { model.forward(token, one, cache); }),
            "model: position 64 lies behind the 64 positions the model has learnt");
  EXPECT_EQ(cache.length(all[0].sequence), 64);
}

TEST(Transformer, EncodesSequencesApart) {
  const GoldenModel golden("bert");
  Transformer model = golden.load();
  const auto encode = [&](const std::vector<Token>& tokens, std::vector<std::int64_t> lengths) {
    const auto* rows = static_cast<const float*>(model.encode(tokens, lengths).data);
    return std::vector<float>(rows, rows + std::ssize(tokens) * model.config().hidden);
  };
  const std::vector<Token> a = golden_tokens(model), b = golden_tokens(model, 11, 50), c = golden_tokens(model, 1, 7);
  std::vector<Token> tokens = a;
  tokens.insert(tokens.end(), b.begin(), b.end());
  tokens.insert(tokens.end(), c.begin(), c.end());
  std::vector<float> rows = encode(a, {24});
  EXPECT_LE(relative_error(rows, golden.expected()), kBound);
  for (const auto* other : {&b, &c}) {
    const std::vector<float> more = encode(*other, {std::ssize(*other)});
    rows.insert(rows.end(), more.begin(), more.end());
  }
  EXPECT_EQ(encode(tokens, {24, 11, 1}), rows);
  EXPECT_EQ(encode(tokens, {24, 0, 11, 1}), rows);
  ModelConfig causal = model.config();
  causal.causal = true;
  ModelCache cache(causal, {.tokens = 64});
  EXPECT_EQ(error_of([&] { model.forward({}, {}, cache); }), "model: bert is not causal: encode() runs it");
  EXPECT_EQ(error_of([&] { ModelCache none(model.config(), {.tokens = 64}); }),
            "cache: a model that is not causal has none");
  EXPECT_EQ(error_of([&] { encode(a, {23}); }), "model: 24 tokens, but lengths that sum to 23");
  EXPECT_EQ(error_of([&] { encode(a, {25, -1}); }), "model: a sequence of -1 tokens");
  EXPECT_NE(error_of([&] { encode(golden_tokens(model, 65), {65}); }), "");
}

TEST(Transformer, EmbeddingsAreMeansOfLengthOne) {
  const GoldenModel golden("bert");
  Transformer model = golden.load();
  const std::int64_t H = model.config().hidden;
  std::vector<Token> tokens = golden_tokens(model);
  tokens.push_back(5);
  const std::int64_t lengths[] = {24, 0, 1};
  const std::vector<float> embeddings = model.embed(tokens, lengths);
  ASSERT_EQ(std::ssize(embeddings), 3 * H);
  std::vector<double> mean(static_cast<std::size_t>(H));
  for (std::size_t i = 0; i < golden.expected().size(); ++i)
    mean[i % mean.size()] += static_cast<double>(golden.expected()[i]) / 24;
  double squares = 0;
  for (const double x : mean) squares += x * x;
  for (std::size_t j = 0; j < mean.size(); ++j) {
    EXPECT_NEAR(static_cast<double>(embeddings[j]), mean[j] / std::sqrt(squares), 1e-5);
    EXPECT_EQ(embeddings[mean.size() + j], 0.0F);
  }
}

// The same weights split over files and in a GGUF file are in model_files_test.cpp.
TEST(Transformer, HalfWeightsAreThoseRoundedToHalf) {
  for (const bool bf16 : {false, true}) {
    const GoldenModel golden("qwen2");
    std::vector<std::vector<std::byte>> kept;
    const auto rewrite = [&](bool half) {
      golden.change_weights([&](std::vector<io::StoredTensor>& tensors) {
        for (io::StoredTensor& t : tensors) {
          std::vector<float> x(t.data.size() / 4);
          std::memcpy(x.data(), t.data.data(), t.data.size());
          std::vector<std::uint16_t> halves(x.size());
          const Shape shape{1, 1, 1, std::ssize(x)};
          const MutableView half_view{bf16 ? DType::bf16 : DType::f16, halves.data(), shape, contiguous_strides(shape)};
          convert(view_of(x.data(), shape), half_view);
          convert(half_view, view_of(x.data(), shape));
          auto& bytes = kept.emplace_back(half ? 2 * x.size() : 4 * x.size());
          std::memcpy(bytes.data(), half ? static_cast<void*>(halves.data()) : x.data(), bytes.size());
          t.data = bytes;
          if (half) t.dtype = bf16 ? "BF16" : "F16";
        }
      });
      Transformer model = golden.load();
      return run_alone(model, golden_tokens(model), 24);
    };
    const std::vector<float> rounded = rewrite(false), half = rewrite(true);
    EXPECT_LE(relative_error(half, rounded), 2e-6);
    EXPECT_LE(relative_error(half, golden.expected()), bf16 ? 6e-2 : 6e-3);
  }
}

}  // namespace
}  // namespace attend::llm::test
