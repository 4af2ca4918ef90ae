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

#if defined(ATTEND_TILE_DOT)
double pair_burst(std::int64_t rounds) {
  [[maybe_unused]] const TileSession session{};
  alignas(64) std::uint32_t cells[kTileSide][kTileSide] = {};
  ATTEND_TILE_ZERO(0);
  ATTEND_TILE_ZERO(1);
  ATTEND_TILE_ZERO(2);
  ATTEND_TILE_ZERO(3);
  ATTEND_TILE_LOAD(4, cells, 64);
  ATTEND_TILE_LOAD(5, cells, 64);
  for (std::int64_t round = 0; round < rounds; ++round) {
    ATTEND_TILE_DOT(0, 4, 5);
    ATTEND_TILE_DOT(1, 4, 5);
    ATTEND_TILE_DOT(2, 4, 5);
    ATTEND_TILE_DOT(3, 4, 5);
  }
  ATTEND_TILE_STORE(0, cells, 64);
  return static_cast<double>(rounds) * 4 * kTileSide * kTileSide * kTileSide * 2 * 2;
}
#elif defined(ATTEND_HAS_PAIRS)
double pair_burst(std::int64_t rounds) {
  constexpr int kChains = kTileRows * kTileVectors;
  V chain[std::size_t{kChains}];
#pragma GCC unroll 24
  for (int c = 0; c < kChains; ++c) chain[c] = set1(1e-3F * static_cast<float>(c + 1));
  const PairCells::Vector a = set1_cell(0x3C003C00U);
  for (std::int64_t round = 0; round < rounds; ++round)
#pragma GCC unroll 24
    for (int c = 0; c < kChains; ++c) chain[c] = multiply_add(a, a, chain[c]);
  float sum = 0.0F;
  for (int c = 0; c < kChains; ++c) sum += reduce_add(chain[c]);
  const double operations = static_cast<double>(rounds) * kChains * kLanes * 4;
  return sum == 0.0F ? 0.0 : operations;
}
#else
double pair_burst(std::int64_t rounds) {
  return fma_burst(rounds);
}
#endif
