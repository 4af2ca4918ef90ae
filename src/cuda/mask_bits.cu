// Writes what a mask hides inside its intervals as bits, and what each tile of them holds.
#include "cuda/mask_bits.hpp"
#include "cuda/ptx.cuh"

using namespace attend::cuda;

namespace {

// A bit for each of 32 bytes: whether it is not zero.
__device__ __forceinline__ std::uint32_t bits_of_bytes(const std::uint8_t* bytes) {
  std::uint32_t bits = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint4 sixteen = reinterpret_cast<const uint4*>(bytes)[half];
    const std::uint32_t fours[4] = {sixteen.x, sixteen.y, sixteen.z, sixteen.w};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      // The highest bit of every byte that is not zero; a product puts the four side by side.
      const std::uint32_t high = (((fours[n] & 0x7f7f7f7fU) + 0x7f7f7f7fU) | fours[n]) & 0x80808080U;
      bits |= ((high >> 7) * 0x10204080U) >> 28 << (16 * half + 4 * n);
    }
  }
  return bits;
}

// The keys from `first` on, up to 32, that a rule shows to the queries of `row`.
__device__ __forceinline__ std::uint32_t bits_of_rule(const HoleRule& rule, const std::uint8_t* row, int first,
                                                      int keys) {
  std::uint32_t bits = 0;
  int block = first / rule.block_keys, left = (block + 1) * rule.block_keys - first;  // no division for each key
  for (int c = 0; c < keys; ++c, --left) {
    if (left == 0) ++block, left = rule.block_keys;
    bits |= (row[block * rule.strides[3]] != 0 ? 1U : 0U) << c;
  }
  return bits;
}

}  // namespace

// A row of tiles, up to 32 words wide, for each block of threads: a thread has one column of words.
extern "C" __global__ void __launch_bounds__(kMaskThreads) mask_words(const __grid_constant__ MaskBitsArgs a) {
  __shared__ unsigned found[32];  // of a tile: 1 where some key is shown, 2 where some is hidden
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int tile_words = a.tile_keys / 32, tiles = 32 / tile_words, strips = (a.row_tiles + tiles - 1) / tiles;
  const int rows_of_tiles = (a.M + a.tile_queries - 1) / a.tile_queries;
  const int strip = static_cast<int>(blockIdx.x) % strips, row = static_cast<int>(blockIdx.x) / strips;
  const int head = row / rows_of_tiles, h = head % a.H, b = head / a.H, column = strip * tiles + lane / tile_words;
  const int i0 = row % rows_of_tiles * a.tile_queries, i1 = smaller(a.M, i0 + a.tile_queries);
  if (warp == 0) found[lane] = 0;
  __syncthreads();
  if (lane < tiles * tile_words && column < a.row_tiles) {
    const int word = strip * tiles * tile_words + lane, keys = smaller(32, a.N - word * 32);
    const std::uint32_t full = keys == 32 ? ~0U : keys > 0 ? (1U << keys) - 1 : 0U;
    bool some = false, hides = false;
    const auto walk = [&](auto&& bits_of) {
#pragma unroll 4
      for (int i = i0 + warp; i < i1; i += kMaskThreads / 32) {
        const std::uint32_t bits = bits_of(i);
        a.words[(static_cast<std::int64_t>(head) * a.M + i) * a.row_words + word] = bits;
        some = some || bits != 0, hides = hides || bits != full;
      }
    };
    const auto head_of = [&](const HoleRule& rule) { return rule.data + b * rule.strides[0] + h * rule.strides[1]; };
    // Rows of bytes one beside another, as most are: several rows' on their way at a time.
    const HoleRule& only = a.rules[0];
    const std::uint8_t* const bytes = head_of(only) + word * 32;
    if (a.rule_count == 1 && only.blocks == 0 && only.strides[3] == 1 && keys == 32 &&
        (reinterpret_cast<std::uintptr_t>(bytes) | static_cast<std::uintptr_t>(only.strides[2])) % 16 == 0)
      walk([&](int i) { return bits_of_bytes(bytes + i * only.strides[2]); });
    else
      walk([&](int i) {
        std::uint32_t bits = full;
        for (int r = 0; r < a.rule_count && bits != 0; ++r) {
          const HoleRule& rule = a.rules[r];
          bits &= bits_of_rule(rule, head_of(rule) + i / rule.block_queries * rule.strides[2], word * 32, keys);
        }
        return bits;
      });
    atomicOr(&found[lane / tile_words], (some ? 1U : 0U) | (hides ? 2U : 0U));
  }
  __syncthreads();
  const int mine = strip * tiles + lane;
  if (warp != 0 || lane >= tiles || mine >= a.row_tiles) return;
  const int state = (found[lane] & 1U) == 0 ? 0 : (found[lane] & 2U) == 0 ? 2 : 1;
  a.tiles[static_cast<std::int64_t>(row) * a.row_tiles + mine] = MaskTile::of(state, -1);
}

