// Tests of the C ABI of attention, masks and operations: the bits of the C++ calls, and a status for all that is wrong.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "attend/attend.hpp"
#include "unit/c_abi_tensors.hpp"

namespace attend {
namespace {

using test::drawn;
using test::is_ok;
using test::is_refused;
using test::same_bits;
using test::seen;

constexpr std::int64_t B = 2, H = 4, Hk = 2, M = 5, N = 7, D = 8, E = 6;

using MaskHandle = std::unique_ptr<attend_mask, decltype(&attend_mask_free)>;

MaskHandle hold(attend_mask* mask) {
  return {mask, &attend_mask_free};
}

// q, k, v and results, in C++ and as C sees them.
struct Attention {
  explicit Attention(DType dtype = DType::f32)
      : wide(dtype == DType::f64 ? DType::f64 : DType::f32),
        q(drawn(1, {B, H, M, D}, dtype)),
        k(drawn(2, {B, Hk, N, D}, dtype)),
        v(drawn(3, {B, Hk, N, E}, dtype)),
        out(dtype, {B, H, M, E}),
        lse(wide, {B, H, M, 1}),
        weights(wide, {B, H, M, N}) {}

  attend_status run(const attend_attention_options* options) {
    const attend_tensor cq = seen(q), ck = seen(k), cv = seen(v), cout = seen(out), clse = seen(lse),
                        cweights = seen(weights);
    return attend_attention(&cq, &ck, &cv, &cout, options, &clse, &cweights);
  }

  void expect_equal(const AttentionOptions& options) const {
    const AttentionResult expected = attention(q, k, v, options, {.lse = true, .weights = true});
    EXPECT_TRUE(same_bits(out, expected.out));
    EXPECT_TRUE(same_bits(lse, expected.lse));
    EXPECT_TRUE(same_bits(weights, expected.weights));
  }

  DType wide;
  Tensor q, k, v, out, lse, weights;
};

attend_attention_options fresh_options() {
  attend_attention_options options;
  attend_attention_options_init(&options);
  return options;
}

TEST(CAbiAttention, DefaultsEqualInEveryDtype) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64}) {
    SCOPED_TRACE(name(dtype));
    Attention a(dtype);
    ASSERT_TRUE(is_ok(a.run(nullptr)));
    a.expect_equal({});
  }
}

