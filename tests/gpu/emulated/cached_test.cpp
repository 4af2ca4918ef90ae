// The decoding kernels over caches against arithmetic in double, on the emulated driver: pages, formats, windows,
// terms, rows in groups, moved lengths, what lies outside; and the bits of the kernel without a cache.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "attend/cuda.hpp"
#include "attend/error.hpp"
#include "cuda/driver.hpp"

extern "C" int emulated_allocations();
extern "C" int emulated_synchronizations();
extern "C" void emulated_capture(bool on);
extern "C" void emulated_drop_graph();

namespace {

using namespace attend;
using cuda::CacheFormat;

int checks = 0, failed = 0;
std::mt19937 random_numbers(7);

void check(bool ok, const std::string& what) {
  ++checks;
  if (!ok) ++failed, std::printf("FAILED %s\n", what.c_str());
}

std::uint16_t bits_of(float x, DType dtype) {
  return dtype == DType::f16 ? to_float16(x).bits : to_bfloat16(x).bits;
}
float number(std::uint16_t bits, DType dtype) {
  return dtype == DType::f16 ? to_float(Float16{bits}) : to_float(BFloat16{bits});
}

// [batch, heads, length, dim] of half numbers, contiguous.
struct Halves {
  DType dtype;
  Shape shape;
  std::vector<std::uint16_t> data;

  Halves(DType of, const Shape& sizes)
      : dtype(of), shape(sizes), data(static_cast<std::size_t>(sizes[0] * sizes[1] * sizes[2] * sizes[3] + 8)) {}
  void draw(float spread = 1) {
    std::normal_distribution<float> normal(0, spread);
    for (auto& x : data) x = bits_of(normal(random_numbers), dtype);
  }
  float at(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d) const {
    return number(data[static_cast<std::size_t>(((b * shape[1] + h) * shape[2] + i) * shape[3] + d)], dtype);
  }
  MutableView view() { return {dtype, data.data(), shape, contiguous_strides(shape)}; }
};

struct Case {
  std::string name;
  int B = 2, H = 4, Hk = 2, M = 1, D = 64, E = 0;
  DType dtype = DType::bf16;
  CacheFormat format = CacheFormat::plain;
  int page = 16;   // 0: no table
  int scales = 2;  // of fp8: 2 for each row, 1 for each head, 0 none
  std::vector<int> lengths{};
  std::int64_t left = kUnlimited, right = kUnlimited;
  float softcap = 0;
  double scale = NAN;  // NaN: 1 / sqrt(D)
  bool slopes = false, sinks = false;
  int room = 0;   // tokens beyond the longest
  int far = 0;    // the values' scales lie far apart, around 2^far; 0: they do not
  int rise = 16;  // so many powers of 2 they rise from the first key to the last; or fall after every other 256
};

// A cache whose every unused place holds something that would be seen: NaN, or pages far outside.
struct Cache {
  cuda::CacheView view;
  std::vector<std::uint8_t> k, v;
  std::vector<float> k_scales, v_scales;
  std::vector<std::int32_t> table, lengths;
  std::int64_t pages = 0, page = 0;
  std::int32_t spare = 0;  // a page that nobody uses

