// Reformer's attention: rows gathered in sorted order, attention over an interval of keys per row, rounds merged by
// LSE.
#include "attend/reformer.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "base/check.hpp"
#include "base/checked.hpp"
#include "base/elements.hpp"
#include "base/threads.hpp"
#include "cpu/dispatch.hpp"
#include "ops/attention_call.hpp"
#include "ops/rows.hpp"
#include "ops/scratch.hpp"
#include "reference/reformer.hpp"
#include "variants/lsh.hpp"
#include "variants/widened.hpp"

namespace attend {
namespace {

const char* const kOp = "reformer";
const char* const kBackwardOp = "reformer_backward";
constexpr std::int64_t kWaveBytes = 32 << 20;  // of sorted rows at a time; any number gives the same bits
constexpr std::int64_t kTokens = 64;           // that an item gathers or merges
constexpr float kInfinity = std::numeric_limits<float>::infinity();

void check_inputs(const char* op, const View& q, const View& v) {
  check_readable(op, "q", q);
  check_readable(op, "v", v);
  check_dtype(op, "v", v.dtype, q.dtype);
  check_equal(op, "v batch", v.batch(), q.batch(), "q batch");
  check_equal(op, "v length", v.length(), q.length(), "q length");
  if (v.dim() < 1) fail(op, "value dim is " + std::to_string(v.dim()) + ", expected at least 1");
  if (q.heads() < 1 || v.heads() < 1 || q.heads() % v.heads() != 0)
    fail(op, "q has " + std::to_string(q.heads()) + " heads and v " + std::to_string(v.heads()) +
                 ", expected a whole number of query heads for each head of v");
}

void check_scale(const char* op, const ReformerOptions& options) {
  if (options.scale && !std::isfinite(*options.scale))
    fail(op, "scale is " + std::to_string(*options.scale) + ", expected a finite number");
}

// The hashes of f64 calls, in double throughout.
std::vector<std::int32_t> hashes_f64(const View& q, const LshPlan& plan) {
  return reference::reformer_hashes(q, lsh_rotations(plan), plan.factors);
}

// What all rounds and waves of a call share.
struct Call {
  Call(const LshPlan& p, const View& q, const View& v, const ReformerOptions& options)
      : plan(p),
        B(q.batch()),
        H(q.heads()),
        group(q.heads() / v.heads()),
        L(q.length()),
        D(q.dim()),
        E(v.dim()),
        q_in(q),
        v_in(v),
        rotations(lsh_rotations(p)) {
    attention.scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(D)));
    if (plan.causal) return;  // the interval ends before the token
    attention.rule = ScoreRule(
        [](auto tile) {
          const std::int64_t first = tile.first_row - tile.first_col;  // the column of row 0's own token
          for (std::int64_t r = std::max<std::int64_t>(0, -first); r < std::min(tile.rows, tile.cols - first); ++r)
            tile(r, first + r) = -std::numeric_limits<std::decay_t<decltype(tile(0, 0))>>::infinity();
        },
        [](auto, auto) {});
  }
  // Heads that are worked on at once, when each needs so many floats per token.
  std::int64_t heads_at_once(std::int64_t floats) const {
    const std::int64_t bytes = checked_product("reformer", {std::max<std::int64_t>(1, L), floats, 4});
    return std::clamp<std::int64_t>(kWaveBytes / bytes, 1, B * H);
  }

  const LshPlan& plan;
  std::int64_t B, H, group, L, D, E;
  WidenedInput q_in, v_in;
  Tensor rotations;
  AttentionOptions attention;
};

// Calls f(n, first, last) for blocks of tokens of `heads` heads, over the threads.
template <class F>
void for_token_blocks(std::int64_t heads, std::int64_t L, const F& f) {
  const std::int64_t blocks = (L + kTokens - 1) / kTokens;
  parallel_for(heads * blocks, [&](std::int64_t item, int) {
    const std::int64_t first = item % blocks * kTokens;
    f(item / blocks, first, std::min(L, first + kTokens));
  });
}

