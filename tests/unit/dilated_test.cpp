// Tests of dilations computed class by class: against the reference in double, the same bits for any number of threads.
#include "ops/dilated.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "attend/attend.hpp"
#include "unit/op_testing.hpp"

namespace attend {
namespace {

using std::int64_t;
using test::ops::random_tensor;
using test::ops::to_dtype;

constexpr int64_t B = 2, H = 4, Hk = 2, D = 16, E = 24;

struct Named {
  const char* name;
  Mask mask;
  int64_t M, N;
};

std::vector<Named> masks() {
  return {
      {"dilated alone", dilated(3), 530, 530},
      {"a window narrower than the step", dilated(3) & window(2, 0), 530, 530},
      {"dilated, causal, window", dilated(4) & causal() & window(201, 50), 530, 601},
      {"dilated, padding by batch", dilated(5, Align::first_key) & padding({601, 333}) & left_padding({7}), 530, 601},
      {"more queries than keys", dilated(3) & window(91, 20), 601, 530},
      {"strided", strided(23), 601, 601},
      {"strided beside a cache", strided(23), 530, 601},
      {"longformer", longformer(40, 3, {0, 1, 300}), 601, 601},
      {"two dilations", (dilated(2) & window(30, 30)) | (dilated(7) & window(210, 210)) | tokens({5}), 530, 530},
      {"at an offset", padding({400}) & (window(3, 3) | (dilated(6, Diagonal::at({-40})) & causal(Diagonal::at({9})))),
       530, 601},
  };
}

struct Inputs {
  Inputs(DType dtype, int64_t M, int64_t N)
      : q(random_tensor(dtype, {B, H, M, D}, 1)),
        k(random_tensor(dtype, {B, Hk, N, D}, 2)),
        v(random_tensor(dtype, {B, Hk, N, E}, 3)),
        dout(random_tensor(dtype, {B, H, M, E}, 4)) {}
  Tensor q, k, v, dout;
};

struct Results {
  Results(const Inputs& x, const Mask& mask) : forward(attention(x.q, x.k, x.v, {.mask = mask}, {.lse = true})) {
    backward = attention_backward(x.dout, x.q, x.k, x.v, forward.out, forward.lse, {.mask = mask});
  }
  AttentionResult forward;
  AttentionGradientTensors backward;
};

double largest_difference(const Tensor& a, const Tensor& exact) {
  double largest = 0;
  test::ops::for_each_element(a.shape(), [&](auto b, auto h, auto i, auto d) {
    const double x = load(a.view(), b, h, i, d), y = load(exact.view(), b, h, i, d);
    if (x == y) return;  // both -inf, too
    const double difference = std::abs(x - y) / (1 + std::abs(y));
    largest = std::isfinite(difference) ? std::max(largest, difference) : 1e30;
  });
  return largest;
}

TEST(Dilated, EqualsTheReference) {
  for (const Named& at : masks()) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      SCOPED_TRACE(std::string(at.name) + ", " + name(dtype));
      const Inputs x(dtype, at.M, at.N);
      Inputs exact(DType::f64, at.M, at.N);
      exact.q = to_dtype(x.q, DType::f64);
      exact.k = to_dtype(x.k, DType::f64);
      exact.v = to_dtype(x.v, DType::f64);
      exact.dout = to_dtype(x.dout, DType::f64);
      const Results got(x, at.mask);
      const double ulp = dtype == DType::f32 ? 0x1p-24 : dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
      const AttentionResult forward =
          attention(exact.q, exact.k, exact.v, {.mask = at.mask}, {.lse = true, .weights = false});
      EXPECT_LE(largest_difference(got.forward.out, forward.out), 2 * ulp + 4e-6);
      EXPECT_LE(largest_difference(got.forward.lse, forward.lse), 4e-6 + (dtype == DType::f32 ? 0 : 1e-2 * ulp));
      if (dtype != DType::f32) continue;  // the reference backward takes its time
      const AttentionGradientTensors backward =
          attention_backward(exact.dout, exact.q, exact.k, exact.v, forward.out, forward.lse, {.mask = at.mask});
      EXPECT_LE(largest_difference(got.backward.dq, backward.dq), 2e-5);
      EXPECT_LE(largest_difference(got.backward.dk, backward.dk), 2e-5);
      EXPECT_LE(largest_difference(got.backward.dv, backward.dv), 2e-5);
    }
  }
}