TEST(CAbiAttention, EveryMaskEqualsItsCppTwin) {
  const std::vector<std::int64_t> two{3, 6}, offsets{1, -2}, queries{0, 2, 5}, keys{0, 4, 7};
  const std::vector<std::uint8_t> bits{1, 0, 0, 1, 1, 1, 0, 1, 1};  // blocks of 2 x 3: 3 rows, 3 columns
  std::vector<std::uint8_t> dense_bits(M * N);
  for (std::size_t i = 0; i < dense_bits.size(); ++i) dense_bits[i] = i % 3 != 0;
  const std::int64_t dense_shape[4] = {1, 1, M, N}, dense_strides[4] = {0, 0, 1, M};

  struct Twin {
    const char* name;
    std::function<attend_status(attend_mask**)> make;
    Mask mask;
  };
  const std::vector<Twin> twins{
      {"causal", [](auto m) { return attend_mask_causal(ATTEND_FIRST_KEY, m); }, causal(Align::first_key)},
      {"causal, last key", [](auto m) { return attend_mask_causal(ATTEND_LAST_KEY, m); }, causal()},
      {"causal_at", [&](auto m) { return attend_mask_causal_at(offsets.data(), 2, m); }, causal(Diagonal::at(offsets))},
      {"window", [](auto m) { return attend_mask_window(2, 1, ATTEND_LAST_KEY, m); }, window(2, 1)},
      {"window, one side", [](auto m) { return attend_mask_window(1, ATTEND_UNLIMITED, ATTEND_FIRST_KEY, m); },
       window(1, kUnlimited, Align::first_key)},
      {"window_at", [&](auto m) { return attend_mask_window_at(2, 0, offsets.data(), 2, m); },
       window(2, 0, Diagonal::at(offsets))},
      {"padding", [&](auto m) { return attend_mask_padding(two.data(), 2, m); }, padding(two)},
      {"left_padding", [&](auto m) { return attend_mask_left_padding(two.data(), 2, m); }, left_padding(two)},
      {"prefix", [&](auto m) { return attend_mask_prefix(two.data(), 2, ATTEND_FIRST_KEY, m); },
       prefix(two, Align::first_key)},
      {"prefix_at", [&](auto m) { return attend_mask_prefix_at(two.data(), 2, offsets.data(), 2, m); },
       prefix(two, Diagonal::at(offsets))},
      {"segments", [&](auto m) { return attend_mask_segments(queries.data(), nullptr, 3, m); }, segments(queries)},
      {"segments, two", [&](auto m) { return attend_mask_segments(queries.data(), keys.data(), 3, m); },
       segments(queries, keys)},
      {"blocks", [&](auto m) { return attend_mask_blocks(2, 3, 1, 3, 3, bits.data(), m); },
       blocks(2, 3, 1, 3, 3, bits)},
      {"dense", [&](auto m) { return attend_mask_dense(dense_bits.data(), dense_shape, nullptr, m); },
       dense(dense_bits.data(), {1, 1, M, N})},
      {"dense, strides", [&](auto m) { return attend_mask_dense(dense_bits.data(), dense_shape, dense_strides, m); },
       dense(dense_bits.data(), {1, 1, M, N}, {0, 0, 1, M})},
  };
  Attention unmasked;
  ASSERT_TRUE(is_ok(unmasked.run(nullptr)));
  for (const Twin& twin : twins) {
    SCOPED_TRACE(twin.name);
    attend_mask* mask = nullptr;
    ASSERT_TRUE(is_ok(twin.make(&mask)));
    const MaskHandle held = hold(mask);
    attend_attention_options options = fresh_options();
    options.mask = mask;
    Attention a;
    ASSERT_TRUE(is_ok(a.run(&options)));
    a.expect_equal({.mask = twin.mask});
    EXPECT_FALSE(same_bits(a.weights, unmasked.weights));
  }
}

TEST(CAbiAttention, MasksCompose) {
  const std::int64_t lengths[] = {4, 7};
  attend_mask *a = nullptr, *b = nullptr, *both = nullptr;
  ASSERT_TRUE(is_ok(attend_mask_causal(ATTEND_LAST_KEY, &a)));
  ASSERT_TRUE(is_ok(attend_mask_padding(lengths, 2, &b)));
  ASSERT_TRUE(is_ok(attend_mask_and(a, b, &both)));
  const MaskHandle held = hold(both);
  attend_mask_free(a);  // the composition stands alone
  attend_mask_free(b);
  attend_attention_options options = fresh_options();
  options.mask = both;
  Attention run;
  ASSERT_TRUE(is_ok(run.run(&options)));
  run.expect_equal({.mask = causal() & padding({4, 7})});
}

// s -> s * slope + 0.01 * (row - column) for head > 0, through a context.
template <class T>
void edit(void* context, const attend_tile* tile, T* scores, std::int64_t stride) {
  const double slope = *static_cast<const double*>(context);
  if (tile->head == 0) return;
  for (std::int64_t r = 0; r < tile->rows; ++r) {
    for (std::int64_t c = 0; c < tile->cols; ++c) {
      const auto distance = static_cast<double>(tile->first_row + r - tile->first_col - c + tile->batch);
      T& s = scores[r * stride + c];
      s = static_cast<T>(static_cast<double>(s) * slope + 0.01 * distance);
    }
  }
}
template <class T>
void edit_backward(void* context, const attend_tile* tile, const T* scores, std::int64_t scores_stride, T* grad,
                   std::int64_t grad_stride) {
  const double slope = *static_cast<const double*>(context);
  if (tile->head == 0) return;
  for (std::int64_t r = 0; r < tile->rows; ++r) {
    for (std::int64_t c = 0; c < tile->cols; ++c) {
      ASSERT_TRUE(std::isfinite(scores[r * scores_stride + c]));
      grad[r * grad_stride + c] = static_cast<T>(static_cast<double>(grad[r * grad_stride + c]) * slope);
    }
  }
}