void copy_row(const float* from, std::int64_t step, std::int64_t count, float factor, float* to) {
  if (step == 1)
    for (std::int64_t d = 0; d < count; ++d) to[d] = factor * from[d];
  else
    for (std::int64_t d = 0; d < count; ++d) to[d] = factor * from[d * step];
}

// 1 / |q| of each token of the heads, 0 for zero rows.
void fill_inverse_norms(const Call& call, std::int64_t first, std::int64_t count, float* inverse) {
  for_token_blocks(count, call.L, [&](std::int64_t n, std::int64_t begin, std::int64_t end) {
    const std::int64_t head = first + n, step = call.q_in.step();
    for (std::int64_t i = begin; i < end; ++i) {
      const float* row = call.q_in.row(head / call.H, head % call.H, i);
      const double squares = sum_terms(call.D, [&](std::int64_t d) {
        return static_cast<double>(row[d * step]) * static_cast<double>(row[d * step]);
      });
      inverse[n * call.L + i] = squares > 0 ? static_cast<float>(1 / std::sqrt(squares)) : 0.0F;
    }
  });
}

View floats(const float* data, std::int64_t heads, std::int64_t L, std::int64_t dim) {
  return view_of(data, {heads, 1, L, dim});
}
MutableView floats(float* data, std::int64_t heads, std::int64_t L, std::int64_t dim) {
  return view_of(data, {heads, 1, L, dim});
}

// Rows of q, k and v in the order of one round.
class SortedRows {
 public:
  SortedRows(const Call& call, std::int64_t heads)
      : call_(call), q_(heads * call.L * call.D), k_(heads * call.L * call.D), v_(heads * call.L * call.E) {}

  void gather(const SortedHeads& sorted, const float* inverse_norms, std::int64_t first, std::int64_t count) const {
    const std::int64_t L = call_.L, D = call_.D, E = call_.E, H = call_.H;
    for_token_blocks(count, L, [&](std::int64_t n, std::int64_t begin, std::int64_t end) {
      const std::int64_t b = (first + n) / H, h = (first + n) % H;
      for (std::int64_t t = begin; t < end; ++t) {
        const std::int64_t i = sorted.order(n)[t], at = n * L + t;
        const float* row = call_.q_in.row(b, h, i);
        copy_row(row, call_.q_in.step(), D, 1.0F, q_.data() + at * D);
        copy_row(row, call_.q_in.step(), D, inverse_norms[n * L + i], k_.data() + at * D);
        copy_row(call_.v_in.row(b, h / call_.group, i), call_.v_in.step(), E, 1.0F, v_.data() + at * E);
      }
    });
  }
  View q(std::int64_t count) const { return floats(static_cast<const float*>(q_.data()), count, call_.L, call_.D); }
  View k(std::int64_t count) const { return floats(static_cast<const float*>(k_.data()), count, call_.L, call_.D); }
  View v(std::int64_t count) const { return floats(static_cast<const float*>(v_.data()), count, call_.L, call_.E); }

 private:
  const Call& call_;
  Buffer<float> q_, k_, v_;
};

// Adds one round's state to the state of those before: both are softmax averages with their LSE.
void merge_row(float& lse, float* out, float other_lse, const float* other, std::int64_t E) {
  if (other_lse == -kInfinity) return;
  if (lse == -kInfinity) {
    lse = other_lse;
    std::copy_n(other, E, out);
    return;
  }
  const float top = std::max(lse, other_lse);
  const float mine = std::exp(lse - top), its = std::exp(other_lse - top), sum = mine + its;
  const float a = mine / sum, b = its / sum;
  for (std::int64_t e = 0; e < E; ++e) out[e] = a * out[e] + b * other[e];
  lse = top + std::log(sum);
}

// ---- Forward ----