  Cache(const Case& c, const Halves& keys, const Halves& values) {
    const int longest = *std::max_element(c.lengths.begin(), c.lengths.end()) + c.room;
    page = c.page > 0 ? c.page : longest;
    const std::int64_t width = c.page > 0 ? (longest + page - 1) / page : 1;
    pages = c.page > 0 ? c.B * width + 3 : c.B;
    const std::int64_t bytes = c.format == CacheFormat::plain ? 2 : 1, E = c.E > 0 ? c.E : c.D;
    const auto side = [&](std::vector<std::uint8_t>& memory, std::vector<float>& scales, std::int64_t dim) {
      const std::int64_t unit = 16 / bytes, row = (dim + unit - 1) / unit * unit;
      memory.assign(static_cast<std::size_t>(pages * page * c.Hk * row * bytes + 16), 0xFF);
      auto* const from =
          reinterpret_cast<std::uint8_t*>((reinterpret_cast<std::uintptr_t>(memory.data()) + 15) / 16 * 16);
      cuda::CachePages made;
      made.data = from;
      made.shape = {pages, c.Hk, page, dim};
      made.strides = {page * c.Hk * row, row, c.Hk * row, 1};
      if (c.format == CacheFormat::plain || (c.format == CacheFormat::fp8 && c.scales == 0)) return made;
      if (c.format == CacheFormat::fp8 && c.scales == 1) {
        for (int h = 0; h < c.Hk; ++h) scales.push_back(0.004F * static_cast<float>(h + 1));
        made.scales = view_of(scales.data(), {1, c.Hk, 1, 1});
      } else {
        scales.assign(static_cast<std::size_t>(pages * c.Hk * page), NAN);
        made.scales = view_of(scales.data(), {pages, c.Hk, page, 1});
      }
      return made;
    };
    view.format = c.format;
    view.k = side(k, k_scales, c.D), view.v = side(v, v_scales, E);
    if (c.page > 0) {
      std::vector<std::int32_t> order(static_cast<std::size_t>(pages));
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random_numbers);
      table.assign(static_cast<std::size_t>(c.B * (width + 2)), -1);
      std::size_t next = 0;
      spare = order.back();
      for (int b = 0; b < c.B; ++b)
        for (std::int64_t n = 0; n < width; ++n)
          table[static_cast<std::size_t>(b * (width + 2) + n)] =
              n * page < c.lengths[static_cast<std::size_t>(b)] ? order[next++] : 1 << 30;
      view.table = table.data(), view.table_pages = width, view.table_stride = width + 2;
    }
    // In two steps: all but the last few tokens of each, and those.
    lengths.assign(static_cast<std::size_t>(c.B), 0);
    view.lengths = lengths.data();
    for (int b = 0; b < c.B; ++b) {
      const int n = c.lengths[static_cast<std::size_t>(b)], late = std::min(n, 3);
      cuda::CacheView one = view;
      one.lengths = lengths.data() + b;
      if (c.page > 0)
        one.table = table.data() + b * view.table_stride;
      else
        one.k.data = static_cast<char*>(view.k.data) + b * view.k.strides[0] * bytes,
        one.v.data = static_cast<char*>(view.v.data) + b * view.v.strides[0] * bytes;
      if (c.page == 0) {
        for (cuda::CachePages* side_of : {&one.k, &one.v}) {
          side_of->shape[0] = 1;
          if (side_of->scales && side_of->scales->shape[0] > 1) {
            side_of->scales->data = static_cast<float*>(side_of->scales->data) + b * side_of->scales->strides[0];
            side_of->scales->shape[0] = 1;
          }
        }
      }
      for (const auto& [from, count] : {std::pair{0, n - late}, std::pair{n - late, late}}) {
        if (count == 0) continue;
        lengths[static_cast<std::size_t>(b)] = from;
        const auto part = [&](const Halves& x) {
          View part_of = View(const_cast<Halves&>(x).view());
          part_of.data =
              static_cast<const std::uint16_t*>(part_of.data) + b * part_of.strides[0] + from * part_of.strides[2];
          part_of.shape[0] = 1, part_of.shape[2] = count;
          return part_of;
        };
        cuda::append(part(keys), part(values), one, c.format == CacheFormat::int8 || c.scales == 2);
      }
      lengths[static_cast<std::size_t>(b)] = n;
    }
  }
  // Scales that rise or fall, and up and down on the way, of both signs.
  void spread_scales(const Case& c) {
    for (int b = 0; b < c.B; ++b)
      for (int h = 0; h < c.Hk; ++h)
        for (int j = 0; j < c.lengths[static_cast<std::size_t>(b)]; ++j) {
          const std::int64_t p = view.table[b * view.table_stride + j / page];
          float& scale = v_scales[static_cast<std::size_t>((p * c.Hk + h) * page + j % page)];
          const int rise = c.rise > 0 ? j * c.rise / c.lengths[static_cast<std::size_t>(b)] : j / 256 % 2 * c.rise;
          const int exponent = c.far + rise + j % 5 - 2;
          scale = std::ldexp(j % 7 == 3 ? -scale : scale, exponent);
        }
  }
  // What the cache holds, as numbers.
  double value(const cuda::CachePages& side, int b, int h, std::int64_t j, std::int64_t d, DType dtype) const {
    const std::int64_t p = view.table != nullptr ? view.table[b * view.table_stride + j / page] : b;
    const std::int64_t at = p * side.strides[0] + h * side.strides[1] + j % page * side.strides[2] + d;
    if (view.format == CacheFormat::plain) return number(static_cast<const std::uint16_t*>(side.data)[at], dtype);
    double scale = 1;
    if (side.scales) {
      const auto& s = *side.scales;
      const auto step = [&](std::size_t n) { return s.shape[n] == 1 ? 0 : s.strides[n]; };
      scale = static_cast<const float*>(s.data)[p * step(0) + h * step(1) + j % page * step(2)];
    }
    const std::uint8_t bits = static_cast<const std::uint8_t*>(side.data)[at];
    if (view.format == CacheFormat::int8) return scale * static_cast<std::int8_t>(bits);
    const int e = bits >> 3 & 15, m = bits & 7;
    const double x = e == 0 ? std::ldexp(m, -9) : std::ldexp(8 + m, e - 10);
    return scale * (bits & 128 ? -x : x);
  }
};

