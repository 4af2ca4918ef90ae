// The tiles of additive attention: exponents of rows and keys, scores under the mask, gradients of the scores.
#include "variants/additive_tiles.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/checked.hpp"
#include "base/threads.hpp"
#include "cpu/dispatch.hpp"
#include "ops/rows.hpp"

namespace attend::additive {
namespace {

constexpr std::int64_t kPadding = 16;  // rows are padded to whole vectors of any instruction set
constexpr float kLargestSum = 42.0F;   // e^2x e^2y stays finite up to |x| + |y| = 44

// Calls f(first row, rows, exponents) for runs of rows whose exponents can be multiplied with the tile's, or cannot.
template <class F>
void for_runs(const Block& block, const Work& work, float largest_key, const F& f) {
  const auto fits = [&](std::int64_t r) { return work.largest[r] + largest_key <= kLargestSum; };
  for (std::int64_t r = 0, end = 0; r < block.rows; r = end) {
    for (end = r + 1; end < block.rows && fits(end) == fits(r);) ++end;
    f(r, end - r, fits(r));
  }
}

}  // namespace

float load_floats(const View& x, std::int64_t b, std::int64_t h, std::int64_t i, float* to, std::int64_t padded) {
  const std::int64_t r = (b * x.heads() + h) * x.length() + i, n = x.dim();
  visit_f32_family(x.dtype, [&](auto element) {
    const Row<decltype(element)> row = row_of<decltype(element)>(x, r);
    if (x.dtype == DType::f32 && row.step == sizeof(float)) {
      std::memcpy(to, row.data, static_cast<std::size_t>(n) * sizeof(float));
    } else {
      for (std::int64_t d = 0; d < n; ++d) to[d] = row[d];
    }
  });
  for (std::int64_t d = n; d < padded; ++d) to[d] = 0;
  float largest = 0;
  for (std::int64_t d = 0; d < n; ++d) {
    const float magnitude = std::fabs(to[d]);
    largest = magnitude <= largest ? largest : magnitude;  // a NaN is taken ...
    if (std::isnan(magnitude)) break;                      // ... and stays
  }
  return largest;
}

void store_floats(const MutableView& x, std::int64_t b, std::int64_t h, std::int64_t i, const float* from) {
  visit_f32_family(x.dtype, [&](auto element) {
    const auto row = row_of<decltype(element)>(x, (b * x.heads() + h) * x.length() + i);
    for (std::int64_t d = 0; d < x.dim(); ++d) row.set(d, from[d]);
  });
}

void weighted_sum(const FloatMatrix& p, const FloatMatrix& x, const FloatMatrix& sum, bool finite, void* scratch) {
  if (finite) return block_product(p, x, sum, true, scratch);
  for (std::int64_t i = 0; i < sum.rows; ++i)
    for (std::int64_t j = 0; j < x.rows; ++j) {
      const float weight = p.data[i * p.row_stride + j * p.col_stride];
      if (weight == 0) continue;
      for (std::int64_t e = 0; e < sum.cols; ++e)
        sum.data[i * sum.row_stride + e] += weight * x.data[j * x.row_stride + e];
    }
}

Problem::Problem(const View& queries, const View& keys, const View& weights, const View& values,
                 const MaskPlan& lowered, double factor)
    : B(queries.batch()),
      H(queries.heads()),
      Hk(keys.heads()),
      M(queries.length()),
      N(keys.length()),
      D(queries.dim()),
      E(values.dim()),
      stride(divide_up(D, kPadding) * kPadding),
      tiles(divide_up(N, kKeyTile)),
      scale(factor),
      a(queries),
      b(keys),
      v(values),
      mask(lowered),
      w(checked_product("additive_attention: w", {H, stride})),
      half_sums(H) {
  for (std::int64_t h = 0; h < H; ++h) {
    load_floats(weights, 0, h, 0, w.data() + h * stride, stride);
    double sum = 0;
    for (std::int64_t d = 0; d < D; ++d) sum += static_cast<double>(w[h * stride + d]);
    half_sums[h] = static_cast<float>(sum / 2);
  }
}

Keys::Keys(const Problem& p, bool backward)
    : p_(p),
      columns_(checked_product("additive_attention: keys", {p.B, p.Hk, p.tiles, p.D, kKeyTile})),
      rows_(backward ? checked_product("additive_attention: keys", {p.B, p.Hk, p.tiles, kKeyTile, p.stride}) : 0),
      largest_(checked_product("additive_attention: keys", {p.B, p.Hk, p.tiles})) {
  const Scratch scratch(2 * kKeyTile * p.stride * std::int64_t{sizeof(float)});
  parallel_for(p.B * p.Hk * p.tiles, scratch.workers(), [&](std::int64_t item, int worker) {
    auto* values = static_cast<float*>(scratch.of(worker));
    float* exponents = backward ? rows_.data() + item * kKeyTile * p_.stride : values + kKeyTile * p_.stride;
    largest_[item] = load_tile(item, values);
    kernels().additive_exponents(values, exponents, kKeyTile * p_.stride);
    transpose(exponents, columns_.data() + item * p_.D * kKeyTile);
  });
}

float Keys::load_tile(std::int64_t index, float* to) const {
  const std::int64_t head = index / p_.tiles, j0 = index % p_.tiles * kKeyTile;
  float largest = 0;
  for (std::int64_t j = 0; j < kKeyTile; ++j) {
    float* row = to + j * p_.stride;
    if (j0 + j >= p_.N) {
      std::fill(row, row + p_.stride, 0.0F);
      continue;
    }
    const float magnitude = load_floats(p_.b, head / p_.Hk, head % p_.Hk, j0 + j, row, p_.stride);
    if (!(magnitude <= largest) && !std::isnan(largest)) largest = magnitude;
  }
  return largest;
}

void Keys::transpose(const float* rows, float* columns) const {
  for (std::int64_t d = 0; d < p_.D; ++d)
    for (std::int64_t j = 0; j < kKeyTile; ++j) columns[d * kKeyTile + j] = rows[j * p_.stride + d];
}

std::int64_t Work::bytes(const Problem& p) {
  const std::int64_t floats = 2 * kBlock * p.stride + 2 * kKeyTile * p.stride + 3 * kBlock * kKeyTile + kKeyTile * p.E +
                              2 * kBlock * p.E + kBlock * p.stride + p.stride + 4 * kBlock + 4 * kBlock;
  return floats * std::int64_t{sizeof(float)} + block_product_scratch_bytes() + 64;
}

Work::Work(const Problem& p, void* memory) {
  auto* at = static_cast<char*>(memory);
  product = at, at += divide_up(block_product_scratch_bytes(), 64) * 64;
  const auto take = [&](std::int64_t n) {
    auto* piece = reinterpret_cast<float*>(at);
    at += n * std::int64_t{sizeof(float)};
    return piece;
  };
  q = take(kBlock * p.stride), q_exponents = take(kBlock * p.stride);
  key_rows = take(kKeyTile * p.stride), key_columns = take(kKeyTile * p.stride);
  scores = take(kBlock * kKeyTile), dp = take(kBlock * kKeyTile), ds = take(kBlock * kKeyTile);
  v = take(kKeyTile * p.E), out = take(kBlock * p.E), dout = take(kBlock * p.E);
  dq = take(kBlock * p.stride), dw = take(p.stride);
  largest = take(kBlock), max = take(kBlock), sum = take(kBlock), delta = take(kBlock);
  lo = reinterpret_cast<std::int64_t*>(take(2 * kBlock)), hi = reinterpret_cast<std::int64_t*>(take(2 * kBlock));
}

TileRange::TileRange(const Block& block, const Work& work) {
  std::int64_t lo = std::numeric_limits<std::int64_t>::max(), hi = 0;
  for (std::int64_t r = 0; r < block.rows; ++r) {
    if (work.lo[r] >= work.hi[r]) continue;
    lo = std::min(lo, work.lo[r]);
    hi = std::max(hi, work.hi[r]);
  }
  begin = hi == 0 ? 0 : std::max<std::int64_t>(0, lo) / kKeyTile;
  end = divide_up(hi, kKeyTile);
}

void load_queries(const Problem& p, const Block& block, Work& work) {
  for (std::int64_t r = 0; r < block.rows; ++r)
    work.largest[r] = load_floats(p.a, block.b, block.h, block.i + r, work.q + r * p.stride, p.stride);
  kernels().additive_exponents(work.q, work.q_exponents, block.rows * p.stride);
  fill_intervals(p.mask, block.b, block.i, block.rows, work.lo, work.hi);
}

void load_values(const Problem& p, const Block& block, std::int64_t tile, Work& work) {
  const std::int64_t hk = block.h / (p.H / p.Hk), count = std::min(kKeyTile, p.N - tile * kKeyTile);
  work.v_finite = true;
  for (std::int64_t j = 0; j < count; ++j)
    work.v_finite &= std::isfinite(load_floats(p.v, block.b, hk, tile * kKeyTile + j, work.v + j * p.E, p.E));
  std::fill(work.v + count * p.E, work.v + kKeyTile * p.E, 0.0F);
}

bool make_scores(const Problem& p, const Keys& keys, const Block& block, std::int64_t tile, Work& work) {
  const std::int64_t j0 = tile * kKeyTile, count = std::min(kKeyTile, p.N - j0);
  const bool any = [&] {
    for (std::int64_t r = 0; r < block.rows; ++r)
      if (work.lo[r] < std::min(work.hi[r], j0 + count) && work.hi[r] > j0) return true;
    return false;
  }();
  if (!any) return false;
  const MaskTile seen{block.b, block.h, block.h + 1, block.i, block.i + block.rows, j0, j0 + count};
  if (const KeySpan span = seen_keys(p.mask, seen); span.lo >= span.hi) return false;
  const bool holes = p.mask.has_holes() && !sees_all(p.mask, seen);
  const std::int64_t index = keys.index(block.b, block.h, tile);
  bool loaded = false;
  for_runs(block, work, keys.largest(index), [&](std::int64_t r, std::int64_t rows, bool exponents) {
    if (!exponents && !loaded) {
      keys.load_tile(index, work.key_rows);
      keys.transpose(work.key_rows, work.key_columns);
      loaded = true;
    }
    const float* q = exponents ? work.q_exponents : work.q;
    const AdditiveTile t{
        exponents, rows, p.D, p.stride, q + r * p.stride, exponents ? keys.columns(index) : work.key_columns};
    kernels().additive_scores(t, p.w.data() + block.h * p.stride, p.half_sums[block.h],
                              static_cast<float>(p.scale * kLog2e), work.scores + r * kKeyTile);
  });
  for (std::int64_t r = 0; r < block.rows; ++r) {
    float* row = work.scores + r * kKeyTile;
    const std::int64_t lo = std::clamp<std::int64_t>(work.lo[r] - j0, 0, kKeyTile);
    const std::int64_t hi = std::clamp<std::int64_t>(work.hi[r] - j0, lo, kKeyTile);
    std::fill(row, row + lo, kHidden);
    std::fill(row + hi, row + kKeyTile, kHidden);
    if (holes) hide_holes(p.mask, block.b, block.h, block.i + r, j0, count, row);
  }
  return true;
}

void add_gradients(const Problem& p, const Keys& keys, const Block& block, std::int64_t tile, float* dk, Work& work) {
  const std::int64_t index = keys.index(block.b, block.h, tile);
  std::fill(work.dw, work.dw + p.stride, 0.0F);
  for_runs(block, work, keys.largest(index), [&](std::int64_t r, std::int64_t rows, bool exponents) {
    const float* q = exponents ? work.q_exponents : work.q;  // key_rows hold this tile since make_scores
    const AdditiveTile t{
        exponents, rows, p.D, p.stride, q + r * p.stride, exponents ? keys.rows(index) : work.key_rows};
    kernels().additive_gradients(t, work.ds + r * kKeyTile, work.dq + r * p.stride, dk, work.dw);
  });
}

}  // namespace attend::additive
