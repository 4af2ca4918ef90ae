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
  alignas(64) std::uint32_t numbers[kTileSide][kTileSide] = {};
  ATTEND_TILE_ZERO(0);
  ATTEND_TILE_ZERO(1);
  ATTEND_TILE_ZERO(2);
  ATTEND_TILE_ZERO(3);
  ATTEND_TILE_LOAD(4, numbers, 64);
  ATTEND_TILE_LOAD(5, numbers, 64);
  for (std::int64_t round = 0; round < rounds; ++round) {
    ATTEND_TILE_DOT(0, 4, 5);
    ATTEND_TILE_DOT(1, 4, 5);
    ATTEND_TILE_DOT(2, 4, 5);
    ATTEND_TILE_DOT(3, 4, 5);
  }
  ATTEND_TILE_STORE(0, numbers, 64);
  return static_cast<double>(rounds) * 4 * kTileSide * kTileSide * kTileSide * 2 * 2;
}
#elif defined(ATTEND_HAS_PAIRS)
double pair_burst(std::int64_t rounds) {
  constexpr int kChains = kTileRows * kTileVectors;
  V chain[std::size_t{kChains}];
#pragma GCC unroll 24
  for (int c = 0; c < kChains; ++c) chain[c] = set1(1e-3F * static_cast<float>(c + 1));
  const PairFormat::Vector a = set1_element(0x3C003C00U);
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

// Products of bytes on the sums of one tile of dot_tile. Both factors change, or they could be multiplied once for all.
double byte_burst(std::int64_t rounds) {
  constexpr int kRows = kDotRows, kVectors = kDotVectors<8>, kInputs = 8;
  std::uint8_t bytes[std::size_t{2 * kVectors}][std::size_t{4 * kLanes}];
  std::int8_t numbers[std::size_t{kInputs}][4];
  for (auto& vector : bytes)
    for (std::uint8_t& byte : vector) byte = static_cast<std::uint8_t>(rounds);
  for (auto& four : numbers)
    for (std::int8_t& number : four) number = static_cast<std::int8_t>(rounds % 100);
  DotSum<8> sum[std::size_t{kRows}][std::size_t{kVectors}];
  for (auto& row : sum)
    for (DotSum<8>& one : row) one = dot_begin<8, false>(0);
  for (std::int64_t round = 0; round < rounds; ++round) {
    DotWeights<8> w[std::size_t{kVectors}];
#pragma GCC unroll 8
    for (int n = 0; n < kVectors; ++n) w[n] = dot_weights<8>(load_packed(bytes[round % 2 * kVectors + n]));
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const DotInput x = dot_input(numbers[(round + r) % kInputs]);
#pragma GCC unroll 8
      for (int n = 0; n < kVectors; ++n) dot_add<8>(sum[r][n], w[n], x);
    }
  }
  float total = 1.0F;
  for (const auto& row : sum)
    for (const DotSum<8>& one : row) total += reduce_max(abs(dot_end<8, false>(one, 0)));
  const double operations = static_cast<double>(rounds) * kRows * kVectors * kLanes * 4 * 2;
  return total == 0.0F ? 0.0 : operations;
}
