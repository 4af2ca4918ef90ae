// Tests of the C ABI of a model's building blocks: the bits of the C++ calls, and bad arguments.
#include <gtest/gtest.h>

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

const Shape kShape{2, 3, 5, 8};

TEST(CAbiBlocks, LayerNorm) {
  Tensor x = drawn(1, kShape), dy = drawn(2, kShape), weight = drawn(3, {1, 1, 1, 8}), bias = drawn(4, {1, 1, 1, 8});
  Tensor y(DType::f32, kShape), expected(DType::f32, kShape);
  const attend_tensor cx = seen(x), cdy = seen(dy), cw = seen(weight), cb = seen(bias), cy = seen(y);
  ASSERT_TRUE(is_ok(attend_layer_norm(&cx, &cw, &cb, &cy, 0.5)));
  layer_norm(x, weight, bias, expected, 0.5);
  EXPECT_TRUE(same_bits(y, expected));
  ASSERT_TRUE(is_ok(attend_layer_norm(&cx, &cw, nullptr, &cy, 0.5)));
  layer_norm(x, weight, std::nullopt, expected, 0.5);
  EXPECT_TRUE(same_bits(y, expected));

  Tensor dx(DType::f32, kShape), dw(DType::f32, weight.shape()), db(DType::f32, weight.shape());
  Tensor edw(DType::f32, weight.shape()), edb(DType::f32, weight.shape());
  const attend_tensor cdx = seen(dx), cdw = seen(dw), cdb = seen(db);
  layer_norm_backward(dy, x, weight, {expected, edw, edb}, 0.5);
  ASSERT_TRUE(is_ok(attend_layer_norm_backward(&cdy, &cx, &cw, &cdx, &cdw, nullptr, 0.5)));
  EXPECT_TRUE(same_bits(dx, expected) && same_bits(dw, edw));
  ASSERT_TRUE(is_ok(attend_layer_norm_backward(&cdy, &cx, &cw, &cdx, &cdw, &cdb, 0.5)));
  EXPECT_TRUE(same_bits(db, edb));

  EXPECT_TRUE(is_refused(attend_layer_norm(nullptr, &cw, nullptr, &cy, 1e-6), "x is null"));
  EXPECT_TRUE(is_refused(attend_layer_norm(&cx, nullptr, nullptr, &cy, 1e-6), "weight is null"));
  EXPECT_TRUE(is_refused(attend_layer_norm(&cx, &cw, nullptr, nullptr, 1e-6), "y is null"));
  EXPECT_TRUE(is_refused(attend_layer_norm_backward(&cdy, &cx, &cw, nullptr, &cdw, nullptr, 1e-6), "dx is null"));
  EXPECT_TRUE(is_refused(attend_layer_norm_backward(&cdy, &cx, &cw, &cdx, nullptr, nullptr, 1e-6), "dweight is null"));
}

TEST(CAbiBlocks, Activation) {
  Tensor x = drawn(1, kShape), up = drawn(2, kShape), dy = drawn(3, kShape);
  Tensor y(DType::f32, kShape), z(DType::f32, kShape), expected(DType::f32, kShape), other(DType::f32, kShape);
  const attend_tensor cx = seen(x), cup = seen(up), cdy = seen(dy), cy = seen(y), cz = seen(z);
  for (const std::int32_t kind :
       {ATTEND_ACTIVATION_SILU, ATTEND_ACTIVATION_GELU, ATTEND_ACTIVATION_GELU_TANH, ATTEND_ACTIVATION_RELU}) {
    const auto cpp = static_cast<Activation>(kind);
    ASSERT_TRUE(is_ok(attend_activation(kind, &cx, &cy)));
    activation(cpp, x, expected);
    EXPECT_TRUE(same_bits(y, expected));
    ASSERT_TRUE(is_ok(attend_gated_activation(kind, &cx, &cup, &cy)));
    gated_activation(cpp, x, up, expected);
    EXPECT_TRUE(same_bits(y, expected));
    ASSERT_TRUE(is_ok(attend_activation_backward(kind, &cdy, &cx, &cy)));
    activation_backward(cpp, dy, x, expected);
    EXPECT_TRUE(same_bits(y, expected));
    ASSERT_TRUE(is_ok(attend_gated_activation_backward(kind, &cdy, &cx, &cup, &cy, &cz)));
    gated_activation_backward(cpp, dy, x, up, expected, other);
    EXPECT_TRUE(same_bits(y, expected) && same_bits(z, other));
  }
  EXPECT_TRUE(is_refused(attend_activation(4, &cx, &cy), "the activation is 4"));
  EXPECT_TRUE(is_refused(attend_activation(-1, &cx, &cy), "the activation is -1"));
  EXPECT_TRUE(is_refused(attend_activation(0, nullptr, &cy), "x is null"));
  EXPECT_TRUE(is_refused(attend_gated_activation(0, &cx, nullptr, &cy), "up is null"));
  EXPECT_TRUE(is_refused(attend_gated_activation_backward(0, &cdy, &cx, &cup, &cy, nullptr), "dup is null"));
}

