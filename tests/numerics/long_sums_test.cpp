// dk and dv are sums over all rows: their error does not grow with the number of rows as one chain of f32 does.
#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "attend/attention.hpp"
#include "support/buffer.hpp"
#include "support/problem.hpp"

namespace attend::test {
namespace {

double relative_error(const std::vector<double>& got, const std::vector<double>& expected) {
  double error = 0, size = 0;
  for (std::size_t n = 0; n < got.size(); ++n) {
    error += (got[n] - expected[n]) * (got[n] - expected[n]);
    size += expected[n] * expected[n];
  }
  return std::sqrt(error / size);
}

TEST(LongSums, OfKeysAndValuesKeepTheirErrorOverManyRows) {
  Case c;
  c.M = 8000;
  c.N = c.D = c.E = 16;
  c.backward = true;
  const Problem p(c);
  const auto run = [&](DType dtype) {
    const Tensor q = to_tensor(dtype, p.q_shape(), p.q), k = to_tensor(dtype, p.k_shape(), p.k),
                 v = to_tensor(dtype, p.v_shape(), p.v), dout = to_tensor(dtype, p.out_shape(), p.dout);
    const AttentionResult r = attention(q, k, v, {}, {.lse = true});
    const AttentionGradientTensors g = attention_backward(dout, q, k, v, r.out, r.lse);
    return std::pair{to_doubles(g.dk), to_doubles(g.dv)};
  };
  const auto expected = run(DType::f64), got = run(DType::f32);
  const double dk = relative_error(got.first, expected.first), dv = relative_error(got.second, expected.second);
  EXPECT_LE(dk, 16 * 0x1p-24);
  EXPECT_LE(dv, 16 * 0x1p-24);
  RecordProperty("dk", std::to_string(dk));
  RecordProperty("dv", std::to_string(dv));
}

}  // namespace
}  // namespace attend::test