ScoreRule cpp_rule(double slope) {
  return ScoreRule(
      [slope](auto tile) {
        double context = slope;
        const attend_tile place{tile.rows, tile.cols, tile.batch, tile.head, tile.first_row, tile.first_col};
        edit(&context, &place, tile.data, tile.row_stride);
      },
      [slope](auto scores, auto grad) {
        double context = slope;
        const attend_tile place{grad.rows, grad.cols, grad.batch, grad.head, grad.first_row, grad.first_col};
        edit_backward(&context, &place, scores.data, scores.row_stride, grad.data, grad.row_stride);
      });
}

// Every score rule alone, as an edit of the C options and of the C++ ones.
struct Rules {
  Tensor bias = drawn(7, {1, H, 1, N}), slopes = drawn(8, {1, H, 1, 1}), sinks = drawn(9, {1, H, 1, 1});
  attend_tensor c_bias = seen(bias), c_slopes = seen(slopes), c_sinks = seen(sinks);
  std::vector<std::int64_t> offsets{2, -1};
  double slope = 0.5;

  using Edit = std::function<void(attend_attention_options&, AttentionOptions&)>;
  std::vector<std::pair<const char*, Edit>> edits{
      {"scale", [](auto& c, auto& cpp) { c.has_scale = 1, c.scale = 0.3, cpp.scale = 0.3; }},
      {"softcap", [](auto& c, auto& cpp) { c.softcap = cpp.softcap = 1.5; }},
      {"bias", [this](auto& c, auto& cpp) { c.bias = &c_bias, cpp.bias = bias; }},
      {"alibi", [this](auto& c, auto& cpp) { c.alibi_slopes = &c_slopes, cpp.alibi_slopes = slopes; }},
      {"alibi, first key",
       [this](auto& c, auto& cpp) {
         c.alibi_slopes = &c_slopes, cpp.alibi_slopes = slopes;
         c.alibi_align = ATTEND_FIRST_KEY, cpp.alibi_diagonal = Align::first_key;
       }},
      {"alibi, offsets",
       [this](auto& c, auto& cpp) {
         c.alibi_slopes = &c_slopes, cpp.alibi_slopes = slopes;
         c.alibi_offsets = offsets.data(), c.alibi_offset_count = 2, cpp.alibi_diagonal = Diagonal::at(offsets);
       }},
      {"sinks", [this](auto& c, auto& cpp) { c.sinks = &c_sinks, cpp.sinks = sinks; }},
      {"dropout",
       [](auto& c, auto& cpp) {
         c.dropout_probability = cpp.dropout.probability = 0.4;
         c.dropout_seed = cpp.dropout.seed = 77;
       }},
      {"rule",
       [this](auto& c, auto& cpp) {
         c.rule = {&slope, &edit<float>, &edit<double>, &edit_backward<float>, &edit_backward<double>};
         cpp.rule = cpp_rule(slope);
       }},
  };
};

TEST(CAbiAttention, EveryScoreRuleEqualsItsCppTwin) {
  Rules rules;
  for (const DType dtype : {DType::f32, DType::f64}) {
    Attention plain(dtype);
    ASSERT_TRUE(is_ok(plain.run(nullptr)));
    for (const auto& [what, edit_options] : rules.edits) {
      SCOPED_TRACE(std::string(what) + " " + name(dtype));
      attend_attention_options options = fresh_options();
      AttentionOptions cpp;
      edit_options(options, cpp);
      Attention a(dtype);
      ASSERT_TRUE(is_ok(a.run(&options)));
      a.expect_equal(cpp);
      EXPECT_FALSE(same_bits(a.out, plain.out));
    }
  }
}

