// Attention forward and backward from C++: 8 query heads share 2 KV heads, a causal window of 256 tokens.
#include <cmath>
#include <cstdio>

#include "attend/attend.hpp"

int main() {
  using namespace attend;
  Tensor q(DType::f32, {1, 8, 1024, 64}), k(DType::f32, {1, 2, 1024, 64}), v(DType::f32, {1, 2, 1024, 64});
  for (int n = 0; n < 8 * 1024 * 64; ++n) q.data<float>()[n] = std::sin(0.37F * static_cast<float>(n));
  for (int n = 0; n < 2 * 1024 * 64; ++n) {
    k.data<float>()[n] = std::cos(0.61F * static_cast<float>(n));
    v.data<float>()[n] = 1.0F;
  }

  const AttentionOptions options{.mask = window(255, 0)};
  const AttentionResult r = attention(q, k, v, options, {.lse = true});
  const AttentionGradientTensors g = attention_backward(r.out, q, k, v, r.out, r.lse, options);

  // Where all values are 1 the output is 1, and nothing is left to learn from the scores.
  double off = 0, dq = 0;
  for (int n = 0; n < 8 * 1024 * 64; ++n) {
    off = std::fmax(off, std::abs(static_cast<double>(r.out.data<float>()[n]) - 1.0));
    dq = std::fmax(dq, std::abs(static_cast<double>(g.dq.data<float>()[n])));
  }
  std::printf("attend %s from C++, kernel %s: the output is 1 within %.1e, dq is 0 within %.1e\n", version(),
              kernel_name(), off, dq);
  return off < 1e-5 && dq < 1e-3 ? 0 : 1;
}
