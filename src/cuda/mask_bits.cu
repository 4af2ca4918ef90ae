// Writes what a mask hides inside its intervals as bits, and what each tile of them holds.
#include "cuda/mask_bits.hpp"

using namespace attend::cuda;

// A word for each thread: 32 keys of one query.
extern "C" __global__ void __launch_bounds__(256) mask_words(const __grid_constant__ MaskBitsArgs a) {
  const std::int64_t count = static_cast<std::int64_t>(a.B) * a.H * a.M * a.row_words;
  for (std::int64_t n = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; n < count;
       n += std::int64_t{gridDim.x} * blockDim.x) {
    const int word = static_cast<int>(n % a.row_words);
    const std::int64_t row = n / a.row_words;
    const int i = static_cast<int>(row % a.M), h = static_cast<int>(row / a.M % a.H),
              b = static_cast<int>(row / a.M / a.H);
    std::uint32_t bits = 0;
    for (int c = 0; c < 32; ++c) {
      const int j = word * 32 + c;
      bool seen = j < a.N;
      for (int r = 0; r < a.rule_count && seen; ++r) {
        const HoleRule& rule = a.rules[r];
        seen = rule.data[b * rule.strides[0] + h * rule.strides[1] + i / rule.block_queries * rule.strides[2] +
                         j / rule.block_keys * rule.strides[3]] != 0;
      }
      bits |= (seen ? 1U : 0U) << c;
    }
    a.words[n] = bits;
  }
}

// A tile for each block of threads: 0 hides all, 1 some, 2 none.
extern "C" __global__ void __launch_bounds__(128) mask_tiles(const __grid_constant__ MaskBitsArgs a) {
  const int column = static_cast<int>(blockIdx.x) % a.row_tiles,
            rows_of_tiles = (a.M + a.tile_queries - 1) / a.tile_queries;
  const int row_tile = static_cast<int>(blockIdx.x) / a.row_tiles % rows_of_tiles;
  const int head = static_cast<int>(blockIdx.x) / a.row_tiles / rows_of_tiles;  // of B x H
  const int i0 = row_tile * a.tile_queries, i1 = smaller(a.M, i0 + a.tile_queries);
  const int j0 = column * a.tile_keys, j1 = smaller(a.N, j0 + a.tile_keys), words = (j1 - j0 + 31) / 32;
  bool any = false, all = true;
  for (int n = static_cast<int>(threadIdx.x); n < (i1 - i0) * words; n += static_cast<int>(blockDim.x)) {
    const int i = i0 + n / words, w = n % words;
    const std::uint32_t bits = a.words[(static_cast<std::int64_t>(head) * a.M + i) * a.row_words + j0 / 32 + w];
    const int keys = smaller(32, j1 - j0 - w * 32);
    any = any || bits != 0;
    all = all && bits == (keys == 32 ? ~0U : (1U << keys) - 1);
  }
  any = __syncthreads_or(any);
  all = __syncthreads_and(all);
  if (threadIdx.x == 0) a.tiles[blockIdx.x] = any ? (all ? 2 : 1) : 0;
}