TEST(CAbiAttention, BackwardEqualsItsCppTwin) {
  Rules rules;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    SCOPED_TRACE(name(dtype));
    attend_attention_options options = fresh_options();
    AttentionOptions cpp;
    for (const auto& [what, edit_options] : rules.edits) edit_options(options, cpp);
    Attention a(dtype);
    ASSERT_TRUE(is_ok(a.run(&options)));

    Tensor dout = drawn(4, {B, H, M, E}, dtype);
    Tensor dq(dtype, a.q.shape()), dk(dtype, a.k.shape()), dv(dtype, a.v.shape());
    Tensor dbias(a.wide, rules.bias.shape()), dsinks(a.wide, rules.sinks.shape());
    const attend_tensor cq = seen(a.q), ck = seen(a.k), cv = seen(a.v), cout = seen(a.out), clse = seen(a.lse),
                        cdout = seen(dout), cdq = seen(dq), cdk = seen(dk), cdv = seen(dv), cdbias = seen(dbias),
                        cdsinks = seen(dsinks);
    attend_attention_gradients gradients;
    attend_attention_gradients_init(&gradients);
    gradients.dq = &cdq, gradients.dk = &cdk, gradients.dv = &cdv;
    gradients.dbias = &cdbias, gradients.dsinks = &cdsinks;
    ASSERT_TRUE(is_ok(attend_attention_backward(&cdout, &cq, &ck, &cv, &cout, &clse, &gradients, &options)));

    const AttentionGradientTensors expected = attention_backward(dout, a.q, a.k, a.v, a.out, a.lse, cpp);
    EXPECT_TRUE(same_bits(dq, expected.dq));
    EXPECT_TRUE(same_bits(dk, expected.dk));
    EXPECT_TRUE(same_bits(dv, expected.dv));
    EXPECT_TRUE(same_bits(dbias, expected.dbias));
    EXPECT_TRUE(same_bits(dsinks, expected.dsinks));
  }
}

TEST(CAbiAttention, BadArgumentsAreRefused) {
  Attention a;
  const attend_tensor q = seen(a.q), k = seen(a.k), v = seen(a.v), out = seen(a.out);
  EXPECT_TRUE(is_refused(attend_attention(nullptr, &k, &v, &out, nullptr, nullptr, nullptr), "q is null"));
  EXPECT_TRUE(is_refused(attend_attention(&q, nullptr, &v, &out, nullptr, nullptr, nullptr), "k is null"));
  EXPECT_TRUE(is_refused(attend_attention(&q, &k, nullptr, &out, nullptr, nullptr, nullptr), "v is null"));
  EXPECT_TRUE(is_refused(attend_attention(&q, &k, &v, nullptr, nullptr, nullptr, nullptr), "out is null"));

  attend_tensor bad = q;
  bad.data = nullptr;
  EXPECT_TRUE(is_refused(attend_attention(&bad, &k, &v, &out, nullptr, nullptr, nullptr), "null"));
  for (const std::int32_t dtype : {-1, 4, 77}) {
    bad = q;
    bad.dtype = dtype;
    EXPECT_TRUE(is_refused(attend_attention(&bad, &k, &v, &out, nullptr, nullptr, nullptr), "dtype"));
  }
  bad = q;
  bad.shape[3] = D + 1;
  EXPECT_TRUE(is_refused(attend_attention(&bad, &k, &v, &out, nullptr, nullptr, nullptr), "expected"));

  attend_attention_options options = fresh_options();
  options.struct_size = 0;
  EXPECT_TRUE(is_refused(a.run(&options), "attend_attention_options_init"));
  options = fresh_options();
  options.alibi_align = 2;
  EXPECT_TRUE(is_refused(a.run(&options), "align is 2"));
  options = fresh_options();
  options.alibi_offset_count = 2;
  EXPECT_TRUE(is_refused(a.run(&options), "alibi_offsets is null"));
  options = fresh_options();
  options.dropout_probability = 1.0;
  EXPECT_TRUE(is_refused(a.run(&options), "1"));
}