namespace {

// Of a warp: to every tile of a row what is known of those before it.
__device__ __forceinline__ void link_tiles(int count, bool counted, auto&& state_of, MaskTile* to) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int before = -1, total = 0;
  for (int first = 0; first < count; first += 32) {
    const int column = first + lane, state = column < count ? state_of(column) : 0;
    const std::uint32_t shown = __ballot_sync(~0U, state != 0), lower = shown & ((1U << lane) - 1);
    const int nearest = lower != 0 ? first + 31 - __clz(static_cast<int>(lower)) : before;
    if (column < count) to[column] = MaskTile::of(state, counted ? total + __popc(lower) : nearest);
    if (shown != 0) before = first + 31 - __clz(static_cast<int>(shown));
    total += __popc(shown);
  }
}

}  // namespace

// A row of tiles for each warp.
extern "C" __global__ void __launch_bounds__(32) mask_links(const __grid_constant__ MaskBitsArgs a) {
  MaskTile* const tiles = a.tiles + static_cast<std::int64_t>(blockIdx.x) * a.row_tiles;
  wait_for_kernel();
  link_tiles(a.row_tiles, a.counted != 0, [&](int column) { return tiles[column].state(); }, tiles);
}

// A row of tiles of keys for each warp.
extern "C" __global__ void __launch_bounds__(32) mask_key_links(const __grid_constant__ MaskBitsArgs a) {
  const int column = static_cast<int>(blockIdx.x) % a.row_tiles, head = static_cast<int>(blockIdx.x) / a.row_tiles;
  const MaskTile* const tiles = a.tiles + static_cast<std::int64_t>(head) * a.rows_of_tiles * a.row_tiles + column;
  link_tiles(
      a.rows_of_tiles, false, [&](int row) { return tiles[static_cast<std::int64_t>(row) * a.row_tiles].state(); },
      a.key_tiles + static_cast<std::int64_t>(blockIdx.x) * a.rows_of_tiles);
}

// 32 queries by 32 keys for each warp: a word of a query becomes a bit of each key's.
extern "C" __global__ void __launch_bounds__(kMaskThreads) mask_key_words(const __grid_constant__ MaskBitsArgs a) {
  const int lane = static_cast<int>(threadIdx.x) % 32, word = static_cast<int>(blockIdx.x) % a.row_words;
  const std::int64_t head = blockIdx.x / a.row_words;
  const int key = word * 32 + lane;
  for (int q = static_cast<int>(threadIdx.x) / 32; q < a.words_of_key; q += kMaskThreads / 32) {
    const int i = q * 32 + lane;
    const std::uint32_t bits = i < a.M ? a.words[(head * a.M + i) * a.row_words + word] : 0U;
    std::uint32_t mine = 0;
    for (int n = 0; n < 32; ++n) {
      const std::uint32_t of_key = __ballot_sync(~0U, (bits >> n & 1U) != 0);
      if (lane == n) mine = of_key;
    }
    if (key < a.N) a.key_words[(head * a.N + key) * a.words_of_key + q] = mine;
  }
}
