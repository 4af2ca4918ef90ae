// Tests of the C ABI of inner attentions: a layer with each has the bits of the C++ layer, gradients included.
#include <functional>
#include <memory>

#include "attend/attend.hpp"
#include "attend/attend_variants.h"
#include "unit/c_abi_tensors.hpp"

namespace attend {
namespace {

using test::drawn;
using test::is_ok;
using test::is_refused;
using test::same_bits;
using test::seen;

struct Case {
  const char* name;
  std::function<attend_status(attend_inner**)> make;
  std::shared_ptr<InnerAttention> inner;
};

std::vector<Case> cases() {
  return {{"linear attention", [](attend_inner** inner) { return attend_inner_linear_attention(nullptr, inner); },
           linear_attention_inner()},
          {"Reformer", [](attend_inner** inner) { return attend_inner_reformer(nullptr, inner); }, reformer_inner()},
          {"Linformer", [](attend_inner** inner) { return attend_inner_linformer(ATTEND_F32, 40, 6, 1, 0, 3, inner); },
           linformer_inner({.length = 40, .rank = 6, .seed = 3})},
          {"adaptive span", [](attend_inner** inner) { return attend_inner_adaptive_span(4, 5.0, nullptr, inner); },
           adaptive_span_inner({.heads = 4, .initial_span = 5.0})},
          {"additive", [](attend_inner** inner) { return attend_inner_additive(ATTEND_F32, 4, 6, nullptr, inner); },
           additive_attention_inner({.heads = 4, .head_dim = 6})}};
}

TEST(CAbiInner, ALayerWithEachHasTheBitsOfCpp) {
  Tensor x = drawn(1, {2, 1, 30, 24}), dout = drawn(2, {2, 1, 30, 24});
  const attend_tensor cx = seen(x), cdout = seen(dout);
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    MultiHeadAttention expected_layer({.width = 24, .heads = 4, .inner = c.inner});
    expected_layer.initialise(7);
    MultiHeadAttentionSaved expected_saved;
    const Tensor expected = expected_layer.forward(x, {}, {.saved = &expected_saved});
    const MultiHeadAttentionGradients expected_gradients = expected_layer.backward(dout, expected_saved);

    attend_inner* inner = nullptr;
    ASSERT_TRUE(is_ok(c.make(&inner)));
    attend_layer_config config;
    attend_layer_config_init(&config);
    config.width = 24, config.heads = 4, config.inner = inner;
    attend_layer* layer = nullptr;
    ASSERT_TRUE(is_ok(attend_layer_create(&config, &layer)));
    ASSERT_TRUE(is_ok(attend_layer_initialise(layer, 7)));
    Tensor out(DType::f32, expected.shape());
    const attend_tensor cout = seen(out);
    attend_layer_saved* saved = nullptr;
    ASSERT_TRUE(is_ok(attend_layer_forward(layer, &cx, nullptr, nullptr, &cout, nullptr, &saved)));
    EXPECT_TRUE(same_bits(out, expected));
    attend_layer_gradients* gradients = nullptr;
    ASSERT_TRUE(is_ok(attend_layer_backward(layer, &cdout, saved, &gradients)));
    attend_tensor found;
    ASSERT_TRUE(is_ok(attend_layer_gradient(gradients, "dx", &found)));
    EXPECT_TRUE(same_bits(found, expected_gradients.dx));
    const auto own = c.inner->parameters();
    for (std::size_t n = 0; n < own.size(); ++n) {
      ASSERT_TRUE(is_ok(attend_layer_gradient(gradients, ("inner." + own[n].name).c_str(), &found)));
      EXPECT_TRUE(same_bits(found, expected_gradients.inner[n])) << own[n].name;
      ASSERT_TRUE(is_ok(attend_inner_parameter(inner, own[n].name.c_str(), &found)));
      EXPECT_EQ(found.shape[3], own[n].value.shape[3]);
    }
    EXPECT_TRUE(is_refused(attend_inner_parameter(inner, "bogus", &found), "does not have"));
    attend_inner_free(inner);  // the layer keeps what it needs
    EXPECT_TRUE(is_ok(attend_layer_forward(layer, &cx, nullptr, nullptr, &cout, nullptr, nullptr)));
    attend_layer_gradients_free(gradients);
    attend_layer_saved_free(saved);
    attend_layer_free(layer);
  }
}

TEST(CAbiInner, BadArgumentsAreTold) {
  attend_inner* inner = nullptr;
  EXPECT_TRUE(is_refused(attend_inner_linformer(ATTEND_F32, 4, 6, 1, 0, 3, &inner), "rank"));
  EXPECT_EQ(inner, nullptr);
  EXPECT_TRUE(is_refused(attend_inner_linear_attention(nullptr, nullptr), "null"));
  attend_tensor found;
  EXPECT_TRUE(is_refused(attend_inner_parameter(nullptr, "e", &found), "inner is null"));
  attend_inner_free(nullptr);
}

}  // namespace
}  // namespace attend