TEST(CAbiAttention, ARuleMustHaveTheFunctionsOfTheDtype) {
  double slope = 1;
  attend_attention_options options = fresh_options();
  options.rule = {&slope, nullptr, &edit<double>, nullptr, nullptr};
  Attention f32(DType::f32), f64(DType::f64);
  EXPECT_TRUE(is_refused(f32.run(&options), "forward_f32 is null"));
  ASSERT_TRUE(is_ok(f64.run(&options)));
  f64.expect_equal({.rule = cpp_rule(slope)});
  options.rule = {&slope, &edit<float>, nullptr, nullptr, nullptr};
  EXPECT_TRUE(is_refused(f64.run(&options), "forward_f64 is null"));
  ASSERT_TRUE(is_ok(f32.run(&options)));

  attend_attention_gradients gradients;
  attend_attention_gradients_init(&gradients);
  const attend_tensor q = seen(f32.q), k = seen(f32.k), v = seen(f32.v), out = seen(f32.out), lse = seen(f32.lse);
  gradients.dq = &q, gradients.dk = &k, gradients.dv = &v;
  EXPECT_TRUE(is_refused(attend_attention_backward(&out, &q, &k, &v, &out, &lse, &gradients, &options),
                         "backward_f32 is null"));
  EXPECT_TRUE(is_refused(attend_attention_backward(&out, &q, &k, &v, &out, &lse, nullptr, nullptr), "gradients"));
  gradients.struct_size = 0;
  EXPECT_TRUE(is_refused(attend_attention_backward(&out, &q, &k, &v, &out, &lse, &gradients, nullptr), "struct_size"));
  attend_attention_gradients_init(&gradients);
  EXPECT_TRUE(is_refused(attend_attention_backward(&out, &q, &k, &v, &out, &lse, &gradients, nullptr), "dq is null"));
}

TEST(CAbiMask, BadArgumentsAreRefusedAndGiveNoHandle) {
  const std::int64_t falling[] = {0, 4, 2}, negative[] = {-1}, huge = std::numeric_limits<std::int64_t>::max();
  const std::int64_t shape[4] = {1, 1, 2, 2}, negative_shape[4] = {1, 1, -2, 2};
  const std::uint8_t bits[] = {1, 1, 1, 1};
  attend_mask* given = nullptr;
  ASSERT_TRUE(is_ok(attend_mask_causal(ATTEND_LAST_KEY, &given)));
  const MaskHandle held = hold(given);

  const std::vector<std::pair<const char*, std::function<attend_status(attend_mask**)>>> calls{
      {"align is 9", [](auto m) { return attend_mask_causal(9, m); }},
      {"align is -1", [](auto m) { return attend_mask_window(1, 1, -1, m); }},
      {"left is -2", [](auto m) { return attend_mask_window(-2, 1, ATTEND_LAST_KEY, m); }},
      {"offsets is null", [](auto m) { return attend_mask_causal_at(nullptr, 1, m); }},
      {"offsets has 0", [&](auto m) { return attend_mask_causal_at(negative, 0, m); }},
      {"number of offsets is -1", [&](auto m) { return attend_mask_window_at(1, 1, negative, -1, m); }},
      {"number of lengths", [&](auto m) { return attend_mask_padding(negative, huge, m); }},
      {"lengths[0] is -1", [&](auto m) { return attend_mask_padding(negative, 1, m); }},
      {"counts is null", [&](auto m) { return attend_mask_left_padding(nullptr, 1, m); }},
      {"align is 2", [&](auto m) { return attend_mask_prefix(shape, 1, 2, m); }},
      {"offsets is null", [&](auto m) { return attend_mask_prefix_at(shape, 1, nullptr, 1, m); }},
      {"[2] is 2", [&](auto m) { return attend_mask_segments(falling, nullptr, 3, m); }},
      {"queries is null", [&](auto m) { return attend_mask_segments(nullptr, nullptr, 3, m); }},
      {"bits is null", [](auto m) { return attend_mask_blocks(1, 1, 1, 2, 2, nullptr, m); }},
      {"heads * rows * cols", [&](auto m) { return attend_mask_blocks(1, 1, huge, huge, 2, bits, m); }},
      {"block", [&](auto m) { return attend_mask_blocks(0, 1, 1, 2, 2, bits, m); }},
      {"null", [&](auto m) { return attend_mask_dense(nullptr, shape, nullptr, m); }},
      {"shape is null", [&](auto m) { return attend_mask_dense(bits, nullptr, nullptr, m); }},
      {"-2", [&](auto m) { return attend_mask_dense(bits, negative_shape, nullptr, m); }},
      {"a is null", [&](auto m) { return attend_mask_and(nullptr, given, m); }},
      {"b is null", [&](auto m) { return attend_mask_and(given, nullptr, m); }},
  };
  for (const auto& [words, call] : calls) {
    attend_mask* mask = given;
    EXPECT_TRUE(is_refused(call(&mask), words));
    EXPECT_EQ(mask, nullptr) << words;
    EXPECT_TRUE(is_refused(call(nullptr), "the place for the result is null"));
  }
  attend_mask_free(nullptr);
}