struct Result {
  Halves out;
  std::vector<float> lse;
};

Result run(const Case& c, Halves& q, const Cache& cache, const std::vector<float>& slopes,
           const std::vector<float>& sinks, bool own_memory = false) {
  const std::int64_t E = c.E > 0 ? c.E : c.D;
  Result result{Halves(c.dtype, {c.B, c.H, c.M, E}),
                std::vector<float>(static_cast<std::size_t>(c.B * c.H * c.M), 77.0F)};
  std::fill(result.out.data.begin(), result.out.data.end(), std::uint16_t{0x7FFF});
  AttentionOptions options;
  if (c.left != kUnlimited || c.right != kUnlimited)
    options.mask = c.left == kUnlimited && c.right == 0 ? causal() : window(c.left, c.right);
  options.softcap = c.softcap;
  if (!std::isnan(c.scale)) options.scale = c.scale;
  if (c.slopes) options.alibi_slopes = view_of(slopes.data(), {1, c.H, 1, 1});
  if (c.sinks) options.sinks = view_of(sinks.data(), {1, c.H, 1, 1});
  AttentionExtras extras;
  extras.lse = view_of(result.lse.data(), {c.B, c.H, c.M, 1});
  std::vector<char> memory;
  cuda::WorkingMemory working;
  if (own_memory) {
    working.bytes = cuda::working_bytes(q.view(), cache.view);
    memory.assign(static_cast<std::size_t>(working.bytes + 256), '\xFF');
    working.data = reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(memory.data()) + 255) / 256 * 256);
  }
  cuda::attention(q.view(), cache.view, result.out.view(), options, extras, nullptr, working);
  return result;
}

