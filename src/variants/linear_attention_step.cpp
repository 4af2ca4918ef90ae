// Linear attention token by token, for decoding: the recurrence as it stands, on a state of fixed size.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/interrupt.hpp"
#include "base/threads.hpp"
#include "variants/linear_attention_chunks.hpp"

namespace attend::linear {
namespace {

// The state of a unit as [F][columns], z being the last: in place where its rows are contiguous floats.
struct HeldState {
  float* data;
  std::int64_t row;
  bool in_place;
};

HeldState hold(const Problem& p, const MutableView& x, const Unit& unit, float* copy) {
  auto* data = static_cast<char*>(x.data) + (unit.b * x.strides[0] + unit.s * x.strides[1]) * size_of(x.dtype);
  const bool aligned = reinterpret_cast<std::uintptr_t>(data) % alignof(float) == 0;
  if (aligned && (x.strides[3] == 1 || x.dim() == 1)) return {reinterpret_cast<float*>(data), x.strides[2], true};
  load_rows(x, unit.b, unit.s, 0, p.F, copy);
  return {copy, x.dim(), false};
}

class Tokens {
 public:
  Tokens(const Problem& p, const Workspace& w, const Unit& unit, const HeldState& state)
      : p_(p), w_(w), unit_(unit), state_(state), columns_(p.E + (p.normalise ? 1 : 0)) {}

  void run(std::int64_t t, const MutableView& out) {
    const LinearAttentionKernels& kernel = rows_kernels();
    const double log_decay = p_.options.log_decay ? scalar_at(p_, *p_.options.log_decay, unit_, t) : 0;
    const auto decay = static_cast<float>(std::exp(log_decay));
    const float whole = log_decay > -0.5 ? 1.0F : 0.0F;  // decay = whole + rest
    const float rest = whole == 0 ? decay : static_cast<float>(std::expm1(log_decay));
    float *u = w_.v, *y = w_.o, *read = w_.e1;
    load_features(p_, w_, p_.k, unit_.b, unit_.kv, t, 1, w_.k);
    load_rows(p_.v, unit_.b, unit_.kv, t, 1, u);
    if (p_.normalise) u[p_.E] = 1;
    if (p_.delta) {
      const auto beta = static_cast<float>(scalar_at(p_, *p_.options.beta, unit_, t));
      kernel.read_state(state_.data, state_.row, p_.F, columns_, w_.k, read);
      for (std::int64_t e = 0; e < columns_; ++e) u[e] = beta * (u[e] - decay * read[e]);
    }
    for (std::int64_t g = 0; g < p_.G; ++g) {
      const std::int64_t h = unit_.s * p_.G + g;
      load_features(p_, w_, p_.q, unit_.b, h, t, 1, w_.q);
      if (g == 0)
        kernel.step_state(state_.data, state_.row, p_.F, columns_, whole, rest, w_.k, u, w_.q, y);
      else
        kernel.read_state(state_.data, state_.row, p_.F, columns_, w_.q, y);
      store_rows(out, unit_.b, h, t, 1, y, nullptr, factor(y));
    }
  }

 private:
  float factor(const float* y) const {
    const auto scale = static_cast<float>(p_.options.scale);
    if (!p_.normalise) return scale;
    const float denominator = y[p_.E] + static_cast<float>(p_.options.eps);
    return std::abs(denominator) < std::numeric_limits<float>::min() ? 0.0F : scale / denominator;
  }

  const Problem& p_;
  const Workspace& w_;
  Unit unit_;
  HeldState state_;
  std::int64_t columns_;
};

}  // namespace

void step(const Problem& p, const MutableView& out, const MutableView& state) {
  const Workers workers(p);
  const Uninterrupted whole;  // the state goes from one token to the next for all heads together
  parallel_for(p.units, workers.count(), [&](std::int64_t u, int worker) {
    const Workspace w = workers.of(worker);
    const Unit unit = p.unit(u);
    const HeldState held = hold(p, state, unit, w.state);
    Tokens tokens(p, w, unit, held);
    for (std::int64_t t = 0; t < p.N; ++t) tokens.run(t, out);
    if (!held.in_place) store_rows(state, unit.b, unit.s, 0, p.F, held.data);
  });
}

}  // namespace attend::linear