TEST(CAbiTensor, ContiguousStridesAndBadShapes) {
  attend_tensor tensor;
  const std::int64_t shape[4] = {2, 3, 4, 5}, negative[4] = {2, -3, 4, 5};
  const std::int64_t huge[4] = {std::int64_t{1} << 40, std::int64_t{1} << 40, 2, 2};
  float data = 0;
  ASSERT_TRUE(is_ok(attend_tensor_contiguous(ATTEND_BF16, &data, shape, &tensor)));
  EXPECT_EQ(tensor.dtype, ATTEND_BF16);
  EXPECT_EQ(tensor.data, &data);
  EXPECT_EQ((std::array{tensor.strides[0], tensor.strides[1], tensor.strides[2], tensor.strides[3]}),
            (std::array<std::int64_t, 4>{60, 20, 5, 1}));
  EXPECT_TRUE(is_refused(attend_tensor_contiguous(ATTEND_F32, &data, negative, &tensor), "-3"));
  EXPECT_TRUE(is_refused(attend_tensor_contiguous(ATTEND_F32, &data, huge, &tensor), ""));
  EXPECT_TRUE(is_refused(attend_tensor_contiguous(ATTEND_F32, &data, nullptr, &tensor), "shape is null"));
  EXPECT_TRUE(is_refused(attend_tensor_contiguous(ATTEND_F32, &data, shape, nullptr), "tensor is null"));
}

// {4, 8} in C is {4, 8, 0, 0}: the rank, not the size, is what is wrong.
TEST(CAbiTensor, AShapeOfTwoSizesIsRefused) {
  float data[32] = {};
  attend_tensor tensor;
  const std::int64_t two[4] = {4, 8}, three[4] = {1, 4, 8}, none[4] = {0, 1, 4, 8}, no_rows[4] = {1, 1, 0, 8};
  EXPECT_TRUE(is_refused(attend_tensor_contiguous(ATTEND_F32, data, two, &tensor),
                         "shape is [4, 8, 0, 0], expected four sizes, [batch, heads, length, dim]"));
  EXPECT_TRUE(
      is_refused(attend_tensor_contiguous(ATTEND_F32, data, three, &tensor), "a matrix is {1, 1, rows, columns}"));
  EXPECT_TRUE(is_ok(attend_tensor_contiguous(ATTEND_F32, data, none, &tensor)));
  EXPECT_TRUE(is_ok(attend_tensor_contiguous(ATTEND_F32, data, no_rows, &tensor)));
}