void compare(const Case& c, const Halves& q, const Cache& cache, const Result& got, const std::vector<float>& slopes,
             const std::vector<float>& sinks) {
  const int E = c.E > 0 ? c.E : c.D, G = c.H / c.Hk;
  double worst = 0, worst_lse = 0;
  for (int b = 0; b < c.B; ++b)
    for (int h = 0; h < c.H; ++h)
      for (int i = 0; i < c.M; ++i) {
        const int n = c.lengths[static_cast<std::size_t>(b)], p = n - c.M + i;
        std::vector<double> s;
        std::vector<int> keys;
        for (int j = 0; j < n; ++j) {
          if ((c.left != kUnlimited && j < p - c.left) || (c.right != kUnlimited && j > p + c.right)) continue;
          double x = 0;
          for (int d = 0; d < c.D; ++d)
            x += double{q.at(b, h, i, d)} * cache.value(cache.view.k, b, h / G, j, d, c.dtype);
          x *= std::isnan(c.scale) ? 1 / std::sqrt(static_cast<double>(c.D)) : c.scale;
          if (c.softcap > 0) x = c.softcap * std::tanh(x / c.softcap);
          if (c.slopes) x -= double{slopes[static_cast<std::size_t>(h)]} * std::abs(p - j);
          s.push_back(x), keys.push_back(j);
        }
        double top = c.sinks ? sinks[static_cast<std::size_t>(h)] : -INFINITY;
        for (const double x : s) top = std::max(top, x);
        double sum = c.sinks ? std::exp(sinks[static_cast<std::size_t>(h)] - top) : 0;
        for (const double x : s) sum += std::exp(x - top);
        const double lse = sum > 0 ? top + std::log(sum) : -INFINITY;
        const float got_lse = got.lse[static_cast<std::size_t>((b * c.H + h) * c.M + i)];
        worst_lse =
            std::max(worst_lse, lse == -INFINITY ? (got_lse == -INFINITY ? 0.0 : 1e9)
                                                 : std::abs(lse - double{got_lse}) / (1e-3 + 1e-6 * std::abs(lse)));
        std::vector<double> right(static_cast<std::size_t>(E)), spread(right);
        double heaviest = 0;  // of 8 bits, what is below 2^-30 of it is lost
        for (std::size_t n1 = 0; n1 < s.size(); ++n1)
          for (int e = 0; e < E; ++e) {
            const double y = std::exp(s[n1] - lse) * cache.value(cache.view.v, b, h / G, keys[n1], e, c.dtype);
            right[static_cast<std::size_t>(e)] += y, spread[static_cast<std::size_t>(e)] += std::abs(y);
            if (c.format != CacheFormat::plain) heaviest = std::max(heaviest, std::abs(y));
          }
        for (int e = 0; e < E; ++e) {
          const double unit = c.dtype == DType::bf16 ? 0x1p-8 : 0x1p-11, x = right[static_cast<std::size_t>(e)];
          const double bound =
              unit * (std::abs(x) + spread[static_cast<std::size_t>(e)]) + (c.rise > 0 ? 1e-6 : 0) + 0x1p-30 * heaviest;
          const double error = std::abs(double{got.out.at(b, h, i, e)} - x) / bound;
          worst = std::max(worst, std::isnan(error) ? 1e9 : error);
        }
      }
  check(worst <= 1 && worst_lse <= 1,
        c.name + ": " + std::to_string(worst) + " of the bound, lse " + std::to_string(worst_lse));
}

void same_as_without(const Case& c, Halves& q, const Cache& cache, const Result& got);

// The bits of a head, whatever the scores of one beside it are; and of a window, whatever became of pages that lie
// before it.
void same_beside_others(const Case& c, const Halves& q, const Cache& cache, const Result& got,
                        const std::vector<float>& slopes, const std::vector<float>& sinks) {
  const std::int64_t E = c.E > 0 ? c.E : c.D;
  Halves other = q;
  for (std::int64_t b = 0; b < c.B; ++b)
    for (std::int64_t n = 0; n < c.M * c.D; ++n) {
      std::uint16_t& x = other.data[static_cast<std::size_t>(b * c.H * c.M * c.D + n)];
      x = bits_of(-30 * number(x, c.dtype), c.dtype);
    }
  const Result beside = run(c, other, cache, slopes, sinks);
  bool same = true;
  for (std::int64_t b = 0; b < c.B; ++b)
    same = same &&
           std::equal(got.out.data.begin() + (b * c.H + 1) * c.M * E, got.out.data.begin() + (b + 1) * c.H * c.M * E,
                      beside.out.data.begin() + (b * c.H + 1) * c.M * E);
  check(same, c.name + ": the same bits beside another head");
  if (c.left == kUnlimited || c.page == 0) return;
  Cache left = cache;
  for (std::int64_t b = 0; b < c.B; ++b)
    for (std::int64_t n = 0; (n + 1) * c.page <= c.lengths[static_cast<std::size_t>(b)] - c.M - c.left; ++n)
      left.table[static_cast<std::size_t>(b * cache.view.table_stride + n)] = cache.spare;
  left.view.table = left.table.data();
  Halves queries = q;
  const Result without = run(c, queries, left, slopes, sinks);
  check(without.out.data == got.out.data && without.lse == got.lse, c.name + ": pages before the window are not read");
}

