// Chunks of linear attention: rows in f32, features, decays, states.
#include "variants/linear_attention_chunks.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/elements.hpp"
#include "base/threads.hpp"

namespace attend::linear {
namespace {

using Kind = FeatureMap::Kind;

std::size_t at(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

template <class Void>
auto* row_address(const BasicView<Void>& x, std::int64_t b, std::int64_t h, std::int64_t i) {
  using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
  return static_cast<Byte*>(x.data) + offset_of(x.strides, b, h, i, 0) * size_of(x.dtype);
}

}  // namespace

Problem::Problem(View q_view, View k_view, View v_view, const LinearAttentionOptions& given)
    : q(q_view), k(k_view), v(v_view), options(given) {
  B = q.batch(), H = q.heads(), Hk = k.heads(), M = q.length(), N = k.length(), D = q.dim(), E = v.dim();
  const Shape state = linear_state_shape(q, k, v, given);
  Hs = state[1], F = state[2], G = Hs == 0 ? 0 : H / Hs, units = B * Hs;
  normalise = given.normalise, delta = given.beta.has_value();
}

std::int64_t Problem::visible_keys(std::int64_t b) const {
  return options.lengths.empty() ? N : options.lengths[at(b)];
}

Chunk Problem::chunk(const Unit& unit, std::int64_t c, std::int64_t length) const {
  const std::int64_t first = c * kChunk, rows = std::min(kChunk, length - first);
  return {unit, first, rows, std::clamp<std::int64_t>(visible_keys(unit.b) - first, 0, rows)};
}

std::int64_t Workspace::bytes(const Problem& problem) {
  const std::int64_t dims =
      checked_product("linear_attention", {kChunk, 4 * problem.F + 3 * problem.E + 2 * problem.D + 4 * kChunk + 6});
  const std::int64_t state = checked_product("linear_attention", {problem.F, problem.E + 1});
  constexpr std::int64_t kPadding = 64 * 16;  // each part starts at a cache line
  return checked_product("linear_attention", {dims + state + kPadding, 4}) + block_product_scratch_bytes();
}

Workspace::Workspace(const Problem& problem, void* memory) {
  auto* next = static_cast<float*>(memory);
  const auto take = [&](std::int64_t count) {
    float* here = next;
    next += (count + 15) / 16 * 16;
    return here;
  };
  for (float** f : {&k, &q, &f1, &f2}) *f = take(kChunk * problem.F);
  for (float** e : {&v, &o, &e1}) *e = take(kChunk * problem.E + 1);
  for (float** d : {&raw, &draw}) *d = take(kChunk * problem.D);
  for (float** s : {&p, &dp, &kk, &ratio}) *s = take(kChunk * kChunk);
  for (float*& r : row) r = take(kChunk);
  state = take(problem.state_floats());
  product = next;
}

void Workers::load_decays(int worker, const Workspace& w, const Chunk& chunk, bool ratios, Decays& decays) {
  decays.any = problem_.options.log_decay.has_value();
  decays.total = 1;
  decays.ratio = nullptr;
  if (!decays.any) {
    std::fill_n(decays.from_start, chunk.rows, 1.0F);
    std::fill_n(decays.to_end, chunk.rows, 1.0F);
    return;
  }
  const View& log_decay = *problem_.options.log_decay;
  // Sums of logs to base 2, in double. A decay below 2^-1000 is zero in f32; held there, no difference is inf - inf.
  double sum[kChunk];
  double total = 0;
  for (std::int64_t i = 0; i < chunk.rows; ++i) {
    if (i < chunk.visible)
      total += std::max(-1000.0, scalar_at(problem_, log_decay, chunk.unit, chunk.first + i) * std::numbers::log2e);
    sum[i] = total;
  }
  float power[kChunk];
  for (std::int64_t i = 0; i < chunk.rows; ++i) power[i] = static_cast<float>(sum[i]);
  kernels().exp2(power, decays.from_start, chunk.rows);
  for (std::int64_t i = 0; i < chunk.rows; ++i) power[i] = static_cast<float>(total - sum[i]);
  kernels().exp2(power, decays.to_end, chunk.rows);
  decays.total = decays.from_start[chunk.rows - 1];
  if (!ratios) return;
  decays.ratio = w.ratio;
  const bool repeats = log_decay.length() == 1 && chunk.rows == kChunk && chunk.visible == kChunk;
  const std::int64_t key = repeats ? chunk.unit.b * problem_.Hs + chunk.unit.s : -1;
  std::int64_t& held = ratio_of_[at(worker)];
  if (repeats && held == key) return;
  held = key;
  for (std::int64_t i = 0; i < chunk.rows; ++i) {
    for (std::int64_t j = 0; j <= i; ++j) power[j] = static_cast<float>(sum[i] - sum[j]);
    kernels().exp2(power, w.ratio + i * chunk.rows, i + 1);
  }
}

void load_rows(const View& x, std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t rows, float* to) {
  rows_kernels().load_rows(x.dtype, row_address(x, b, h, first), x.strides[2], x.strides[3], rows, x.dim(), to);
}

void store_rows(const MutableView& x, std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t rows,
                const float* from, const float* factors, float factor) {
  rows_kernels().store_rows(x.dtype, row_address(x, b, h, first), x.strides[2], x.strides[3], rows, x.dim(), from,
                            factors, factor);
}

void load_features(const Problem& p, const Workspace& w, const View& x, std::int64_t b, std::int64_t h,
                   std::int64_t first, std::int64_t rows, float* to) {
  const FeatureMap& map = p.options.map;
  load_rows(x, b, h, first, rows, map.kind == Kind::given ? w.raw : to);
  if (map.kind == Kind::elu_plus_one) rows_kernels().features(FeatureKernel::elu_plus_one, to, rows * p.F);
  if (map.kind == Kind::relu) rows_kernels().features(FeatureKernel::relu, to, rows * p.F);
  if (map.kind != Kind::given) return;
  for (std::int64_t r = 0; r < rows; ++r)
    map.value_f32(std::span<const float>(w.raw + r * p.D, at(p.D)), std::span<float>(to + r * p.F, at(p.F)));
}

float* feature_gradient(const Problem& p, const Workspace& w, const View& x, std::int64_t b, std::int64_t h,
                        std::int64_t first, std::int64_t rows, const float* features, float* gradient) {
  const FeatureMap& map = p.options.map;
  const auto known = [&](FeatureKernel kind) { rows_kernels().feature_gradient(kind, features, gradient, rows * p.F); };
  if (map.kind == Kind::elu_plus_one) known(FeatureKernel::elu_plus_one);
  if (map.kind == Kind::relu) known(FeatureKernel::relu);
  if (map.kind != Kind::given) return gradient;
  load_rows(x, b, h, first, rows, w.raw);
  for (std::int64_t r = 0; r < rows; ++r)
    map.gradient_f32(std::span<const float>(w.raw + r * p.D, at(p.D)),
                     std::span<const float>(gradient + r * p.F, at(p.F)), std::span<float>(w.draw + r * p.D, at(p.D)));
  return w.draw;
}

void load_keys(const Problem& p, const Workspace& w, const Chunk& chunk, float* to) {
  load_features(p, w, p.k, chunk.unit.b, chunk.unit.kv, chunk.first, chunk.visible, to);
  std::fill(to + chunk.visible * p.F, to + chunk.rows * p.F, 0.0F);
}

void load_values(const Problem& p, const Chunk& chunk, float* to) {
  load_rows(p.v, chunk.unit.b, chunk.unit.kv, chunk.first, chunk.visible, to);
  std::fill(to + chunk.visible * p.E, to + chunk.rows * p.E, 0.0F);
}

double scalar_at(const Problem& p, const View& x, const Unit& unit, std::int64_t t) {
  return load(x, x.batch() == 1 ? 0 : unit.b, unit.s * x.heads() / p.Hs, x.length() == 1 ? 0 : t, 0);
}

void load_beta(const Problem& p, const Chunk& chunk, float* to) {
  for (std::int64_t i = 0; i < chunk.rows; ++i)
    to[i] = i < chunk.visible ? static_cast<float>(scalar_at(p, *p.options.beta, chunk.unit, chunk.first + i)) : 0.0F;
}

void load_state(const Problem& p, const std::optional<View>& x, const Unit& unit, float* to) {
  if (!x) {
    std::fill_n(to, p.state_floats(), 0.0F);
    return;
  }
  const char* from = row_address(*x, unit.b, unit.s, 0);
  rows_kernels().load_rows(x->dtype, from, x->strides[2], x->strides[3], p.F, p.E, to);
  if (p.normalise)
    rows_kernels().load_rows(x->dtype, from + p.E * x->strides[3] * size_of(x->dtype), 0, x->strides[2], 1, p.F,
                             to + p.F * p.E);
}

void store_state(const Problem& p, const MutableView& x, const Unit& unit, const float* from) {
  char* to = row_address(x, unit.b, unit.s, 0);
  rows_kernels().store_rows(x.dtype, to, x.strides[2], x.strides[3], p.F, p.E, from, nullptr, 1);
  if (p.normalise)
    rows_kernels().store_rows(x.dtype, to + p.E * x.strides[3] * size_of(x.dtype), 0, x.strides[2], 1, p.F,
                              from + p.F * p.E, nullptr, 1);
}

void sum_scalars(const Problem& p, const double* values, const MutableView& to) {
  const std::int64_t shared_heads = p.Hs / to.heads();
  for (std::int64_t b = 0; b < to.batch(); ++b)
    for (std::int64_t h = 0; h < to.heads(); ++h)
      for (std::int64_t t = 0; t < to.length(); ++t) {
        double sum = 0;
        for (std::int64_t from = b; from < (to.batch() == 1 ? p.B : b + 1); ++from)
          for (std::int64_t s = h * shared_heads; s < (h + 1) * shared_heads; ++s)
            for (std::int64_t i = t; i < (to.length() == 1 ? p.N : t + 1); ++i)
              sum += values[(from * p.Hs + s) * p.N + i];
        store(to, b, h, t, 0, sum);
      }
}

KeyGradients::KeyGradients(const Problem& p, const MutableView& dk, const MutableView& dv)
    : p_(p),
      dk_(dk),
      dv_(dv),
      shared_(p.Hs != p.Hk),
      partial_(shared_ ? checked_product("linear_attention_backward", {p.units, p.N, p.D + p.E}) : 0) {}

void KeyGradients::store(const Chunk& chunk, const float* dk, const float* dv) const {
  if (!shared_) {
    store_rows(dk_, chunk.unit.b, chunk.unit.kv, chunk.first, chunk.rows, dk);
    return store_rows(dv_, chunk.unit.b, chunk.unit.kv, chunk.first, chunk.rows, dv);
  }
  const std::int64_t row = (chunk.unit.b * p_.Hs + chunk.unit.s) * p_.N + chunk.first;
  std::copy_n(dk, chunk.rows * p_.D, partial_.data() + row * p_.D);
  std::copy_n(dv, chunk.rows * p_.E, partial_.data() + p_.units * p_.N * p_.D + row * p_.E);
}

void KeyGradients::finish() const {
  if (!shared_) return;
  const std::int64_t shared = p_.Hs / p_.Hk, chunks = chunks_of(p_.N);
  const auto sum = [&](float* from, const MutableView& to, std::int64_t b, std::int64_t hk, std::int64_t c) {
    const std::int64_t first = c * kChunk, rows = std::min(kChunk, p_.N - first), n = to.dim();
    float* total = from + ((b * p_.Hs + hk * shared) * p_.N + first) * n;
    for (std::int64_t s = 1; s < shared; ++s)
      rows_kernels().sum_rows(total + s * p_.N * n, nullptr, 1, rows * n, total);
    store_rows(to, b, hk, first, rows, total);
  };
  parallel_for(p_.B * p_.Hk * chunks, [&](std::int64_t item, int) {
    const std::int64_t c = item % chunks, hk = item / chunks % p_.Hk, b = item / chunks / p_.Hk;
    sum(partial_.data(), dk_, b, hk, c);
    sum(partial_.data() + p_.units * p_.N * p_.D, dv_, b, hk, c);
  });
}

}  // namespace attend::linear
