// Segments of Reformer's sorted tokens: what one worker gathers and attends for at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <vector>

#include "attend/reformer.hpp"
#include "base/checked.hpp"
#include "base/threads.hpp"
#include "ops/attention_call.hpp"
#include "ops/scratch.hpp"
#include "variants/lsh.hpp"
#include "variants/widened.hpp"

namespace attend::lsh {

inline constexpr std::int64_t kWaveBytes = 32 << 20;  // of sums of heads at a time; any number gives the same bits
// Sorted tokens at least that an item attends for: what it gathers stays in L2. Part of the bits.
inline constexpr std::int64_t kSegment = 512;

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
    for (AttentionOptions& a : attention) a.scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(D)));
    if (plan.causal) return;  // the interval ends before the token
    for (const std::int64_t before : {std::int64_t{0}, plan.chunk})
      attention[before > 0].rule = ScoreRule(
          [before](auto tile) {
            const std::int64_t first = before + tile.first_row - tile.first_col;  // the column of row 0's own token
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
  AttentionOptions attention[2];  // of a head's first segment, and of those with a chunk of keys before them
};

// Tokens [begin, end) of a head's sorted order, whole chunks, and the keys they may meet: those from `keys` on.
struct Segment {
  std::int64_t number;  // in its head
  std::int64_t begin, end, keys;

  std::int64_t rows() const { return end - begin; }
  std::int64_t before() const { return begin - keys; }  // keys of the segment before
  std::int64_t key_rows() const { return end - keys; }
};

struct Segments {
  explicit Segments(const LshPlan& plan) : L(plan.L), chunk(plan.chunk) {
    each = divide_up(kSegment, chunk) * chunk;
    count = divide_up(L, each);
  }
  Segment operator[](std::int64_t number) const {
    const std::int64_t begin = number * each;
    return {number, begin, std::min(L, begin + each), number == 0 ? 0 : begin - chunk};
  }
  std::int64_t longest() const { return std::min(L, each); }
  std::int64_t most_keys() const { return std::min(L, each + chunk); }

  std::int64_t L, chunk, each, count;
};

inline void copy_row(const float* from, std::int64_t step, std::int64_t count, float factor, float* to) {
  if (step == 1)
    for (std::int64_t d = 0; d < count; ++d) to[d] = factor * from[d];
  else
    for (std::int64_t d = 0; d < count; ++d) to[d] = factor * from[d * step];
}

// Rows in an order that no hardware prefetcher could guess are prefetched so many tokens before they are read.
inline constexpr std::int64_t kAhead = 8;
inline void prefetch_row(const float* row, std::int64_t step, std::int64_t count) {
  constexpr std::int64_t kLine = 64 / sizeof(float);
  for (std::int64_t d = 0; d < count; d += kLine) __builtin_prefetch(row + d * step);
}

// The memory of one worker, in parts of so many floats.
class Parts {
 public:
  explicit Parts(std::initializer_list<std::int64_t> sizes) : sizes_(sizes), scratch_(bytes()) {}
  float* of(int worker, std::size_t part) const {
    auto* here = static_cast<float*>(scratch_.of(worker));
    for (std::size_t n = 0; n < part; ++n) here += padded(sizes_[n]);
    return here;
  }
  int workers() const { return scratch_.workers(); }

 private:
  static std::int64_t padded(std::int64_t count) { return (count + 15) / 16 * 16; }
  std::int64_t bytes() const {
    std::int64_t sum = 0;
    for (const std::int64_t size : sizes_) sum += padded(size);
    return checked_product("reformer", {sum, std::int64_t{sizeof(float)}});
  }
  std::vector<std::int64_t> sizes_;
  Scratch scratch_;
};

inline MutableView rows_view(float* data, std::int64_t rows, std::int64_t dim) {
  return view_of(data, {1, 1, rows, dim});
}

// A segment of one round as a worker has gathered it: q, k and v in sorted order, and whom each row may meet.
class SegmentRows {
 public:
  SegmentRows(const Call& call, const Segments& segments)
      : call_(call),
        parts_({segments.longest() * call.D, segments.most_keys() * call.D, segments.most_keys() * call.E}),
        bounds_(2 * segments.longest() * std::int64_t{sizeof(std::int64_t)}) {}

  struct Rows {
    float *q, *k, *v;
    std::int64_t *lo, *hi;
  };

  // Head `head` of all, which is the n-th of those sorted.
  Rows gather(int worker, const SortedHeads& sorted, const float* inverse_norms, std::int64_t head, std::int64_t n,
              const Segment& s) const {
    auto* bounds = static_cast<std::int64_t*>(bounds_.of(worker));
    const Rows to{parts_.of(worker, 0), parts_.of(worker, 1), parts_.of(worker, 2), bounds, bounds + s.rows()};
    const std::int64_t D = call_.D, E = call_.E, b = head / call_.H, h = head % call_.H;
    const std::int32_t* order = sorted.order(n);
    for (std::int64_t t = s.keys; t < s.end; ++t) {
      if (t + kAhead < s.end) {
        prefetch_row(call_.q_in.row(b, h, order[t + kAhead]), call_.q_in.step(), D);
        prefetch_row(call_.v_in.row(b, h / call_.group, order[t + kAhead]), call_.v_in.step(), E);
      }
      const float* row = call_.q_in.row(b, h, order[t]);
      copy_row(row, call_.q_in.step(), D, inverse_norms[order[t]], to.k + (t - s.keys) * D);
      copy_row(call_.v_in.row(b, h / call_.group, order[t]), call_.v_in.step(), E, 1.0F, to.v + (t - s.keys) * E);
      if (t < s.begin) continue;
      copy_row(row, call_.q_in.step(), D, 1.0F, to.q + (t - s.begin) * D);
      to.lo[t - s.begin] = sorted.lo(n)[t] - s.keys;
      to.hi[t - s.begin] = sorted.hi(n)[t] - s.keys;
    }
    return to;
  }

  // Calls f with the attention of what was gathered.
  template <class F>
  void attend(const Rows& rows, const Segment& s, const F& f) const {
    AttentionCall attention(rows_view(rows.q, s.rows(), call_.D), rows_view(rows.k, s.key_rows(), call_.D),
                            rows_view(rows.v, s.key_rows(), call_.E), call_.attention[s.before() > 0]);
    attention.mask.row_lo = rows.lo;
    attention.mask.row_hi = rows.hi;
    f(attention);
  }
  int workers() const { return parts_.workers(); }

 private:
  const Call& call_;
  Parts parts_;
  Scratch bounds_;
};

// Calls f(n, segment, worker) for all segments of `heads` heads, over the threads.
template <class F>
void for_segments(std::int64_t heads, const Segments& segments, int workers, const F& f) {
  CallGuard guard;
  parallel_for(heads * segments.count, workers, [&](std::int64_t item, int worker) {
    guard.run([&] { f(item / segments.count, segments[item % segments.count], worker); });
  });
  guard.rethrow();
}

}  // namespace attend::lsh
