// Compute::f32: quantised weights are dequantised on loading, and what is computed is what the converted file gives.
#include "attend/llm/compute.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "attend/error.hpp"
#include "attend/llm/look.hpp"
#include "attend/llm/model.hpp"
#include "error_of.hpp"
#include "llm/runtime/open_model.hpp"
#include "quantised_model.hpp"

namespace attend::llm::test {
namespace {

using attend::test::error_of;

const std::vector<Token> kTokens = {1, 5, 9, 2, 33, 7, 1, 5, 9, 60, 3, 17};

std::vector<float> logits_of(const fs::path& path, Compute compute) {
  return Model::open(path.string(), {.compute = compute}).logits(kTokens);
}

// The weights of all heads, and the LSE of all rows: with the large scores of some formats a row has one weight, 1.
std::vector<float> attention_of(const fs::path& path, Compute compute) {
  Model model = Model::open(path.string(), {.compute = compute});
  LookSession session(model);
  const Look look = session.run(kTokens, {});
  std::vector<float> all;
  for (std::int64_t head = 0; head < look.heads(); ++head) {
    const std::vector<float> weights = look.weights(0, head);
    all.insert(all.end(), weights.begin(), weights.end());
  }
  const auto* lse = static_cast<const float*>(look.lse(0).data);
  all.insert(all.end(), lse, lse + look.heads() * look.length());
  return all;
}

class ComputeTest : public testing::TestWithParam<WeightFormat> {};

TEST_P(ComputeTest, F32IsTheConvertedFileBitForBit) {
  const QuantisedModel model(GetParam());
  const fs::path converted = model.other("f32.gguf");
  export_gguf(ModelFiles(model.path()), converted, {.format = WeightFormat::f32});
  const std::vector<float> expected = logits_of(converted, Compute::file);
  ASSERT_TRUE(std::isfinite(expected[0]));
  EXPECT_EQ(logits_of(model.path(), Compute::f32), expected);
  EXPECT_EQ(attention_of(model.path(), Compute::f32), attention_of(converted, Compute::file));
  if (is_plain(GetParam())) return;
  EXPECT_NE(logits_of(model.path(), Compute::file), expected);
  EXPECT_NE(attention_of(model.path(), Compute::file), attention_of(converted, Compute::file));
}

TEST_P(ComputeTest, MemoryIsThatOfTheWeightsAsLoaded) {
  const QuantisedModel model(GetParam());
  const std::string path = model.path().string();
  const bool quantised = !is_plain(GetParam());
  const ModelFiles files(path, Compute::f32);
  const auto loaded = static_cast<double>(Transformer(files).bytes());
  EXPECT_NEAR(static_cast<double>(weights_memory(files)) / loaded, 1, 0.02);
  const std::int64_t f32 = plan_memory(path, {.compute = Compute::f32}).weights;
  EXPECT_EQ(f32, weights_memory(files));
  EXPECT_EQ(f32 > plan_memory(path).weights, quantised);
  Model opened = Model::open(path, {.compute = Compute::f32});
  EXPECT_EQ(opened.memory().weights, f32);
  EXPECT_EQ(opened.info().compute, Compute::f32);
  EXPECT_EQ(opened.info().quantised, quantised);
  EXPECT_FALSE(opened.info().rounds_rows());
  EXPECT_EQ(model_info(path).rounds_rows(), quantised);
  std::string advice;
  try {
    check_memory({.weights = INT64_MAX / 2}, files);
  } catch (const std::runtime_error& error) {
    advice = error.what();
  }
  EXPECT_NE(advice.find("this needs"), std::string::npos) << advice;
  EXPECT_EQ(advice.find("compute = file") != std::string::npos, quantised) << advice;
}

TEST_P(ComputeTest, TheCacheIsF32UnlessAnotherIsNamed) {
  const QuantisedModel model(GetParam());
  const ModelFiles files(model.path(), Compute::f32);
  EXPECT_EQ(chosen_format(CacheFormat::automatic, files), CacheFormat::f32);
  EXPECT_EQ(chosen_format(CacheFormat::int8, files), CacheFormat::int8);
}

TEST_P(ComputeTest, DequantisedWeightsHaveTheSameRows) {
  const std::int64_t out = 70, in = 256;
  const attend::test::TestWeight made(GetParam(), out, in, 3);
  const Weight weight(GetParam(), out, in, made.bytes), floats = weight.dequantised();
  EXPECT_EQ(floats.format(), WeightFormat::f32);
  EXPECT_EQ(floats.bytes(), weight_bytes(WeightFormat::f32, out, in));
  std::vector<float> a(in), b(in);
  for (std::int64_t r = 0; r < out; ++r) {
    weight.row(r, a.data()), floats.row(r, b.data());
    EXPECT_EQ(a, b) << r;
  }
}

INSTANTIATE_TEST_SUITE_P(All, ComputeTest, testing::ValuesIn(attend::test::kWeightFormats),
                         [](const auto& format) { return std::string(name(format.param)); });

TEST(ComputeName, IsFileOrF32) {
  for (const Compute compute : {Compute::file, Compute::f32}) EXPECT_EQ(compute_named(name(compute)), compute);
  EXPECT_THROW((void)compute_named("F32"), InvalidArgument);
  const std::string error = error_of([] { (void)compute_named("f16"); });
  for (const char* words : {"compute is 'f16'", "file", "f32"}) EXPECT_NE(error.find(words), error.npos) << error;
  EXPECT_EQ(Weight().dequantised().out(), 0);
}

}  // namespace
}  // namespace attend::llm::test