TEST(CAbiBlocks, AddConvertAndDropout) {
  Tensor x = drawn(1, kShape), y = drawn(2, kShape, DType::bf16), z(DType::f16, kShape), expected(DType::f16, kShape);
  const attend_tensor cx = seen(x), cy = seen(y), cz = seen(z);
  ASSERT_TRUE(is_ok(attend_add(&cx, &cy, &cz)));
  add(x, y, expected);
  EXPECT_TRUE(same_bits(z, expected));
  ASSERT_TRUE(is_ok(attend_convert(&cx, &cz)));
  convert(x, expected);
  EXPECT_TRUE(same_bits(z, expected));
  ASSERT_TRUE(is_ok(attend_dropout(&cz, &cz, 0.5, 7)));
  dropout(expected, expected, {0.5, 7});
  EXPECT_TRUE(same_bits(z, expected));
  EXPECT_TRUE(is_refused(attend_add(&cx, nullptr, &cz), "y is null"));
  EXPECT_TRUE(is_refused(attend_convert(nullptr, &cz), "x is null"));
  EXPECT_TRUE(is_refused(attend_dropout(&cx, &cx, 1, 7), "probability is 1"));
}

TEST(CAbiBlocks, Embedding) {
  Tensor table = drawn(1, {1, 1, 9, 8}), y(DType::f32, {1, 1, 4, 8}), expected(DType::f32, y.shape());
  const std::vector<std::int64_t> tokens{8, 0, 3, 3};
  const attend_tensor ct = seen(table), cy = seen(y);
  ASSERT_TRUE(is_ok(attend_embedding(&ct, tokens.data(), 4, &cy)));
  embedding(table, tokens, expected);
  EXPECT_TRUE(same_bits(y, expected));
  attend_weight* weight = nullptr;
  ASSERT_TRUE(is_ok(attend_weight_create(ATTEND_WEIGHT_F32, 9, 8, table.view().data, table.bytes(), &weight)));
  Tensor again(DType::f32, y.shape());
  const attend_tensor cagain = seen(again);
  ASSERT_TRUE(is_ok(attend_weight_embedding(weight, tokens.data(), 4, &cagain)));
  EXPECT_TRUE(same_bits(again, expected));
  EXPECT_TRUE(is_refused(attend_weight_embedding(nullptr, tokens.data(), 4, &cagain), "weight is null"));
  attend_weight_free(weight);

  Tensor dtable(DType::f32, table.shape()), expected_table(DType::f32, table.shape());
  const attend_tensor cdt = seen(dtable);
  ASSERT_TRUE(is_ok(attend_embedding_backward(&cy, tokens.data(), 4, &cdt)));
  embedding_backward(y, tokens, expected_table);
  EXPECT_TRUE(same_bits(dtable, expected_table));
  EXPECT_TRUE(is_refused(attend_embedding(&ct, nullptr, 4, &cy), "tokens is null"));
  EXPECT_TRUE(is_refused(attend_embedding(&ct, tokens.data(), -1, &cy), "number of tokens is -1"));
  EXPECT_TRUE(is_refused(attend_embedding(&cy, tokens.data(), 4, &cy), "shares memory"));
}