struct ForwardWave {
  ForwardWave(const Call& call, std::int64_t heads)
      : sorted(call.plan, heads),
        rows(call, heads),
        inverse_norms(heads * call.L),
        round_out(heads * call.L * call.E),
        round_lse(heads * call.L),
        out(heads * call.L * call.E),
        lse(heads * call.L) {}

  SortedHeads sorted;
  SortedRows rows;
  Buffer<float> inverse_norms, round_out, round_lse, out, lse;
};

// A token that met nobody attends to itself.
void finish_rows(const Call& call, const ForwardWave& wave, std::int64_t first, std::int64_t count,
                 const WidenedResult& out, const std::optional<MutableView>& lse) {
  const std::int64_t L = call.L, E = call.E;
  for_token_blocks(count, L, [&](std::int64_t n, std::int64_t begin, std::int64_t end) {
    const std::int64_t b = (first + n) / call.H, h = (first + n) % call.H;
    const FloatMatrix to = out.matrix(b, h);
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t at = n * L + i;
      const bool met = wave.lse[at] != -kInfinity;
      const float* row = met ? wave.out.data() + at * E : call.v_in.row(b, h / call.group, i);
      const std::int64_t step = met ? 1 : call.v_in.step();
      for (std::int64_t e = 0; e < E; ++e) to.data[i * to.row_stride + e * to.col_stride] = row[e * step];
      if (!lse) continue;
      const double own =
          wave.inverse_norms[at] > 0 ? *call.attention.scale / static_cast<double>(wave.inverse_norms[at]) : 0;
      store(*lse, b, h, i, 0, met ? static_cast<double>(wave.lse[at]) : own);
    }
  });
}

void forward(const Call& call, const WidenedResult& out, const std::optional<MutableView>& lse) {
  const std::int64_t L = call.L, E = call.E, at_once = call.heads_at_once(2 * call.D + 3 * E);
  ForwardWave wave(call, at_once);
  for (std::int64_t first = 0; first < call.B * call.H; first += at_once) {
    const std::int64_t count = std::min(at_once, call.B * call.H - first);
    fill_inverse_norms(call, first, count, wave.inverse_norms.data());
    std::fill_n(wave.lse.data(), count * L, -kInfinity);
    for (std::int64_t round = 0; round < call.plan.rounds; ++round) {
      wave.sorted.sort(call.q_in, call.rotations, round, first, count);
      wave.rows.gather(wave.sorted, wave.inverse_norms.data(), first, count);
      AttentionCall attention(wave.rows.q(count), wave.rows.k(count), wave.rows.v(count), call.attention);
      attention.mask.row_lo = wave.sorted.lo(0);
      attention.mask.row_hi = wave.sorted.hi(0);
      AttentionExtras extras;
      extras.lse = floats(wave.round_lse.data(), count, L, 1);
      run_attention(attention, floats(wave.round_out.data(), count, L, E), extras);
      for_token_blocks(count, L, [&](std::int64_t n, std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const std::int64_t at = n * L + i, from = n * L + wave.sorted.rank(n)[i];
          merge_row(wave.lse[at], wave.out.data() + at * E, wave.round_lse[from], wave.round_out.data() + from * E, E);
        }
      });
    }
    finish_rows(call, wave, first, count, out, lse);
  }
}

// ---- Backward ----

// Each round's weights are exp(s - LSE of all rounds), so a round's gradients are those of an attention call that is
// given the output and the LSE of them all.
struct BackwardWave {
  BackwardWave(const Call& call, std::int64_t heads)
      : sorted(call.plan, heads),
        rows(call, heads),
        inverse_norms(heads * call.L),
        dout(heads * call.L * call.E),
        out(heads * call.L * call.E),
        lse(heads * call.L),
        dq_round(heads * call.L * call.D),
        dk_round(heads * call.L * call.D),
        dv_round(heads * call.L * call.E),
        dq(heads * call.L * call.D),
        dk(heads * call.L * call.D),
        dv(heads * call.L * call.E),
        met(heads * call.L) {}

