// Rows of x rounded to int8, a run at a time, for products with quantised weights.

// The run rounded to nearest, with a scale that makes its largest number 127. Runs so small that the scale would not be
// a normal number are zeros.
inline void round_run(const char* x, std::int64_t stride, RoundedRun& run) {
  float numbers[kRun];
  load_row(DType::f32, x, stride, kRun, numbers);
  V top = set1(0.0F), numbered = set1(0.0F);
#pragma GCC unroll 8
  for (int i = 0; i < kRun; i += kLanes) {
    const V v = load(numbers + i);
    top = max(abs(v), top);                   // passes over NaN
    numbered = fma(v, set1(0.0F), numbered);  // 0, or NaN once a number is not finite
  }
  const float most = reduce_max(top);
  const bool finite = all(equal(numbered, numbered));
  const bool some = finite && most >= 1e-35F;
  const float scale = some ? most * (1.0F / 127.0F) : finite ? 0.0F : __builtin_nanf("");
  const V inverse = set1(some ? 127.0F / most : 0.0F);
  float sums[2];
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    V sum = set1(0.0F);
#pragma GCC unroll 4
    for (int i = 16 * half; i < 16 * half + 16; i += kLanes) {
      const V v = finite ? round(mul(load(numbers + i), inverse)) : set1(0.0F);
      store_int8(run.numbers + i, v);
      sum = add(sum, v);
    }
    sums[half] = reduce_add(sum);
  }
  run.scale = scale;
  run.scaled_sum = scale * (sums[0] + sums[1]);
  run.minus_sum_of[0] = -static_cast<std::int32_t>(sums[0]);
  run.minus_sum_of[1] = -static_cast<std::int32_t>(sums[1]);
  run.minus_sum = run.minus_sum_of[0] + run.minus_sum_of[1];
}

// `runs` runs of a row that lies at any address, `stride` elements from number to number.
void round_row(const char* x, std::int64_t stride, std::int64_t runs, RoundedRun* to) {
  for (std::int64_t n = 0; n < runs; ++n) round_run(x + n * kRun * stride * 4, stride, to[n]);
}