TEST(CAbiBlocks, CrossEntropy) {
  Tensor hidden = drawn(1, {1, 1, 5, 8}), weight = drawn(2, {1, 1, 20, 8}), dloss = drawn(3, {1, 1, 5, 1});
  Tensor loss(DType::f32, dloss.shape()), expected(DType::f32, dloss.shape());
  const std::vector<std::int64_t> targets{3, -1, 19, 0, 3};
  const attend_tensor ch = seen(hidden), cw = seen(weight), cd = seen(dloss), cl = seen(loss);
  attend_cross_entropy_options options;
  attend_cross_entropy_options_init(&options);
  EXPECT_EQ(options.ignore_index, -100);
  EXPECT_TRUE(is_refused(attend_cross_entropy(&ch, &cw, targets.data(), 5, &cl, &options), "target 1 is -1"));
  EXPECT_TRUE(is_refused(attend_cross_entropy(&ch, &cw, targets.data(), 5, &cl, nullptr), "-100"));
  options.ignore_index = -1;
  ASSERT_TRUE(is_ok(attend_cross_entropy(&ch, &cw, targets.data(), 5, &cl, &options)));
  cross_entropy(hidden, weight, targets, expected, {-1});
  EXPECT_TRUE(same_bits(loss, expected));

  Tensor dh(DType::f32, hidden.shape()), dw(DType::f32, weight.shape()), again(DType::f32, loss.shape());
  Tensor edh(DType::f32, hidden.shape()), edw(DType::f32, weight.shape());
  const attend_tensor cdh = seen(dh), cdw = seen(dw), cagain = seen(again);
  attend_cross_entropy_gradients gradients;
  attend_cross_entropy_gradients_init(&gradients);
  gradients.dhidden = &cdh, gradients.dweight = &cdw, gradients.loss = &cagain;
  ASSERT_TRUE(is_ok(attend_cross_entropy_backward(&cd, &ch, &cw, targets.data(), 5, &gradients, &options)));
  cross_entropy_backward(dloss, hidden, weight, targets, {edh, edw, {}}, {-1});
  EXPECT_TRUE(same_bits(dh, edh) && same_bits(dw, edw) && same_bits(again, expected));
  EXPECT_TRUE(is_refused(attend_cross_entropy_backward(&cd, &ch, &cw, targets.data(), 5, nullptr, &options),
                         "gradients is null"));
  EXPECT_TRUE(is_refused(attend_cross_entropy(&ch, &cw, targets.data(), 4, &cl, &options), "number of targets is 4"));
  options.struct_size = 3;
  EXPECT_TRUE(is_refused(attend_cross_entropy(&ch, &cw, targets.data(), 5, &cl, &options),
                         "attend_cross_entropy_options_init"));
}

TEST(CAbiBlocks, RopeTable) {
  Tensor x = drawn(1, kShape), y(DType::f32, kShape), expected(DType::f32, kShape);
  const attend_tensor cx = seen(x), cy = seen(y);
  attend_rope_options options;
  attend_rope_options_init(&options);
  options.first_position = 10;
  attend_rope_table* table = nullptr;
  ASSERT_TRUE(is_ok(attend_rope_table_create(8, 20, &options, &table)));
  ASSERT_TRUE(is_ok(attend_rope_by_table(&cx, &cy, table, 15)));
  rope(x, expected, {.first_position = 25});
  EXPECT_TRUE(same_bits(y, expected));
  ASSERT_TRUE(is_ok(attend_rope_by_table_backward(&cx, &cy, table, 0)));
  rope_backward(x, expected, {.first_position = 10});
  EXPECT_TRUE(same_bits(y, expected));
  EXPECT_TRUE(is_refused(attend_rope_by_table(&cx, &cy, table, 16), "5 rows from 16 on"));
  EXPECT_TRUE(is_refused(attend_rope_by_table(&cx, &cy, nullptr, 0), "table is null"));
  attend_rope_table_free(table);
  EXPECT_TRUE(is_refused(attend_rope_table_create(7, 20, nullptr, &table), "rotary_dim is 7"));
  EXPECT_EQ(table, nullptr);
  attend_rope_table_free(nullptr);
}

}  // namespace
}  // namespace attend