void test(Case c) {
  if (c.lengths.empty()) c.lengths = {700, 333};
  c.B = static_cast<int>(c.lengths.size());
  const int longest = std::max(1, *std::max_element(c.lengths.begin(), c.lengths.end()));
  const std::int64_t E = c.E > 0 ? c.E : c.D;
  Halves q(c.dtype, {c.B, c.H, c.M, c.D}), k(c.dtype, {c.B, c.Hk, longest, c.D}), v(c.dtype, {c.B, c.Hk, longest, E});
  q.draw(), k.draw(), v.draw(1e-3F);
  std::vector<float> slopes, sinks;
  for (int h = 0; h < c.H; ++h)
    slopes.push_back(0.01F * static_cast<float>(h + 1)), sinks.push_back(0.5F * static_cast<float>(h) - 1);
  Cache cache(c, k, v);
  if (c.far != 0) cache.spread_scales(c);
  const Result got = run(c, q, cache, slopes, sinks);
  compare(c, q, cache, got, slopes, sinks);
  const int before = emulated_allocations();
  const Result again = run(c, q, cache, slopes, sinks, true);
  check(got.out.data == again.out.data && got.lse == again.lse, c.name + ": the same bits in memory of the caller's");
  check(emulated_allocations() == before, c.name + ": nothing is allocated");
  // Each sequence alone.
  for (int b = 0; b < c.B && c.B > 1 && c.page > 0; ++b) {
    Case one = c;
    one.B = 1, one.lengths = {c.lengths[static_cast<std::size_t>(b)]};
    Cache part = cache;
    part.view.table = cache.table.data() + b * cache.view.table_stride, part.view.lengths = cache.lengths.data() + b;
    Halves row(c.dtype, {1, c.H, c.M, c.D});
    std::copy_n(q.data.begin() + b * c.H * c.M * c.D, c.H * c.M * c.D, row.data.begin());
    const Result alone = run(one, row, part, slopes, sinks);
    const std::int64_t size = c.H * c.M * E;
    check(std::equal(alone.out.data.begin(), alone.out.data.begin() + size, got.out.data.begin() + b * size) &&
              std::equal(alone.lse.begin(), alone.lse.end(), got.lse.begin() + b * c.H * c.M),
          c.name + ": the same bits alone");
  }
  same_as_without(c, q, cache, got);
  same_beside_others(c, q, cache, got, slopes, sinks);
}

// Over as many contiguous keys, by the kernel that knows no cache.
void same_as_without(const Case& c, Halves& q, const Cache& cache, const Result& got) {
  if (c.format != CacheFormat::plain || c.M * c.H / c.Hk > 8 || c.softcap > 0 || c.slopes || c.sinks ||
      !std::isnan(c.scale))
    return;
  const int E = c.E > 0 ? c.E : c.D;
  for (int b = 0; b < c.B; ++b) {
    const int n = c.lengths[static_cast<std::size_t>(b)];
    if (n <= 128 || c.D % 8 != 0 || E % 8 != 0) continue;
    Halves row(c.dtype, {1, c.H, c.M, c.D}), k(c.dtype, {1, c.Hk, n, c.D}), v(c.dtype, {1, c.Hk, n, E}),
        out(c.dtype, {1, c.H, c.M, E});
    std::copy_n(q.data.begin() + b * c.H * c.M * c.D, c.H * c.M * c.D, row.data.begin());
    for (int h = 0; h < c.Hk; ++h)
      for (int j = 0; j < n; ++j) {
        for (int d = 0; d < c.D; ++d)
          k.data[static_cast<std::size_t>((h * n + j) * c.D + d)] =
              bits_of(static_cast<float>(cache.value(cache.view.k, b, h, j, d, c.dtype)), c.dtype);
        for (int e = 0; e < E; ++e)
          v.data[static_cast<std::size_t>((h * n + j) * E + e)] =
              bits_of(static_cast<float>(cache.value(cache.view.v, b, h, j, e, c.dtype)), c.dtype);
      }
    AttentionOptions options;
    if (c.left != kUnlimited || c.right != kUnlimited)
      options.mask = c.left == kUnlimited && c.right == 0 ? causal() : window(c.left, c.right);
    cuda::attention(row.view(), k.view(), v.view(), out.view(), options);
    const std::int64_t size = c.H * c.M * E;
    check(std::equal(out.data.begin(), out.data.begin() + size, got.out.data.begin() + b * size),
          c.name + ": the bits of attention without a cache, " + std::to_string(n) + " keys");
  }
}

