// Score rules without the function that the inputs' dtype needs: refused before the work begins.
#include <gtest/gtest.h>

#include <string>

#include "attend/attend.hpp"
#include "unit/error_of.hpp"
#include "unit/op_testing.hpp"

namespace attend {
namespace {

using test::error_of;
using test::ops::random_tensor;

// A rule that lacks the function of the inputs' dtype, and one that has a gradient alone.
TEST(ScoreRules, ForAnotherDtypeAreRefused) {
  const Tensor x = random_tensor(DType::f32, {1, 1, 3, 8}, 1);
  const Tensor wide = random_tensor(DType::f64, {1, 1, 3, 8}, 1);
  AttentionOptions narrow_only, wide_only, gradient_only;
  narrow_only.rule.forward_f32 = [](auto) {};
  wide_only.rule.forward_f64 = [](auto) {};
  gradient_only.rule.backward_f32 = [](auto, auto) {};
  const auto refusal = [](const char* inputs, const char* suffix) {
    return std::string("attention: the score rule has no function for ") + inputs +
           " inputs; make the rule of generic callables, ScoreRule([](auto tile) {...}), or set forward_" + suffix;
  };
  EXPECT_EQ(error_of([&] { attention(wide, wide, wide, narrow_only); }), refusal("f64", "f64"));
  EXPECT_EQ(error_of([&] { attention(x, x, x, wide_only); }), refusal("f32", "f32"));
  EXPECT_EQ(error_of([&] { attention(x, x, x, gradient_only); }), refusal("f32", "f32"));
  const Tensor half = random_tensor(DType::bf16, {1, 1, 3, 8}, 1);
  EXPECT_EQ(error_of([&] { attention(half, half, half, wide_only); }), refusal("bf16", "f32"));
  EXPECT_EQ(error_of([&] { attention(x, x, x, narrow_only); }), "");
  EXPECT_EQ(error_of([&] { attention(wide, wide, wide, wide_only); }), "");
  const AttentionResult r = attention(x, x, x, narrow_only, {.lse = true});
  EXPECT_EQ(error_of([&] { attention_backward(r.out, x, x, x, r.out, r.lse, narrow_only); }),
            "attention_backward: the score rule has no gradient; give ScoreRule a backward callable");
}

// What a rule throws comes out of the call, with any number of threads.
TEST(ScoreRules, MayThrow) {
  const Tensor x = random_tensor(DType::f32, {2, 4, 70, 8}, 1);
  const AttentionOptions options{.rule = ScoreRule([](auto) { throw std::runtime_error("no score"); })};
  EXPECT_THROW(attention(x, x, x, options), std::runtime_error);
  EXPECT_EQ(error_of([&] { attention(x, x, x); }), "");
}

}  // namespace
}  // namespace attend