  SortedHeads sorted;
  SortedRows rows;
  Buffer<float> inverse_norms, dout, out, lse;
  Buffer<float> dq_round, dk_round, dv_round;
  Buffer<float> dq, dk, dv;
  Buffer<bool> met;
};

struct BackwardInputs {
  WidenedInput dout, out;
  View lse;
};

void gather_outputs(const Call& call, const BackwardInputs& in, const BackwardWave& wave, std::int64_t first,
                    std::int64_t count) {
  const std::int64_t L = call.L, E = call.E;
  for_token_blocks(count, L, [&](std::int64_t n, std::int64_t begin, std::int64_t end) {
    const std::int64_t b = (first + n) / call.H, h = (first + n) % call.H;
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int64_t i = wave.sorted.order(n)[t], at = n * L + t;
      copy_row(in.dout.row(b, h, i), in.dout.step(), E, 1.0F, wave.dout.data() + at * E);
      copy_row(in.out.row(b, h, i), in.out.step(), E, 1.0F, wave.out.data() + at * E);
      wave.lse[at] = static_cast<float>(load(in.lse, b, h, i, 0));
    }
  });
}

// Adds the round's gradients to those of the tokens.
void scatter(const Call& call, const BackwardWave& wave, std::int64_t count, bool add) {
  const std::int64_t L = call.L, D = call.D, E = call.E;
  const auto take = [add](const float* from, std::int64_t width, float* to) {
    for (std::int64_t d = 0; d < width; ++d) to[d] = add ? to[d] + from[d] : from[d];
  };
  for_token_blocks(count, L, [&](std::int64_t n, std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t t = wave.sorted.rank(n)[i], at = n * L + i, from = n * L + t;
      take(wave.dq_round.data() + from * D, D, wave.dq.data() + at * D);
      take(wave.dk_round.data() + from * D, D, wave.dk.data() + at * D);
      take(wave.dv_round.data() + from * E, E, wave.dv.data() + at * E);
      wave.met[at] = (add && wave.met[at]) || wave.sorted.lo(n)[t] < wave.sorted.hi(n)[t];
    }
  });
}

// dq_i += (dk_i - k_i (k_i . dk_i)) / |q_i|
void finish_dq(const Call& call, const BackwardWave& wave, std::int64_t first, std::int64_t count,
               const WidenedResult& dq) {
  const std::int64_t L = call.L, D = call.D, step = call.q_in.step();
  for_token_blocks(count, L, [&](std::int64_t n, std::int64_t begin, std::int64_t end) {
    const std::int64_t b = (first + n) / call.H, h = (first + n) % call.H;
    const FloatMatrix to = dq.matrix(b, h);
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t at = n * L + i;
      const float *q = call.q_in.row(b, h, i), *dk = wave.dk.data() + at * D;
      const float inverse = wave.inverse_norms[at];
      const auto along = static_cast<float>(sum_terms(
          D, [&](std::int64_t d) { return static_cast<double>(q[d * step] * inverse) * static_cast<double>(dk[d]); }));
      for (std::int64_t d = 0; d < D; ++d)
        to.data[i * to.row_stride + d * to.col_stride] =
            wave.dq[at * D + d] + inverse * (dk[d] - q[d * step] * inverse * along);
    }
  });
}

// dv of a head that several query heads share is their sum, in rising order; `dv` starts as zeros.
void finish_dv(const Call& call, const BackwardInputs& in, const BackwardWave& wave, std::int64_t first,
               std::int64_t count, const WidenedResult& dv) {
  const std::int64_t L = call.L, E = call.E, first_v = first / call.group, last_v = (first + count - 1) / call.group;
  const std::int64_t Hv = call.H / call.group, step = in.dout.step();
  for_token_blocks(last_v - first_v + 1, L, [&](std::int64_t local, std::int64_t begin, std::int64_t end) {
    const std::int64_t head_v = first_v + local;
    const FloatMatrix to = dv.matrix(head_v / Hv, head_v % Hv);
    const std::int64_t from = std::max(first, head_v * call.group);
    for (std::int64_t head = from; head < std::min(first + count, (head_v + 1) * call.group); ++head)
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t at = (head - first) * L + i;
        float* row = to.data + i * to.row_stride;
        const float* dout = wave.met[at] ? nullptr : in.dout.row(head / call.H, head % call.H, i);
        for (std::int64_t e = 0; e < E; ++e)
          row[e * to.col_stride] += wave.dv[at * E + e] + (dout ? dout[e * step] : 0.0F);
      }
  });
}

