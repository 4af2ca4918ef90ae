// Precision::split_bf16: 16 bits of each factor. Its error is measured, bounded, and never larger than promised.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "attend/runtime.hpp"
#include "support/buffer.hpp"
#include "support/compare.hpp"
#include "support/tensors.hpp"

namespace attend::test {
namespace {

using std::int64_t;

// The problems' numbers fit bf16, which would leave the low terms empty: these do not.
void fill_all_bits(Tensor& x) {
  for (int64_t n = 0; n < x.size(); ++n) {
    if (x.dtype() == DType::f32) x.data<float>()[n] *= 0.7654321F;
    if (x.dtype() == DType::f16) x.data<Float16>()[n] = to_float16(to_float(x.data<Float16>()[n]) * 0.7654321F);
  }
}

// A score is off by 2^-16 of the sum of |q k|, a weight by 2^-16 of itself, an output by both.
TEST(SplitPrecision, KeepsSixteenBits) {
  const bool tiles = std::string(kernel_name()).starts_with("amx");
  double worst = 0;
  for (int mask = 0; mask <= static_cast<int>(kLastMask); ++mask)
    for (const auto& [D, E] : {std::pair<int64_t, int64_t>{64, 64}, {33, 95}, {128, 40}, {16, 64}})
      for (const DType dtype : {DType::f32, DType::f16}) {
        Case c;
        c.B = 2;
        c.H = 4;
        c.Hk = 2;
        c.M = 70;
        c.N = 700;
        c.D = D;
        c.E = E;
        c.mask = static_cast<MaskKind>(mask);
        c.dropout = mask % 4 == 1 ? 0.2 : 0;
        const Problem p(c);
        Tensors plain(p, dtype), split(p, dtype);
        for (Tensors* t : {&plain, &split})
          for (Tensor* x : {&t->q, &t->k, &t->v}) fill_all_bits(*x);
        AttentionOptions options = p.options(dtype);
        plain.forward(options);
        options.precision = Precision::split_bf16;
        split.forward(options);
        const bool used = tiles && D >= 32 && E >= 32;
        if (!used) {
          ASSERT_TRUE(same_bits(plain.out, split.out)) << p.info.problem_name();
          continue;
        }
        const std::vector<double> a = to_doubles(plain.out), b = to_doubles(split.out), v = to_doubles(split.v);
        double largest = 0, difference = 0;
        for (const double x : v) largest = std::max(largest, std::abs(x));
        for (std::size_t n = 0; n < a.size(); ++n) difference = std::max(difference, std::abs(a[n] - b[n]));
        const double rounding = dtype == DType::f16 ? 0x1p-10 : 0;
        ASSERT_LE(difference, largest * (2 * 0x1p-16 + rounding)) << p.info.problem_name() << " " << name(dtype);
        if (dtype == DType::f32) worst = std::max(worst, difference / largest);
      }
  RecordProperty("worst", std::to_string(worst * 65536) + " of 2^-16 of the largest value");
  if (tiles) {
    EXPECT_GT(worst, 0);
    std::printf("largest difference from f32: %.2f * 2^-16 of the largest value\n", worst * 65536);
  }
}

// The same bits whatever the threads and the rows around, as everywhere.
TEST(SplitPrecision, SameBitsAloneAndAmongOthers) {
  Case c;
  c.B = 1;
  c.H = 2;
  c.Hk = 1;
  c.M = 130;
  c.N = 600;
  c.D = c.E = 64;
  const Problem p(c);
  Tensors t(p, DType::f32);
  for (Tensor* x : {&t.q, &t.k, &t.v}) fill_all_bits(*x);
  AttentionOptions options = p.options(DType::f32);
  options.precision = Precision::split_bf16;
  t.forward(options);
  for (const int64_t i : {0, 17, 129}) {
    Tensor one(DType::f32, {1, 2, 1, 64});
    attention(slice(View(t.q), 2, i, 1), t.k, t.v, one, options);
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t e = 0; e < 64; ++e)
        ASSERT_EQ(one.data<float>()[h * 64 + e], t.out.data<float>()[(h * 130 + i) * 64 + e]);
  }
}

}  // namespace
}  // namespace attend::test
