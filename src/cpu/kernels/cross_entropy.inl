// A row of logits: the sum of its exponentials, and the softmax times a factor.

[[gnu::flatten]] void exp_row(const float* x, float* y, std::int64_t n) {
  map_vectors<1, 1>({x}, {y}, n, [](const V(&from)[1], V(&to)[1]) { to[0] = exp(from[0]); });
}

// In f32 for some vectors at a time, which are summed in double. NaN and inf in x give a sum of NaN.
[[gnu::flatten]] void exp_sum(const float* x, std::int64_t n, float* largest, double* sum) {
  V top = set1(-kInfinity);
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) top = max(load(x + i), top);
  float most = reduce_max(top);
  for (; i < n; ++i) most = x[i] > most ? x[i] : most;
  constexpr std::int64_t kBlock = 16 * kLanes;
  double total = 0;
  const V shift = set1(most);
  for (i = 0; i + kLanes <= n;) {
    const std::int64_t whole = (n - i) / kLanes * kLanes, end = i + (whole < kBlock ? whole : kBlock);
    V part = set1(0.0F);
    for (; i < end; i += kLanes) part = add(part, exp(sub(load(x + i), shift)));
    total += static_cast<double>(reduce_add(part));
  }
  float lanes[kLanes];
  for (; i < n; ++i) {
    store(lanes, exp(set1(x[i] - most)));
    total += static_cast<double>(lanes[0]);
  }
  *largest = most;
  *sum = total;
}

// y is f32 or bf16, and may begin where x does: what is written lies behind what is still to be read.
[[gnu::flatten]] void scaled_exp(const float* x, std::int64_t n, float largest, float scale, DType dtype, void* y) {
  const V shift = set1(largest), factor = set1(scale);
  auto* floats = static_cast<float*>(y);
  if (dtype == DType::f32)
    return map_vectors<1, 1>({x}, {floats}, n,
                             [=](const V(&from)[1], V(&to)[1]) { to[0] = mul(exp(sub(from[0], shift)), factor); });
  auto* halves = static_cast<char*>(y);
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store_bf16(halves + 2 * i, mul(exp(sub(load(x + i), shift)), factor));
  float lanes[kLanes];
  for (; i < n; ++i) {
    store(lanes, mul(exp(set1(x[i] - largest)), factor));
    store_one(DType::bf16, halves + 2 * i, lanes[0]);
  }
}
