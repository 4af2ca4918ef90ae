// GGUF to GGUF: every readable type becomes f32, f16, bf16 and q8_0; everything but the matrices stays as it is.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "golden_models.hpp"
#include "llm/model/export.hpp"
#include "llm/model/stored_numbers.hpp"
#include "quantised_model.hpp"

namespace attend::llm::test {
namespace {

using attend::test::TestWeight;

constexpr WeightFormat kTargets[] = {WeightFormat::f32, WeightFormat::f16, WeightFormat::bf16, WeightFormat::q8_0};

// Half a step of the format; q8_0 has 127 steps of the largest number of 32, and a scale of 11 bits, fewer below 2^-14.
double bound_of(WeightFormat format, double value, double largest) {
  if (format == WeightFormat::q8_0) return largest * (0.5 / 127 + std::ldexp(1.0, -11)) + 127 * std::ldexp(1.0, -25);
  const int bits = format == WeightFormat::f32 ? 24 : format == WeightFormat::f16 ? 11 : 8;
  return std::ldexp(std::abs(value), -bits) + 1e-7;
}

void expect_numbers(const io::GgufTensor& t, const TestWeight& weight, WeightFormat to) {
  ASSERT_EQ(format_of_ggml(t.type), to) << t.name;
  if (to == weight.format) {
    EXPECT_TRUE(std::ranges::equal(t.data, weight.bytes)) << t.name << ": the same format is copied";
    return;
  }
  const std::vector<float> values = floats_of({to, t.data});
  ASSERT_EQ(values.size(), weight.numbers.size());
  const auto exact = [&](std::size_t i) { return static_cast<double>(weight.numbers[i].value()); };
  for (std::size_t i = 0; i < values.size(); ++i) {
    double largest = 0;
    for (std::size_t n = i / 32 * 32; n < i / 32 * 32 + 32; ++n) largest = std::max(largest, std::abs(exact(n)));
    ASSERT_NEAR(values[i], exact(i), bound_of(to, exact(i), largest)) << t.name << " " << i;
  }
}

class GgufConvert : public testing::TestWithParam<WeightFormat> {};

TEST_P(GgufConvert, ToEveryTypeThatIsWritten) {
  const QuantisedModel model(GetParam());
  const io::Gguf from(model.path());
  for (const WeightFormat to : kTargets) {
    const fs::path out = model.other(std::string(name(to)) + ".gguf");
    export_gguf(ModelFiles(model.path()), out, {.format = to});
    const io::Gguf written(out);
    ASSERT_EQ(written.tensors().size(), from.tensors().size());
    std::size_t matrix = 0;
    for (std::size_t n = 0; n < written.tensors().size(); ++n) {
      const io::GgufTensor &a = from.tensors()[n], &b = written.tensors()[n];
      EXPECT_EQ(a.name, b.name);
      EXPECT_EQ(a.shape, b.shape);
      if (b.shape.size() >= 2) {
        expect_numbers(b, model.weights[matrix++], to);
      } else {
        EXPECT_EQ(a.type, b.type);
        EXPECT_TRUE(std::ranges::equal(a.data, b.data)) << a.name;
      }
    }
    EXPECT_EQ(written.values().size(), from.values().size());
    for (std::size_t n = 0; n < from.values().size(); ++n) {
      const std::string_view key = from.values()[n].first;
      if (key == "general.file_type") continue;
      const auto same = std::ranges::find(written.values(), key, &std::pair<std::string_view, io::GgufValue>::first);
      ASSERT_NE(same, written.values().end()) << key;
      const auto place = static_cast<std::size_t>(same - written.values().begin());
      EXPECT_TRUE(std::ranges::equal(written.stored_value(place), from.stored_value(n))) << key;
    }
    Transformer runs{ModelFiles(out)};
    EXPECT_TRUE(std::isfinite(run_alone(runs, std::vector<Token>{1, 2, 3}, 3)[0]));
  }
}

INSTANTIATE_TEST_SUITE_P(All, GgufConvert, testing::ValuesIn(attend::test::kWeightFormats),
                         [](const auto& format) { return std::string(name(format.param)); });

TEST(GgufConvert, NeedsATypeAndAnotherName) {
  const QuantisedModel model(WeightFormat::q4_k);
  const ModelFiles files(model.path());
  expect_in(refusal_of([&] { export_gguf(files, model.other("y.gguf")); }),
            "is GGUF already; ask for a type to convert its weights: --type f32, f16, bf16 or q8_0");
  expect_in(refusal_of([&] { export_gguf(files, model.path(), {.format = WeightFormat::f16}); }), "is there already");
  export_gguf(files, model.path(), {.format = WeightFormat::f16, .replace = true});
  EXPECT_EQ(ModelFiles(model.path()).find("token_embd.weight")->dtype, "F16");
}

TEST(GgufConvert, NumbersThatWouldBecomeInfiniteAreRefused) {
  const float large[] = {1, 65519, 65520, 2};
  const auto put = [&](std::size_t count, WeightFormat to) {
    return refusal_of([&] {
      put_numbers({WeightFormat::f32, std::as_bytes(std::span(large).first(count))}, to, {"m.gguf", "t.weight"},
                  [](std::span<const std::byte>) {});
    });
  };
  EXPECT_EQ(put(2, WeightFormat::f16), "");
  expect_in(put(4, WeightFormat::f16), "m.gguf: the tensor \"t.weight\" holds 65520");
  expect_in(put(4, WeightFormat::f16), "too large for f16");
  EXPECT_EQ(put(4, WeightFormat::bf16), "");
  EXPECT_EQ(put(4, WeightFormat::f32), "");
}

}  // namespace
}  // namespace attend::llm::test