// Half gradients beside those of f32 from the same numbers: only their own roundings lie between.
TEST(Dilated, HalfGradients) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const Inputs x(dtype, 530, 530);
    Inputs wide(DType::f32, 530, 530);
    wide.q = to_dtype(x.q, DType::f32);
    wide.k = to_dtype(x.k, DType::f32);
    wide.v = to_dtype(x.v, DType::f32);
    wide.dout = to_dtype(x.dout, DType::f32);
    const Results got(x, strided(23)), exact(wide, strided(23));
    const double ulp = dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
    EXPECT_LE(largest_difference(got.backward.dq, exact.backward.dq), 4 * ulp);
    EXPECT_LE(largest_difference(got.backward.dk, exact.backward.dk), 4 * ulp);
    EXPECT_LE(largest_difference(got.backward.dv, exact.backward.dv), 4 * ulp);
  }
}

TEST(Dilated, TheClassesAreTaken) {
  for (const Named& at : masks()) {
    const Inputs x(DType::f32, at.M, at.N);
    Tensor out(DType::f32, {B, H, at.M, E});
    const AttentionOptions options{.mask = at.mask};
    EXPECT_TRUE(attention_by_classes(AttentionCall(x.q, x.k, x.v, options), out, {})) << at.name;
  }
  const Inputs x(DType::f32, 530, 530);
  Tensor out(DType::f32, {B, H, 530, E}), weights(DType::f32, {B, H, 530, 530});
  const auto taken = [&](const AttentionOptions& options, const AttentionExtras& extras = {}) {
    return attention_by_classes(AttentionCall(x.q, x.k, x.v, options), out, extras);
  };
  AttentionExtras all;
  all.weights = weights.view();
  EXPECT_TRUE(taken({.mask = dilated(2)}));
  EXPECT_FALSE(taken({.mask = dilated(1)}));  // no dilation
  EXPECT_FALSE(taken({.mask = dilated(3)}, all));
  EXPECT_FALSE(taken({.mask = dilated(100)}));  // classes of six rows
  EXPECT_FALSE(taken({.mask = dilated(3), .dropout = {0.5, 1}}));
  EXPECT_FALSE(taken({.mask = dilated(3) & tokens({4})}));
  EXPECT_FALSE(taken({.mask = causal() | window(3, 3)}));
  EXPECT_FALSE(taken({.mask = except(dilated(3))}));
  EXPECT_FALSE(taken({.mask = dilated(3, Diagonal::at({0, 1}))}));
}

TEST(Dilated, SameBitsForAnyThreads) {
  const int before = threads();
  for (const Mask& mask : {strided(23), longformer(40, 3, {0, 9})}) {
    const Inputs x(DType::f32, 530, 530);
    set_threads(1);
    const Results one(x, mask);
    for (const int count : {2, 3}) {
      set_threads(count);
      const Results more(x, mask);
      const auto same = [](const Tensor& a, const Tensor& b) {
        return std::memcmp(a.view().data, b.view().data, static_cast<std::size_t>(a.bytes())) == 0;
      };
      EXPECT_TRUE(same(one.forward.out, more.forward.out));
      EXPECT_TRUE(same(one.forward.lse, more.forward.lse));
      EXPECT_TRUE(same(one.backward.dq, more.backward.dq));
      EXPECT_TRUE(same(one.backward.dk, more.backward.dk));
      EXPECT_TRUE(same(one.backward.dv, more.backward.dv));
    }
  }
  set_threads(before);
}

}  // namespace
}  // namespace attend
