// What the multiply-add units can do when nothing else is in the way: the ceiling that benchmarks print.

// Runs `rounds` rounds of independent chains in registers and returns the floating-point operations done.
double fma_burst(std::int64_t rounds) {
  constexpr int kChains = kTileRows * kTileVectors;  // as many as the product's tile keeps in flight
  V chain[std::size_t{kChains}];
#pragma GCC unroll 24
  for (int c = 0; c < kChains; ++c) chain[c] = set1(1e-3F * static_cast<float>(c + 1));
  const V a = set1(0.999F), b = set1(1e-3F);
  for (std::int64_t round = 0; round < rounds; ++round)
#pragma GCC unroll 24
    for (int c = 0; c < kChains; ++c) chain[c] = fma(chain[c], a, b);
  float sum = 0.0F;
  for (int c = 0; c < kChains; ++c) sum += reduce_add(chain[c]);
  const double operations = static_cast<double>(rounds) * kChains * kLanes * 2;
  return sum == 0.0F ? 0.0 : operations;  // the sum is never 0, but the compiler can't know: the work must be done
}