template <class F>
void refused(const std::string& what, F&& call) {
  try {
    call();
    check(false, what + " is refused");
  } catch (const InvalidArgument& error) {
    check(std::string(error.what()).find("expected") != std::string::npos ||
              std::string(error.what()).find("not supported") != std::string::npos,
          what + ": " + error.what());
  }
}

void hostile() {
  Case c{.name = "hostile", .lengths = {200, 100}};
  Halves q(c.dtype, {2, 4, 1, 64}), k(c.dtype, {2, 2, 200, 64}), v(c.dtype, {2, 2, 200, 64}),
      out(c.dtype, {2, 4, 1, 64});
  q.draw(), k.draw(), v.draw();
  for (const CacheFormat format : {CacheFormat::plain, CacheFormat::int8, CacheFormat::fp8}) {
    c.format = format;
    Cache cache(c, k, v);
    const Result right = run(c, q, cache, {}, {});
    // A length beyond the table is cut to it, below zero to none. 200 tokens fill 12.5 pages of 13.
    cache.lengths[0] = 1 << 30, cache.lengths[1] = -5;
    for (int n = 200; n < 208; ++n) cache.lengths[0] = 1 << 30;
    const Result cut = run(c, q, cache, {}, {});
    check(std::all_of(cut.lse.begin() + 4, cut.lse.end(), [](float x) { return x == -INFINITY; }),
          "a negative length is none");
    // Pages that do not exist are not read; the other sequence keeps its bits.
    cache.lengths[0] = 200, cache.lengths[1] = 100;
    for (std::int64_t n = 0; n < cache.view.table_pages; ++n)
      cache.table[static_cast<std::size_t>(n)] = n % 2 == 0 ? -(1 << 30) : 0x7FFFFFFF;
    const Result other = run(c, q, cache, {}, {});
    check(std::equal(right.out.data.begin() + 256, right.out.data.begin() + 512, other.out.data.begin() + 256),
          "the neighbour of a sequence without pages");
    check(std::all_of(other.out.data.begin(), other.out.data.begin() + 256,
                      [](std::uint16_t x) { return (x & 0x7FFF) == 0; }) ||
              format != CacheFormat::plain,
          "pages that do not exist count as zeros");
    cuda::append(View(k.view()), View(v.view()), cache.view);  // nor written
    cache.lengths[0] = 0x7FFFFFFF;
    cuda::append(View(k.view()), View(v.view()), cache.view);
  }
  c.format = CacheFormat::plain;
  Cache cache(c, k, v);
  const auto call = [&](const cuda::CacheView& view, const AttentionOptions& options = {}) {
    cuda::attention(q.view(), view, out.view(), options);
  };
  cuda::CacheView bad = cache.view;
  bad.format = CacheFormat::int8;
  refused("int8 without scales", [&] { call(bad); });
  bad = cache.view, bad.table = nullptr, bad.k.shape[0] = bad.v.shape[0] = 1;
  refused("fewer sequences than the batch", [&] { call(bad); });
  bad = cache.view, bad.k.shape[2] = bad.v.shape[2] = 8;
  refused("pages of 8 tokens", [&] { call(bad); });
  bad = cache.view, bad.table_stride = 1;
  refused("rows of the table that overlap", [&] { call(bad); });
  bad = cache.view, bad.v.shape[1] = 1;
  refused("fewer heads of values", [&] { call(bad); });
  bad = cache.view, bad.k.strides[2] = 65;
  refused("odd strides", [&] { call(bad); });
  refused("a prefix", [&] { call(cache.view, {.mask = prefix({3})}); });
  refused("dropout", [&] { call(cache.view, {.dropout = {0.5, 1}}); });
  refused("too little memory", [&] {
    alignas(256) static char small[256];
    cuda::attention(q.view(), cache.view, out.view(), {}, {}, nullptr, {small, 256});
  });
  refused("out in the cache", [&] {
    MutableView inside = out.view();
    inside.data = cache.view.k.data;
    cuda::attention(q.view(), cache.view, inside);
  });
  bad = cache.view, bad.lengths = nullptr;
  refused("append without lengths", [&] { cuda::append(k.view(), v.view(), bad); });
}

