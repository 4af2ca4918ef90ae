// Reformer's attention: rows gathered in sorted order, a segment at a time, attention over an interval of keys per row,
// rounds merged by LSE.
#include "attend/reformer.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "base/checked.hpp"
#include "base/elements.hpp"
#include "base/threads.hpp"
#include "cpu/dispatch.hpp"
#include "ops/attention_call.hpp"
#include "ops/rows.hpp"
#include "ops/scratch.hpp"
#include "ops/softmax_rows.hpp"
#include "reference/reformer.hpp"
#include "variants/lsh.hpp"
#include "variants/reformer_segments.hpp"
#include "variants/widened.hpp"

namespace attend {
namespace {

using namespace lsh;

const char* const kOp = "reformer";
const char* const kBackwardOp = "reformer_backward";
constexpr std::int64_t kTokens = 64;  // that an item of simple work has
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

// Calls f(n, first, last) for blocks of tokens of `heads` heads, over the threads.
template <class F>
void for_token_blocks(std::int64_t heads, std::int64_t L, const F& f) {
  const std::int64_t blocks = divide_up(L, kTokens);
  parallel_for(heads * blocks, [&](std::int64_t item, int) {
    const std::int64_t first = item % blocks * kTokens;
    f(item / blocks, first, std::min(L, first + kTokens));
  });
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

// The softmax of a segment's rows where their LSE does not suffice; elsewhere the LSE says it.
void fill_segment_states(const AttentionCall& attention, const float* lse, std::int64_t rows, RowState* states) {
  for (std::int64_t r = 0; r < rows; ++r) states[r] = state_of(static_cast<double>(lse[r]));
  fill_row_states(attention.problem(), lse, false, states);
}

// ---- Forward ----

struct ForwardWave {
  ForwardWave(const Call& call, std::int64_t heads)
      : sorted(call.plan, heads),
        inverse_norms(heads * call.L),
        out(heads * call.L * call.E),
        lse(heads * call.L),
        states(heads * call.L) {}

  SortedHeads sorted;
  Buffer<float> inverse_norms, out, lse;
  Buffer<RowState> states;
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
          wave.inverse_norms[at] > 0 ? *call.attention[0].scale / static_cast<double>(wave.inverse_norms[at]) : 0;
      store(*lse, b, h, i, 0, met ? static_cast<double>(wave.lse[at]) : own);
    }
  });
}