void backward(const Call& call, const BackwardInputs& in, const WidenedResult& dq, const WidenedResult& dv) {
  const std::int64_t L = call.L, D = call.D, E = call.E, at_once = call.heads_at_once(6 * D + 5 * E);
  BackwardWave wave(call, at_once);
  fill_zero(dv.view());
  for (std::int64_t first = 0; first < call.B * call.H; first += at_once) {
    const std::int64_t count = std::min(at_once, call.B * call.H - first);
    fill_inverse_norms(call, first, count, wave.inverse_norms.data());
    for (std::int64_t round = 0; round < call.plan.rounds; ++round) {
      wave.sorted.sort(call.q_in, call.rotations, round, first, count);
      wave.rows.gather(wave.sorted, wave.inverse_norms.data(), first, count);
      gather_outputs(call, in, wave, first, count);
      AttentionCall attention(wave.rows.q(count), wave.rows.k(count), wave.rows.v(count), call.attention);
      attention.mask.row_lo = wave.sorted.lo(0);
      attention.mask.row_hi = wave.sorted.hi(0);
      run_attention_backward(attention, floats(wave.dout.data(), count, L, E), floats(wave.out.data(), count, L, E),
                             floats(wave.lse.data(), count, L, 1),
                             {floats(wave.dq_round.data(), count, L, D),
                              floats(wave.dk_round.data(), count, L, D),
                              floats(wave.dv_round.data(), count, L, E),
                              {},
                              {}});
      scatter(call, wave, count, round > 0);
    }
    finish_dq(call, wave, first, count, dq);
    finish_dv(call, in, wave, first, count, dv);
  }
}

}  // namespace

void reformer(View q, View v, MutableView out, const ReformerOptions& options, std::optional<MutableView> lse) {
  check_inputs(kOp, q, v);
  check_scale(kOp, options);
  const LshPlan plan(kOp, q.heads(), q.length(), q.dim(), options);
  AttentionExtras extras;
  extras.lse = lse;
  check_attention_outputs(q, q, v, out, extras);
  kernels();  // complains of a wrong ATTEND_ISA, whatever the dtype
  if (q.batch() == 0 || q.length() == 0) return;
  if (q.dtype == DType::f64) return reference::reformer(q, v, hashes_f64(q, plan), out, options, lse);
  const WidenedResult result(out);
  forward(Call(plan, q, v, options), result, lse);
  result.store();
}