// One for each stream: no launches on another get it before the device was waited for, as many as there may be.
void stream_counters() {
  cuda::DeviceState& device = cuda::device_state();
  const auto of = [&](std::uintptr_t n) { return cuda::take_counter(device, reinterpret_cast<CUstream>(n)).counter; };
  int* const first = of(0x1000);
  bool apart = true;
  for (int n = 0; n < 5000; ++n) apart = apart && of(0x2000) != first;
  check(apart && of(0x1000) == first, "a counter for each stream");
  for (std::uintptr_t n = 0; n < 5000; ++n) apart = apart && of(0x10000 + 16 * n) != of(0x10000 + 16 * n + 16);
  check(apart && of(0x1000) != of(0x2000), "many streams");
  // Streams beyond all counters: since the device was last waited for, no two of them have the same one.
  std::map<int*, std::uintptr_t> holders;
  const int before = emulated_synchronizations();
  int waited = before;
  for (std::uintptr_t n = 0; n < 200'000; ++n) {
    int* const counter = of(0x1000000 + 16 * n);
    if (emulated_synchronizations() != waited) waited = emulated_synchronizations(), holders.clear();
    apart = apart && holders.emplace(counter, n).second;
  }
  check(apart, "a counter is no other stream's until the device has been waited for");
  check(waited - before == 3, "it is waited for once in 65,536 streams");
}

// Launches in graphs: each has a counter of its own as long as the graph lives, and any number of graphs may come.
void counters() {
  cuda::DeviceState& device = cuda::device_state();
  emulated_capture(true);
  for (int graph = 0; graph < 1000; ++graph) {
    std::vector<int*> taken;
    for (int n = 0; n < 300; ++n) taken.push_back(cuda::take_counter(device, nullptr).counter);
    std::sort(taken.begin(), taken.end());
    check(std::adjacent_find(taken.begin(), taken.end()) == taken.end(), "a counter for each launch");
    check(*taken.front() == 0 && *taken.back() == 0, "counters begin at zero");
    emulated_drop_graph();
  }
  int live = 0;
  try {
    while (live < 1 << 20) cuda::take_counter(device, nullptr), ++live;
  } catch (const std::runtime_error& error) {
    check(std::string(error.what()).find("destroy") != std::string::npos, error.what());
  }
  check(live == 1 << 18, "262,144 launches in graphs that live");
  emulated_drop_graph();
  check(cuda::take_counter(device, nullptr).counter != nullptr, "counters are given back");
  emulated_drop_graph();
  emulated_capture(false);
}

}  // namespace

