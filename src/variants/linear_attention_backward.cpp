// The gradients of causal linear attention: windows of chunks from the last to the first.
//
// With P the decayed scores of a chunk, S the state before it and dS the gradient of the state after it:
//   dP = dO V^T           dQ = (decay dP) K + decay_from_start dO S^T      dV = P^T dO + decay_to_end K dS
//   dK = (decay dP)^T Q + decay_to_end V dS^T                               dS before = total dS + (decay Q)^T dO
// The delta rule puts U in the place of V and goes on from dU: see finish_delta.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/checked.hpp"
#include "base/threads.hpp"
#include "ops/rows.hpp"
#include "variants/linear_attention_states.hpp"

namespace attend::linear {
namespace {

constexpr std::int64_t kColumns = 64;
constexpr std::int64_t kPiece = 2048;

class Backward {
 public:
  Backward(const Problem& p, const View& dout, const LinearAttentionGradients& gradients);
  void run(const std::optional<View>& dfinal_state);

 private:
  static std::int64_t floats_per_chunk(const Problem& p) {
    return States::floats_per_chunk(p) + p.state_floats() + kChunk * (p.F + p.E);
  }
  void run_units(std::int64_t unit, const std::optional<View>& dfinal_state);
  void run_window(std::int64_t first, std::int64_t last);
  // All states of the units at once if they fit; else those before each window, and windows are filled again.
  static bool keeps_all(const Problem& p, const Windows& windows) {
    constexpr std::int64_t kMostFloats = (32 << 20) / 4;
    return States::floats_per_chunk(p) <= kMostFloats / (windows.units_at_once * windows.chunks);
  }

  // What does not need the gradient of the state: dq, what P gives to dk and dv, what the chunk adds to dS.
  void read_chunk(std::int64_t u, std::int64_t c, int worker);
  void read_head(std::int64_t u, std::int64_t c, std::int64_t g, const Workspace& w, const Decays& decays);
  void chain_sum(std::int64_t count);
  void chain_delta(std::int64_t count);
  void finish_chunk(std::int64_t u, std::int64_t c, int worker);
  void finish_delta(std::int64_t u, std::int64_t c, const Workspace& w, const Decays& decays);
  void finish_decay(std::int64_t u, std::int64_t c, const float* written);

  float* dstate(std::int64_t u, std::int64_t c) const { return dstates_.data() + (u * slots_ + c) * size_; }
  float* dkeys(std::int64_t u, std::int64_t c) const { return dkeys_.data() + (u * slots_ + c) * kChunk * p_.F; }
  float* dvalues(std::int64_t u, std::int64_t c) const { return dvalues_.data() + (u * slots_ + c) * kChunk * p_.E; }
  bool wants_decay() const { return gradients_.dlog_decay.has_value(); }
  // While a chunk is worked on: the terms of its tokens that a decay at or before them scales.
  double* dlog(const Chunk& chunk) const { return dlog_.data() + index(chunk); }
  std::int64_t index(const Chunk& chunk) const { return (chunk.unit.b * p_.Hs + chunk.unit.s) * p_.N + chunk.first; }