TEST(CAbiTensor, StridesThatWereLeftOutAreRefused) {
  Tensor x = drawn(1, {1, 1, 4, 8}), y(DType::f32, {1, 1, 4, 8}), bias = drawn(2, {1, 1, 4, 4});
  attend_tensor without = seen(x), one = seen(x);
  std::fill_n(without.strides, 4, 0);
  const attend_tensor cx = seen(x), cy = seen(y);
  const char* advice =
      "all its strides are 0: every element would be the first; fill the tensor in with "
      "attend_tensor_contiguous";
  EXPECT_TRUE(is_refused(attend_softmax(&without, &cy), advice));
  EXPECT_TRUE(is_refused(attend_attention(&without, &cx, &cx, &cy, nullptr, nullptr, nullptr), advice));
  EXPECT_TRUE(is_refused(attend_attention(&without, &cx, &cx, &cy, nullptr, nullptr, nullptr), "attend_attention: q"));
  EXPECT_TRUE(is_refused(attend_attention(&cx, &cx, &without, &cy, nullptr, nullptr, nullptr), "attend_attention: v"));
  EXPECT_TRUE(is_refused(attend_attention(&cx, &cx, &cx, &without, nullptr, nullptr, nullptr), advice));
  attend_tensor cbias = seen(bias);
  std::fill_n(cbias.strides, 4, 0);
  attend_attention_options options = fresh_options();
  options.bias = &cbias;
  EXPECT_TRUE(is_refused(attend_attention(&cx, &cx, &cx, &cy, &options, nullptr, nullptr), "attend_attention: bias"));
  // One element needs no step, and some strides of 0 repeat.
  std::fill_n(cbias.shape, 4, 1);
  EXPECT_TRUE(is_ok(attend_attention(&cx, &cx, &cx, &cy, &options, nullptr, nullptr)));
  std::fill_n(one.strides, 3, 0);
  EXPECT_TRUE(is_ok(attend_attention(&cx, &one, &one, &cy, nullptr, nullptr, nullptr)));
  const std::uint8_t bits[16] = {1};
  const std::int64_t shape[4] = {1, 1, 4, 4}, strides[4] = {};
  attend_mask* mask = nullptr;
  EXPECT_TRUE(is_refused(attend_mask_dense(bits, shape, strides, &mask), "give NULL for contiguous bytes"));
}

TEST(CAbiErrors, EveryExceptionBecomesAStatus) {
  EXPECT_EQ(abi::guard([] {}), ATTEND_OK);
  EXPECT_EQ(abi::guard([] { throw InvalidArgument("a"); }), ATTEND_INVALID_ARGUMENT);
  EXPECT_STREQ(attend_last_error(), "a");
  EXPECT_EQ(abi::guard([] { throw std::bad_alloc(); }), ATTEND_OUT_OF_MEMORY);
  EXPECT_EQ(abi::guard([] { throw std::length_error("vector"); }), ATTEND_OUT_OF_MEMORY);
  EXPECT_STREQ(attend_last_error(), "out of memory");
  EXPECT_EQ(abi::guard([] { throw std::runtime_error("b"); }), ATTEND_INTERNAL_ERROR);
  EXPECT_STREQ(attend_last_error(), "b");
  EXPECT_EQ(abi::guard([] { throw 3; }), ATTEND_INTERNAL_ERROR);
  EXPECT_STREQ(attend_last_error(), "an exception of unknown type");
  EXPECT_EQ(abi::guard([] { throw std::runtime_error(std::string(5000, 'x')); }), ATTEND_INTERNAL_ERROR);
  EXPECT_EQ(std::string(attend_last_error()), std::string(1023, 'x'));
}

TEST(CAbiErrors, TheTextBelongsToTheThread) {
  ASSERT_EQ(abi::guard([] { throw InvalidArgument("mine"); }), ATTEND_INVALID_ARGUMENT);
  std::string before, after;
  std::thread([&] {
    before = attend_last_error();
    static_cast<void>(abi::guard([] { throw InvalidArgument("theirs"); }));
    after = attend_last_error();
  }).join();
  EXPECT_EQ(before, "");
  EXPECT_EQ(after, "theirs");
  EXPECT_STREQ(attend_last_error(), "mine");
}

TEST(CAbiRuntime, LibraryAndMachine) {
  EXPECT_STREQ(attend_version(), version());
  EXPECT_STREQ(attend_kernel_name(), kernel_name());
  const int before = attend_threads();
  EXPECT_EQ(before, threads());
  ASSERT_TRUE(is_ok(attend_set_threads(3)));
  EXPECT_EQ(threads(), 3);
  EXPECT_TRUE(is_refused(attend_set_threads(0), "0"));
  EXPECT_TRUE(is_refused(attend_set_threads(1025), "1025"));
  EXPECT_EQ(attend_threads(), 3);
  ASSERT_TRUE(is_ok(attend_set_threads(before)));
}

}  // namespace
}  // namespace attend