void forward(const Call& call, const WidenedResult& out, const std::optional<MutableView>& lse) {
  const std::int64_t L = call.L, E = call.E, at_once = call.heads_at_once(E + 2);
  const Segments segments(call.plan);
  const SegmentRows rows(call, segments);
  const Parts results({segments.longest() * E, segments.longest()});
  ForwardWave wave(call, at_once);
  for (std::int64_t first = 0; first < call.B * call.H; first += at_once) {
    const std::int64_t count = std::min(at_once, call.B * call.H - first);
    fill_inverse_norms(call, first, count, wave.inverse_norms.data());
    std::fill_n(wave.lse.data(), count * L, -kInfinity);
    for (std::int64_t round = 0; round < call.plan.rounds; ++round) {
      wave.sorted.sort(call.q_in, call.rotations, round, first, count);
      for_segments(count, segments, rows.workers(), [&](std::int64_t n, const Segment& s, int worker) {
        const auto gathered = rows.gather(worker, wave.sorted, wave.inverse_norms.data() + n * L, first + n, n, s);
        float *part = results.of(worker, 0), *part_lse = results.of(worker, 1);
        std::vector<RowState> states;  // empty: nobody needs them
        rows.attend(gathered, s, [&](AttentionCall& attention) {
          AttentionExtras extras;
          extras.lse = rows_view(part_lse, s.rows(), 1);
          run_attention(attention, rows_view(part, s.rows(), E), extras);
          if (all_suffice(part_lse, s.rows())) return;
          states.resize(static_cast<std::size_t>(s.rows()));
          fill_segment_states(attention, part_lse, s.rows(), states.data());
        });
        const std::int32_t* order = wave.sorted.order(n);
        for (std::int64_t t = s.begin; t < s.end; ++t) {
          if (t + kAhead < s.end) prefetch_row(wave.out.data() + (n * L + order[t + kAhead]) * E, 1, E);
          const std::int64_t at = n * L + order[t], from = t - s.begin;
          // Adds this round's average to that of those before.
          merge_into<float>(
              {wave.lse[at], &wave.states[at], wave.out.data() + at * E},
              {part_lse[from], states.empty() ? nullptr : &states[static_cast<std::size_t>(from)], part + from * E}, E);
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
  BackwardWave(const Call& call, const Segments& segments, std::int64_t heads)
      : sorted(call.plan, heads),
        inverse_norms(heads * call.L),
        dq(heads * call.L * call.D),
        dk(heads * call.L * call.D),
        dv(heads * call.L * call.E),
        met(heads * call.L),
        states(heads * call.L),
        before_each(call.plan.chunk * (call.D + call.E)),
        before(checked_product("reformer", {heads, segments.count, before_each})) {}

  SortedHeads sorted;
  Buffer<float> inverse_norms;
  Buffer<float> dq, dk, dv;
  Buffer<bool> met;
  Buffer<RowState> states;  // the softmax over all rounds, where an LSE does not suffice
  // What a segment adds to dk and dv of the chunk before it: [heads][segments][chunk][D], then [chunk][E]. Its owner
  // has those rows in hand, so that it waits here.
  std::int64_t before_each;
  Buffer<float> before;
};

struct BackwardInputs {
  WidenedInput dout, out;
  View lse;
};

// A worker's memory for one segment's attention backward.
struct SegmentGradients {
  SegmentGradients(const Call& call, const Segments& s)
      : parts({s.longest() * call.E, s.longest() * call.E, s.longest(), s.longest() * call.D, s.most_keys() * call.D,
               s.most_keys() * call.E}) {}
  struct Rows {
    float *dout, *out, *lse, *dq, *dk, *dv;
  };
  Rows of(int worker) const {
    return {parts.of(worker, 0), parts.of(worker, 1), parts.of(worker, 2),
            parts.of(worker, 3), parts.of(worker, 4), parts.of(worker, 5)};
  }
  Parts parts;
};

void gather_outputs(const Call& call, const BackwardInputs& in, const std::int32_t* order, std::int64_t head,
                    const Segment& s, const SegmentGradients::Rows& to) {
  const std::int64_t E = call.E, b = head / call.H, h = head % call.H;
  for (std::int64_t t = s.begin; t < s.end; ++t) {
    if (t + kAhead < s.end) {
      prefetch_row(in.dout.row(b, h, order[t + kAhead]), in.dout.step(), E);
      prefetch_row(in.out.row(b, h, order[t + kAhead]), in.out.step(), E);
    }
    const std::int64_t at = t - s.begin;
    copy_row(in.dout.row(b, h, order[t]), in.dout.step(), E, 1.0F, to.dout + at * E);
    copy_row(in.out.row(b, h, order[t]), in.out.step(), E, 1.0F, to.out + at * E);
    to.lse[at] = static_cast<float>(load(in.lse, b, h, order[t], 0));
  }
}

// Where an LSE of a head is too large to make weights from: the softmax of its rows over all rounds. False: nowhere.
bool fill_whole_states(const Call& call, const BackwardInputs& in, const Segments& segments, const SegmentRows& rows,
                       const SegmentGradients& gradients, BackwardWave& wave, std::int64_t first, std::int64_t count) {
  const std::int64_t L = call.L;
  bool all = true;
  for (std::int64_t at = 0; at < count * L; ++at) {
    const std::int64_t head = first + at / L;
    all &= lse_suffices(static_cast<float>(load(in.lse, head / call.H, head % call.H, at % L, 0)));
    wave.states[at] = RowState{};
  }
  if (all) return false;
  for (std::int64_t round = 0; round < call.plan.rounds; ++round) {
    wave.sorted.sort(call.q_in, call.rotations, round, first, count);
    for_segments(count, segments, rows.workers(), [&](std::int64_t n, const Segment& s, int worker) {
      const auto gathered = rows.gather(worker, wave.sorted, wave.inverse_norms.data() + n * L, first + n, n, s);
      const SegmentGradients::Rows of = gradients.of(worker);
      const std::int32_t* order = wave.sorted.order(n);
      gather_outputs(call, in, order, first + n, s, of);
      std::vector<RowState> states(static_cast<std::size_t>(s.rows()));
      rows.attend(gathered, s,
                  [&](AttentionCall& attention) { fill_segment_states(attention, of.lse, s.rows(), states.data()); });
      for (std::int64_t t = s.begin; t < s.end; ++t) {
        RowState& whole = wave.states[n * L + order[t]];
        if (!lse_suffices(of.lse[t - s.begin])) whole = merge(whole, states[static_cast<std::size_t>(t - s.begin)]);
      }
    });
  }
  return true;
}

void take_row(const float* from, std::int64_t width, bool add, float* to) {
  if (add)
    for (std::int64_t d = 0; d < width; ++d) to[d] += from[d];
  else
    std::copy_n(from, width, to);
}

// Adds a segment's gradients to those of its tokens, in round 0 instead of them.
void scatter(const Call& call, const BackwardWave& wave, std::int64_t n, const Segment& s, std::int64_t segments,
             const SegmentRows::Rows& rows, const SegmentGradients::Rows& from, bool add) {
  const std::int64_t L = call.L, D = call.D, E = call.E, before = s.before();
  const std::int32_t* order = wave.sorted.order(n);
  float* waiting = wave.before.data() + (n * segments + s.number) * wave.before_each;
  std::copy_n(from.dk, before * D, waiting);
  std::copy_n(from.dv, before * E, waiting + call.plan.chunk * D);
  for (std::int64_t t = s.begin; t < s.end; ++t) {
    if (t + kAhead < s.end) {
      const std::int64_t soon = n * L + order[t + kAhead];
      prefetch_row(wave.dq.data() + soon * D, 1, D);
      prefetch_row(wave.dk.data() + soon * D, 1, D);
      prefetch_row(wave.dv.data() + soon * E, 1, E);
    }
    const std::int64_t at = n * L + order[t], row = t - s.begin, key = t - s.keys;
    take_row(from.dq + row * D, D, add, wave.dq.data() + at * D);
    take_row(from.dk + key * D, D, add, wave.dk.data() + at * D);
    take_row(from.dv + key * E, E, add, wave.dv.data() + at * E);
    wave.met[at] = (add && wave.met[at]) || rows.lo[row] < rows.hi[row];
  }
}

// Then what the next segment had for the last chunk of this one.
void scatter_waiting(const Call& call, const BackwardWave& wave, std::int64_t n, const Segment& s,
                     std::int64_t segments) {
  const std::int64_t L = call.L, D = call.D, E = call.E;
  const float* waiting = wave.before.data() + (n * segments + s.number) * wave.before_each;
  for (std::int64_t r = 0; r < s.before(); ++r) {
    const std::int64_t at = n * L + wave.sorted.order(n)[s.keys + r];
    take_row(waiting + r * D, D, true, wave.dk.data() + at * D);
    take_row(waiting + call.plan.chunk * D + r * E, E, true, wave.dv.data() + at * E);
  }
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
  const std::int64_t L = call.L, D = call.D, E = call.E, at_once = call.heads_at_once(2 * D + E);
  const Segments segments(call.plan);
  const SegmentRows rows(call, segments);
  const SegmentGradients gradients(call, segments);
  BackwardWave wave(call, segments, at_once);
  fill_zero(dv.view());
  for (std::int64_t first = 0; first < call.B * call.H; first += at_once) {
    const std::int64_t count = std::min(at_once, call.B * call.H - first);
    fill_inverse_norms(call, first, count, wave.inverse_norms.data());
    const bool large = fill_whole_states(call, in, segments, rows, gradients, wave, first, count);
    for (std::int64_t round = 0; round < call.plan.rounds; ++round) {
      wave.sorted.sort(call.q_in, call.rotations, round, first, count);
      for_segments(count, segments, rows.workers(), [&](std::int64_t n, const Segment& s, int worker) {
        const auto gathered = rows.gather(worker, wave.sorted, wave.inverse_norms.data() + n * L, first + n, n, s);
        const SegmentGradients::Rows of = gradients.of(worker);
        gather_outputs(call, in, wave.sorted.order(n), first + n, s, of);
        std::vector<RowState> whole;
        for (std::int64_t t = s.begin; large && t < s.end; ++t)
          whole.push_back(wave.states[n * L + wave.sorted.order(n)[t]]);
        rows.attend(gathered, s, [&](AttentionCall& attention) {
          run_attention_backward(attention, rows_view(of.dout, s.rows(), E), rows_view(of.out, s.rows(), E),
                                 rows_view(of.lse, s.rows(), 1),
                                 {rows_view(of.dq, s.rows(), D),
                                  rows_view(of.dk, s.key_rows(), D),
                                  rows_view(of.dv, s.key_rows(), E),
                                  {},
                                  {}},
                                 large ? whole.data() : nullptr);
        });
        scatter(call, wave, n, s, segments.count, gathered, of, round > 0);
      });
      for_segments(count, segments, rows.workers(),
                   [&](std::int64_t n, const Segment& s, int) { scatter_waiting(call, wave, n, s, segments.count); });
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
  check_outputs(q, q, v, {}, out, extras);
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
  check_results(kBackwardOp, dout, out, lse, {q.batch(), q.heads(), q.length(), v.dim()}, q.dtype);
  for (const auto& [what, gradient, of] : {std::tuple{"dq", gradients.dq, q}, {"dv", gradients.dv, v}}) {
    check_writable(kBackwardOp, what, gradient);
    check_shape(kBackwardOp, what, gradient.shape, of.shape);
    check_dtype(kBackwardOp, what, gradient.dtype, q.dtype);
  }
  check_all_apart(kBackwardOp, {{"dq", gradients.dq}, {"dv", gradients.dv}},
                  {{"q", q}, {"v", v}, {"dout", dout}, {"out", out}, {"lse", lse}});
  kernels();
  if (q.batch() == 0 || q.length() == 0) return;
  if (q.dtype == DType::f64) return reference::reformer_backward(dout, q, v, hashes_f64(q, plan), gradients, options);
  const WidenedResult dq(gradients.dq), dv(gradients.dv);
  backward(Call(plan, q, v, options), {WidenedInput(dout), WidenedInput(out), lse}, dq, dv);
  dq.store();
  dv.store();
}

// ---- The inner attention ----

namespace {

class ReformerInner final : public InnerAttention {
 public:
  explicit ReformerInner(ReformerOptions options) : options_(std::move(options)) {}

  const char* name() const override { return "Reformer"; }

  void forward(View q, View k, View v, MutableView out, std::vector<Tensor>* saved) const override {
    check_equal(name(), "k length", k.length(), q.length(), "q length: queries and keys are shared");
    reformer(q, v, out, options_, saved_lse(q, saved));
  }

  std::vector<Tensor> backward(View dout, View q, View k, View v, View out, const std::vector<Tensor>& saved,
                               MutableView dq, MutableView dk, MutableView dv) const override {
    check_saved(name(), saved, 1);
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