int main(int argc, char** argv) {
  setenv("EMULATED_CAPABILITY", "90", 1);
  if (!cuda::available()) return std::printf("no emulated driver: %s\n", cuda::why_not().c_str()), 1;
  const std::string only = argc > 1 ? argv[1] : "";
  std::vector<Case> cases;
  for (const int D : {64, 128, 256})
    for (const CacheFormat format : {CacheFormat::plain, CacheFormat::int8, CacheFormat::fp8})
      for (const DType dtype : {DType::bf16, DType::f16}) {
        const std::string name = "D" + std::to_string(D) +
                                 (format == CacheFormat::plain  ? ""
                                  : format == CacheFormat::int8 ? " int8"
                                                                : " fp8") +
                                 (dtype == DType::bf16 ? " bf16" : " f16");
        const Case base{.name = name, .D = D, .dtype = dtype, .format = format};
        Case c = base;
        c.name += " pages of 16", c.lengths = {333, 150, 5};
        cases.push_back(c);
        c = base, c.name += " pages of 48, window", c.page = 48, c.left = 150, c.right = 0, c.lengths = {400, 129},
        c.room = 2000;
        cases.push_back(c);
      }
  for (const CacheFormat format : {CacheFormat::plain, CacheFormat::int8, CacheFormat::fp8}) {
    const std::string name = format == CacheFormat::plain ? "plain " : format == CacheFormat::int8 ? "int8 " : "fp8 ";
    const Case base{.name = name, .format = format};
    const auto add = [&](const char* what, auto&& change) {
      Case c = base;
      c.name += what;
      change(c);
      cases.push_back(c);
    };
    add("no table", [](Case& c) { c.page = 0, c.lengths = {517, 60}; });
    add("empty sequences", [](Case& c) { c.lengths = {0, 300, 0, 1, 16, 0}; });
    add("one long among short",
        [](Case& c) { c.H = c.Hk = 1, c.lengths = {3, 2500, 40, 40, 40, 40, 40, 40, 40}, c.page = 64; });
    add("forty sequences", [](Case& c) { c.H = c.Hk = 1, c.lengths.assign(40, 20), c.lengths[33] = 300; });
    add("causal, three queries", [](Case& c) { c.M = 3, c.right = 0, c.lengths = {300, 2}; });
    add("rows in groups", [](Case& c) { c.M = 3, c.H = 12, c.Hk = 2, c.right = 0, c.lengths = {300, 50}; });
    add("soft cap, ALiBi, sinks", [](Case& c) { c.softcap = 2, c.slopes = c.sinks = true, c.lengths = {300, 0}; });
    add("a negative scale", [](Case& c) { c.scale = -0.2, c.lengths = {300, 50}; });
    add("a scale of zero", [](Case& c) { c.scale = 0, c.lengths = {300, 50}; });
    add("a huge scale", [](Case& c) { c.scale = 1e12, c.lengths = {700, 50}; });
    add("value dim", [](Case& c) { c.D = 128, c.E = 64, c.lengths = {200}; });
    add("dims of 40", [](Case& c) { c.D = 40, c.E = 72, c.lengths = {200}; });
    if (format != CacheFormat::plain)
      for (const int far : {-80, 1, 70})
        add("scales far apart", [&](Case& c) { c.far = far, c.M = 2, c.lengths = {700, 90}; });
    if (format != CacheFormat::plain)  // large ones beside small weights, before the first large weight
      add("scales that fall", [&](Case& c) { c.far = 60, c.rise = -60, c.scale = 30, c.lengths = {5000}; });
    add("a wide window", [](Case& c) { c.left = 100, c.right = 20, c.M = 2, c.lengths = {300}; });
  }
  cases.push_back(
      {.name = "fp8, a scale for each head", .format = CacheFormat::fp8, .scales = 1, .lengths = {300, 20}});
  cases.push_back({.name = "fp8 without scales", .format = CacheFormat::fp8, .scales = 0, .lengths = {300, 20}});
  cases.push_back({.name = "long parts", .H = 1, .Hk = 1, .page = 16, .lengths = {140000}, .left = 12000, .right = 0});
  for (const Case& c : cases)
    if (c.name.find(only) != std::string::npos) test(c);
  if (only.empty() || only == "hostile") hostile();
  if (only.empty() || only == "counters") counters(), stream_counters();
  std::printf("%d checks on the emulated driver, %d failed\n", checks, failed);
  return failed != 0;
}