  const Problem& p_;
  View dout_;
  const LinearAttentionGradients& gradients_;
  Windows windows_;
  Workers workers_;
  bool keep_all_;
  States states_;
  KeyGradients key_gradients_;
  std::int64_t slots_, size_;
  Buffer<float> drun_, dstates_, dkeys_, dvalues_;
  Buffer<float> kept_;           // the states before each window
  Buffer<double> dlog_, dbeta_;  // [units, N]
};

// w(i, j) = p(i, j) dp(i, j) with j < i is scaled by the decays after j up to i: it counts for the tokens up to i and
// not for those up to j. In double, so that what cancels later does so without a trace.
void add_pairs(const float* p, const float* dp, std::int64_t n, double* dlog) {
  double w[kChunk];
  for (std::int64_t i = 1; i < n; ++i) {
    for (std::int64_t j = 0; j < i; ++j) w[j] = static_cast<double>(p[i * n + j]) * static_cast<double>(dp[i * n + j]);
    for (std::int64_t j = 0; j < i; ++j) dlog[j] -= w[j];
    dlog[i] += sum_terms(i, [&](std::int64_t j) { return w[j]; });
  }
}

Backward::Backward(const Problem& p, const View& dout, const LinearAttentionGradients& gradients)
    : p_(p),
      dout_(dout),
      gradients_(gradients),
      windows_(p, floats_per_chunk(p)),
      workers_(p),
      keep_all_(keeps_all(p, windows_)),
      states_(p, windows_, workers_, keep_all_),
      key_gradients_(p, gradients.dk, gradients.dv),
      slots_(windows_.chunks_at_once),
      size_(p.state_floats()),
      drun_(windows_.units_at_once * size_),
      dstates_(windows_.units_at_once * slots_ * size_),
      dkeys_(windows_.units_at_once * slots_ * kChunk * p.F),
      dvalues_(windows_.units_at_once * slots_ * kChunk * p.E),
      kept_(checked_product("linear_attention_backward",
                            {windows_.units_at_once, keep_all_ ? 0 : windows_.count(), size_})),
      dlog_(gradients.dlog_decay ? checked_product("linear_attention_backward", {p.units, p.N}) : 0),
      dbeta_(p.delta ? checked_product("linear_attention_backward", {p.units, p.N}) : 0) {}

void Backward::run(const std::optional<View>& dfinal_state) {
  for (std::int64_t unit = 0; unit < p_.units; unit += windows_.units_at_once) run_units(unit, dfinal_state);
  key_gradients_.finish();
  if (gradients_.dlog_decay) sum_scalars(p_, dlog_.data(), *gradients_.dlog_decay);
  if (gradients_.dbeta) sum_scalars(p_, dbeta_.data(), *gradients_.dbeta);
}

void Backward::run_units(std::int64_t unit, const std::optional<View>& dfinal_state) {
  const std::int64_t units = std::min(windows_.units_at_once, p_.units - unit), count = windows_.count();
  const auto window = [&](std::int64_t n, const auto& f) {
    f(n * windows_.chunks_at_once, std::min(windows_.chunks, (n + 1) * windows_.chunks_at_once));
  };
  const auto all_states = [&](std::int64_t n) { return kept_.data() + n * units * size_; };
  states_.begin(unit, units);
  for (std::int64_t n = 0; n + 1 < count; ++n) {
    if (!keep_all_) std::copy_n(states_.run(0), units * size_, all_states(n));
    window(n, [&](std::int64_t first, std::int64_t last) { states_.fill(first, last); });
  }
  for (std::int64_t u = 0; u < units; ++u) load_state(p_, dfinal_state, p_.unit(unit + u), drun_.data() + u * size_);
  for (std::int64_t n = count - 1; n >= 0; --n) {
    if (!keep_all_ && n + 1 < count) std::copy_n(all_states(n), units * size_, states_.run(0));
    window(n, [&](std::int64_t first, std::int64_t last) { run_window(first, last); });
  }
  for (std::int64_t u = 0; gradients_.dinitial_state && u < units; ++u)
    store_state(p_, *gradients_.dinitial_state, p_.unit(unit + u), drun_.data() + u * size_);
}

void Backward::run_window(std::int64_t first, std::int64_t last) {
  const std::int64_t count = last - first, items = states_.units() * count;
  if (keep_all_ && last < windows_.chunks)
    states_.show(first);
  else
    states_.fill(first, last);
  parallel_for(items, workers_.count(),
               [&](std::int64_t item, int worker) { read_chunk(item / count, item % count, worker); });
  if (p_.delta)
    chain_delta(count);
  else
    chain_sum(count);
  parallel_for(items, workers_.count(),
               [&](std::int64_t item, int worker) { finish_chunk(item / count, item % count, worker); });
}

void Backward::read_chunk(std::int64_t u, std::int64_t c, int worker) {
  const Workspace w = workers_.of(worker);
  const Chunk place = states_.chunk(u, c);
  Decays decays;
  workers_.load_decays(worker, w, place, true, decays);
  load_keys(p_, w, place, w.k);
  if (!p_.delta) load_values(p_, place, w.v);
  if (wants_decay()) std::fill_n(dlog(place), place.rows, 0.0);
  for (std::int64_t g = 0; g < p_.G; ++g) read_head(u, c, g, w, decays);
}

void Backward::read_head(std::int64_t u, std::int64_t c, std::int64_t g, const Workspace& w, const Decays& decays) {
  const LinearAttentionKernels& kernel = rows_kernels();
  const Chunk place = states_.chunk(u, c);
  const std::int64_t n = place.rows, F = p_.F, E = p_.E, b = place.unit.b, h = place.unit.s * p_.G + g;
  const float *S = states_.before(u, c), *z = S + F * E, *v = p_.delta ? states_.written(u, c) : w.v;
  const FloatMatrix K = matrix(w.k, n, F), Q = matrix(w.q, n, F), dO = matrix(w.o, n, E), P = matrix(w.p, n, n);
  const FloatMatrix dP = matrix(w.dp, n, n), dQ = matrix(w.f1, n, F);
  float *sums = w.row[0], *dots = w.row[1], *factors = w.row[2], *terms = w.row[3];
  load_features(p_, w, p_.q, b, h, place.first, n, w.q);
  load_rows(dout_, b, h, place.first, n, w.o);
  if (p_.options.scale != 1) kernel.scale(w.o, static_cast<float>(p_.options.scale), n * E);
  multiply(Q, K.transposed(), P, false, w.product);
  kernel.cut_rows(w.p, decays.ratio, n, 1, p_.normalise ? sums : nullptr);
  multiply(dO, matrix(v, n, E).transposed(), dP, false, w.product);
  multiply(dO, matrix(S, F, E).transposed(), dQ, false, w.product);
  if (decays.any) kernel.scale_rows(w.f1, F, decays.from_start, n, F, w.f1, false);
  if (p_.normalise) {
    // The gradient of the denominator is -(dO . o) / denominator, and dO . o comes from dP and dQ.
    kernel.dot_rows(w.q, z, 0, n, F, dots);
    for (std::int64_t i = 0; i < n; ++i) {
      const float denominator = sums[i] + decays.from_start[i] * dots[i] + static_cast<float>(p_.options.eps);
      factors[i] = std::abs(denominator) < std::numeric_limits<float>::min() ? 0.0F : 1.0F / denominator;
    }
    kernel.dot_rows(w.p, w.dp, n, n, n, sums);
    kernel.dot_rows(w.q, w.f1, F, n, F, dots);
    for (std::int64_t i = 0; i < n; ++i) terms[i] = -factors[i] * (factors[i] * (sums[i] + dots[i]));
    kernel.shift_rows(w.dp, factors, terms, n, n);
    kernel.scale_rows(w.o, E, factors, n, E, w.o, false);
    kernel.scale_rows(w.f1, F, factors, n, F, w.f1, false);
    for (std::int64_t i = 0; i < n; ++i) terms[i] *= decays.from_start[i];
    kernel.scale_rows(z, 0, terms, n, F, w.f1, true);
  }
  if (wants_decay()) {
    kernel.dot_rows(w.q, w.f1, F, n, F, dots);  // what the state gave
    for (std::int64_t i = 0; i < n; ++i) dlog(place)[i] += static_cast<double>(dots[i]);
    add_pairs(w.p, w.dp, n, dlog(place));
  }
  kernel.cut_rows(w.dp, decays.ratio, n, 1, nullptr);
  multiply(dP, K, dQ, true, w.product);
  multiply(dP.transposed(), Q, matrix(dkeys(u, c), n, F), g > 0, w.product);
  multiply(P.transposed(), dO, matrix(dvalues(u, c), n, E), g > 0, w.product);
  float* dx = w.f2;  // the features are needed once more, undecayed
  std::copy_n(w.f1, n * F, dx);
  store_rows(gradients_.dq, b, h, place.first, n, feature_gradient(p_, w, p_.q, b, h, place.first, n, w.q, dx));
  float* dz = dstate(u, c) + F * E;
  if (p_.normalise) {
    if (g == 0) std::fill_n(dz, F, 0.0F);
    kernel.sum_rows(w.q, terms, n, F, dz);
  }
  if (decays.any) kernel.scale_rows(w.q, F, decays.from_start, n, F, w.q, false);
  multiply(Q.transposed(), dO, matrix(dstate(u, c), F, E), g > 0, w.product);
}

// dstate(u, c) goes from what chunk c adds to the gradient of the state after it.
void Backward::chain_sum(std::int64_t count) {
  const std::int64_t pieces = divide_up(size_, kPiece);
  parallel_for(states_.units() * pieces, [&](std::int64_t item, int) {
    const std::int64_t u = item / pieces, at = item % pieces * kPiece, n = std::min(kPiece, size_ - at);
    for (std::int64_t c = count - 1; c >= 0; --c)
      rows_kernels().chain(drun_.data() + u * size_ + at, dstate(u, c) + at, states_.total(u, c), n);
  });
}

// dU = P^T dO + decay_to_end K dS, and dS before = total dS + (decay Q)^T dO - W^T dU.
void Backward::chain_delta(std::int64_t count) {
  const std::int64_t blocks = divide_up(p_.E, kColumns);
  parallel_for(states_.units() * blocks, workers_.count(), [&](std::int64_t item, int worker) {
    const Workspace w = workers_.of(worker);
    const std::int64_t u = item / blocks, at = item % blocks * kColumns, cols = std::min(kColumns, p_.E - at);
    const FloatMatrix dS{drun_.data() + u * size_ + at, p_.F, cols, p_.E};
    for (std::int64_t c = count - 1; c >= 0; --c) {
      const std::int64_t n = states_.chunk(u, c).rows;
      const FloatMatrix dU{dvalues(u, c) + at, n, cols, p_.E};
      multiply(matrix(states_.keys_to_end(u, c), n, p_.F), dS, dU, true, w.product);
      for (std::int64_t f = 0; f < p_.F; ++f)
        rows_kernels().chain(dS.data + f * p_.E, dstate(u, c) + f * p_.E + at, states_.total(u, c), cols);
      multiply(matrix(states_.minus_w(u, c), n, p_.F).transposed(), dU, dS, true, w.product);
    }
  });
}

void Backward::finish_chunk(std::int64_t u, std::int64_t c, int worker) {
  const Workspace w = workers_.of(worker);
  const LinearAttentionKernels& kernel = rows_kernels();
  const Chunk place = states_.chunk(u, c);
  const std::int64_t n = place.rows, F = p_.F, E = p_.E;
  const float *dS = dstate(u, c), *dz = dS + F * E;
  float *dk = dkeys(u, c), *dv = dvalues(u, c);
  Decays decays;
  workers_.load_decays(worker, w, place, p_.delta, decays);
  load_keys(p_, w, place, w.k);
  load_values(p_, place, w.v);
  const float* values = p_.delta ? states_.written(u, c) : w.v;
  const float* to_end = values;
  if (decays.any) kernel.scale_rows(values, E, decays.to_end, n, E, w.e1, false), to_end = w.e1;
  multiply(matrix(to_end, n, E), matrix(dS, F, E).transposed(), matrix(w.f2, n, F), false, w.product);
  if (p_.normalise) kernel.scale_rows(dz, 0, decays.to_end, n, F, w.f2, true);
  kernel.sum_rows(w.f2, nullptr, 1, n * F, dk);
  float* written = w.row[4];
  if (wants_decay()) kernel.dot_rows(w.k, w.f2, F, n, F, written);
  if (!p_.delta) {
    const float* keys = w.k;
    if (decays.any) kernel.scale_rows(w.k, F, decays.to_end, n, F, w.f1, false), keys = w.f1;
    multiply(matrix(keys, n, F), matrix(dS, F, E), matrix(dv, n, E), true, w.product);
  }
  if (p_.delta) finish_delta(u, c, w, decays);
  if (wants_decay()) finish_decay(u, c, written);
  float* dx = feature_gradient(p_, w, p_.k, place.unit.b, place.unit.kv, place.first, place.visible, w.k, dk);
  std::fill(dx + place.visible * p_.D, dx + n * p_.D, 0.0F);
  key_gradients_.store(place, dx, dv);
}

// From dU: dR = (I + T)^-T dU, with R = beta (V - decay_from_start K S); dT = -dR U^T below the diagonal.
void Backward::finish_delta(std::int64_t u, std::int64_t c, const Workspace& w, const Decays& decays) {
  const LinearAttentionKernels& kernel = rows_kernels();
  const Chunk place = states_.chunk(u, c);
  const std::int64_t n = place.rows, F = p_.F, E = p_.E;
  float *dk = dkeys(u, c), *dr = dvalues(u, c), *beta = w.row[0], *dots = w.row[1], *factors = w.row[2];
  double* dbeta = dbeta_.data() + index(place);
  const FloatMatrix K = matrix(w.k, n, F), dR = matrix(dr, n, E), dT = matrix(w.dp, n, n), Y = matrix(w.f1, n, F);
  load_beta(p_, place, beta);
  multiply(K, K.transposed(), matrix(w.kk, n, n), false, w.product);
  std::copy_n(w.kk, n * n, w.p);
  make_triangle(decays, beta, n, w.p);
  kernel.solve(w.p, true, n, dr, E);

  multiply(dR, matrix(states_.before(u, c), F, E).transposed(), Y, false, w.product);
  multiply(dR, matrix(states_.written(u, c), n, E).transposed(), dT, false, w.product);
  kernel.cut_rows(w.dp, decays.ratio, n, 0, nullptr);  // -dT times the decay
  kernel.dot_rows(dr, w.v, E, n, E, dots);
  for (std::int64_t i = 0; i < n; ++i) dbeta[i] = static_cast<double>(dots[i]);
  kernel.dot_rows(w.k, w.f1, F, n, F, dots);
  for (std::int64_t i = 0; i < n; ++i) dbeta[i] -= static_cast<double>(decays.from_start[i] * dots[i]);
  kernel.dot_rows(w.dp, w.kk, n, n, n, dots);
  for (std::int64_t i = 0; i < n; ++i) dbeta[i] = i < place.visible ? dbeta[i] - static_cast<double>(dots[i]) : 0.0;

  for (std::int64_t i = 0; i < n; ++i) factors[i] = -beta[i];
  kernel.scale_rows(w.dp, n, factors, n, n, w.dp, false);
  for (std::int64_t i = 0; i < n; ++i) factors[i] *= decays.from_start[i];
  kernel.scale_rows(w.f1, F, factors, n, F, w.f1, false);
  if (wants_decay()) {
    kernel.dot_rows(w.k, w.f1, F, n, F, dots);
    for (std::int64_t i = 0; i < n; ++i) dlog(place)[i] += static_cast<double>(dots[i]);
    add_pairs(w.kk, w.dp, n, dlog(place));
  }
  kernel.sum_rows(w.f1, nullptr, 1, n * F, dk);
  multiply(dT, K, matrix(dk, n, F), true, w.product);
  multiply(dT.transposed(), K, matrix(dk, n, F), true, w.product);
  kernel.scale_rows(dr, E, beta, n, E, dr, false);  // dV
}

// The decay of token t scales what tokens from t on read from before it: of the chunk, from the state before the chunk
// to the one after it, and from the chunk's tokens before t to the state after it (`written`).
void Backward::finish_decay(std::int64_t u, std::int64_t c, const float* written) {
  const Chunk place = states_.chunk(u, c);
  float through = 0;
  rows_kernels().dot_rows(states_.before(u, c), dstate(u, c), 0, 1, size_, &through);
  double* dlog_decay = dlog(place);
  double later = 0, earlier = static_cast<double>(states_.total(u, c)) * static_cast<double>(through);
  for (std::int64_t i = place.rows - 1; i >= 0; --i) dlog_decay[i] = later += dlog_decay[i];
  for (std::int64_t i = 0; i < place.rows; ++i) {
    dlog_decay[i] = i < place.visible ? dlog_decay[i] + earlier : 0.0;
    earlier += static_cast<double>(written[i]);
  }
}

}  // namespace

void causal_backward(const Problem& p, const View& dout, const LinearAttentionGradients& gradients,
                     const std::optional<View>& dfinal_state) {
  Backward(p, dout, gradients).run(dfinal_state);
}

}  // namespace attend::linear