void reformer_backward(View dout, View q, View v, View out, View lse, const ReformerGradients& gradients,
                       const ReformerOptions& options) {
  check_inputs(kBackwardOp, q, v);
  check_scale(kBackwardOp, options);
  const LshPlan plan(kBackwardOp, q.heads(), q.length(), q.dim(), options);
  const Shape out_shape{q.batch(), q.heads(), q.length(), v.dim()};
  const std::pair<const char*, View> inputs[] = {{"q", q}, {"v", v}, {"dout", dout}, {"out", out}, {"lse", lse}};
  for (const auto& [what, x] : {std::pair{"dout", dout}, {"out", out}}) {
    check_readable(kBackwardOp, what, x);
    check_shape(kBackwardOp, what, x.shape, out_shape);
    check_dtype(kBackwardOp, what, x.dtype, q.dtype);
  }
  check_readable(kBackwardOp, "lse", lse);
  check_shape(kBackwardOp, "lse", lse.shape, {q.batch(), q.heads(), q.length(), 1});
  check_dtype(kBackwardOp, "lse", lse.dtype, accumulator_dtype(q.dtype));
  for (const auto& [what, gradient, of] : {std::tuple{"dq", gradients.dq, q}, {"dv", gradients.dv, v}}) {
    check_writable(kBackwardOp, what, gradient);
    check_shape(kBackwardOp, what, gradient.shape, of.shape);
    check_dtype(kBackwardOp, what, gradient.dtype, q.dtype);
    for (const auto& [name, input] : inputs) check_apart(kBackwardOp, what, gradient, name, input);
  }
  check_apart(kBackwardOp, "dv", gradients.dv, "dq", gradients.dq);
  kernels();
  if (q.batch() == 0 || q.length() == 0) return;
  if (q.dtype == DType::f64) return reference::reformer_backward(dout, q, v, hashes_f64(q, plan), gradients, options);
  const WidenedResult dq(gradients.dq), dv(gradients.dv);
  backward(Call(plan, q, v, options), {WidenedInput(dout), WidenedInput(out), lse}, dq, dv);
  dq.store();
  dv.store();
}

std::vector<std::int64_t> reformer_factors(std::int64_t length, const ReformerOptions& options) {
  return LshPlan("reformer_factors", 1, length, 1, options).factors;
}

Tensor reformer_rotations(std::int64_t heads, std::int64_t length, std::int64_t dim, const ReformerOptions& options) {
  return lsh_rotations(LshPlan("reformer_rotations", heads, length, dim, options));
}

std::vector<std::int32_t> reformer_hashes(View q, const ReformerOptions& options) {
  const char* op = "reformer_hashes";
  check_readable(op, "q", q);
  const LshPlan plan(op, q.heads(), q.length(), q.dim(), options);
  if (q.dtype == DType::f64) return hashes_f64(q, plan);
  const std::int64_t heads = q.batch() * q.heads(), L = q.length();
  std::vector<std::int32_t> hashes(static_cast<std::size_t>(checked_product(op, {plan.rounds, heads, L})));
  if (hashes.empty()) return hashes;
  const WidenedInput q_in(q);
  const Tensor rotations = lsh_rotations(plan);
  SortedHeads sorted(plan, 1);
  for (std::int64_t n = 0; n < plan.rounds * heads; ++n) {
    sorted.sort(q_in, rotations, n / heads, n % heads, 1);
    std::copy_n(sorted.buckets(0), L, hashes.data() + n * L);
  }
  return hashes;
}

// ---- Recall ----

namespace {

// The share of token i's exact weight that lies on tokens marked in `met`; -1 when there is nobody it could see.
double recall_of(const Call& call, std::int64_t b, std::int64_t h, std::int64_t i, const std::vector<char>& met) {
  const std::int64_t last = call.plan.causal ? i : call.L, step = call.q_in.step();
  const float* q = call.q_in.row(b, h, i);
  std::vector<double> scores(static_cast<std::size_t>(call.L), -HUGE_VAL);
  double top = -HUGE_VAL;
  for (std::int64_t j = 0; j < last; ++j) {
    if (j == i) continue;
    const float* k = call.q_in.row(b, h, j);
    double product = 0, squares = 0;
    for (std::int64_t d = 0; d < call.D; ++d) {
      product += static_cast<double>(q[d * step]) * static_cast<double>(k[d * step]);
      squares += static_cast<double>(k[d * step]) * static_cast<double>(k[d * step]);
    }
    double& score = scores[static_cast<std::size_t>(j)];
    score = squares > 0 ? *call.attention.scale * product / std::sqrt(squares) : 0;
    top = std::max(top, score);
  }
  double found = 0, all = 0;
  for (std::size_t j = 0; j < scores.size(); ++j) {
    const double weight = scores[j] == -HUGE_VAL ? 0 : std::exp(scores[j] - top);
    all += weight;
    if (met[j]) found += weight;
  }
  return all > 0 ? found / all : -1;
}

}  // namespace

double reformer_recall(View q, const ReformerOptions& options, std::int64_t samples) {
  const char* op = "reformer_recall";
  check_inputs(op, q, q);
  check_scale(op, options);
  if (q.dtype == DType::f64) fail(op, "measures f32, f16 and bf16, got f64");
  if (samples < 1) fail(op, "samples is " + std::to_string(samples) + ", expected at least 1");
  const LshPlan plan(op, q.heads(), q.length(), q.dim(), options);
  const std::int64_t heads = q.batch() * q.heads(), L = q.length();
  if (heads == 0 || L == 0) return 1;
  const Call call(plan, q, q, options);
  samples = std::min(samples, L);
  double sum = 0;
  std::int64_t counted = 0;
  SortedHeads sorted(plan, 1);
  std::vector<std::vector<char>> met(static_cast<std::size_t>(samples));
  std::vector<double> recalls(static_cast<std::size_t>(samples));
  const auto token = [&](std::int64_t s) { return L - 1 - s * L / samples; };
  for (std::int64_t head = 0; head < heads; ++head) {
    for (auto& marks : met) marks.assign(static_cast<std::size_t>(L), 0);
    for (std::int64_t round = 0; round < plan.rounds; ++round) {
      sorted.sort(call.q_in, call.rotations, round, head, 1);
      for (std::int64_t s = 0; s < samples; ++s) {
        const std::int64_t t = sorted.rank(0)[token(s)];
        for (std::int64_t n = sorted.lo(0)[t]; n < sorted.hi(0)[t]; ++n)
          if (n != t) met[static_cast<std::size_t>(s)][static_cast<std::size_t>(sorted.order(0)[n])] = 1;
      }
    }
    parallel_for(samples, [&](std::int64_t s, int) {
      const auto n = static_cast<std::size_t>(s);
      recalls[n] = recall_of(call, head / call.H, head % call.H, token(s), met[n]);
    });
    for (const double recall : recalls) {
      sum += std::max(recall, 0.0);
      counted += recall >= 0;
    }
  }
  return counted > 0 ? sum / static_cast<double>(counted) : 1;
}

// ---- The inner attention ----

namespace {

class ReformerInner final : public InnerAttention {
 public:
  explicit ReformerInner(ReformerOptions options) : options_(std::move(options)) {}

  const char* name() const override { return "Reformer"; }

  void forward(View q, View k, View v, MutableView out, std::vector<Tensor>* saved) const override {
    check_equal(name(), "k length", k.length(), q.length(), "q length: queries and keys are shared");
    Tensor lse;
    if (saved) lse = Tensor(accumulator_dtype(q.dtype), {q.batch(), q.heads(), q.length(), 1});
    reformer(q, v, out, options_, saved ? std::optional(lse.view()) : std::nullopt);
    if (!saved) return;
    saved->clear();
    saved->push_back(std::move(lse));
  }

  std::vector<Tensor> backward(View dout, View q, View k, View v, View out, const std::vector<Tensor>& saved,
                               MutableView dq, MutableView dk, MutableView dv) const override {
    check_equal(name(), "number of saved tensors", static_cast<std::int64_t>(saved.size()), 1, "what forward saves");
    check_writable(name(), "dk", dk);
    check_shape(name(), "dk", dk.shape, k.shape);
    reformer_backward(dout, q, v, out, saved[0], {dq, dv}, options_);
    fill_zero(dk);
    return {};
  }

 private:
  ReformerOptions options_;
};

}  // namespace

std::shared_ptr<InnerAttention> reformer_inner(const ReformerOptions& options) {
  check_scale("reformer_inner", options);
  const LshPlan checked("reformer_inner", 1, 1, 1, options);
  return std::make_shared<ReformerInner>(options);
}

}  // namespace attend
