// Causal linear attention forward: chunks side by side, between them the states.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/threads.hpp"
#include "variants/linear_attention_states.hpp"

namespace attend::linear {
namespace {

// The rows of a chunk: o = decay_from_start S^T q + the sum over the chunk's earlier tokens of decay (q . k) v.
void write_rows(const Problem& p, const States& states, std::int64_t u, std::int64_t c, Workers& workers, int worker,
                const MutableView& out) {
  const Workspace w = workers.of(worker);
  const LinearAttentionKernels& kernel = rows_kernels();
  const Chunk place = states.chunk(u, c);
  const std::int64_t n = place.rows;
  const float *S = states.before(u, c), *z = S + p.F * p.E;
  Decays decays;
  workers.load_decays(worker, w, place, true, decays);
  load_keys(p, w, place, w.k);
  const float* v = p.delta ? states.written(u, c) : w.v;
  if (!p.delta) load_values(p, place, w.v);
  for (std::int64_t g = 0; g < p.G; ++g) {
    const std::int64_t h = place.unit.s * p.G + g;
    load_features(p, w, p.q, place.unit.b, h, place.first, n, w.q);
    multiply(matrix(w.q, n, p.F), matrix(w.k, n, p.F).transposed(), matrix(w.p, n, n), false, w.product);
    float *sums = w.row[0], *from_state = w.row[1], *factors = w.row[2];
    kernel.cut_rows(w.p, decays.ratio, n, 1, p.normalise ? sums : nullptr);
    if (decays.any) kernel.scale_rows(w.q, p.F, decays.from_start, n, p.F, w.q, false);
    multiply(matrix(w.q, n, p.F), matrix(S, p.F, p.E), matrix(w.o, n, p.E), false, w.product);
    multiply(matrix(w.p, n, n), matrix(v, n, p.E), matrix(w.o, n, p.E), true, w.product);
    const auto scale = static_cast<float>(p.options.scale), eps = static_cast<float>(p.options.eps);
    if (p.normalise) {
      kernel.dot_rows(w.q, z, 0, n, p.F, from_state);
      for (std::int64_t i = 0; i < n; ++i) {
        const float denominator = sums[i] + from_state[i] + eps;
        factors[i] = std::abs(denominator) < std::numeric_limits<float>::min() ? 0.0F : scale / denominator;
      }
    }
    store_rows(out, place.unit.b, h, place.first, n, w.o, p.normalise ? factors : nullptr, scale);
  }
}

}  // namespace

void causal_forward(const Problem& p, const MutableView& out, const std::optional<MutableView>& final_state) {
  const Windows windows(p, States::floats_per_chunk(p));
  Workers workers(p);
  States states(p, windows, workers);
  for (std::int64_t unit = 0; unit < p.units; unit += windows.units_at_once) {
    states.begin(unit, std::min(windows.units_at_once, p.units - unit));
    for (std::int64_t first = 0; first < windows.chunks; first += windows.chunks_at_once) {
      const std::int64_t last = std::min(windows.chunks, first + windows.chunks_at_once), count = last - first;
      states.fill(first, last);
      parallel_for(states.units() * count, workers.count(), [&](std::int64_t item, int worker) {
        write_rows(p, states, item / count, item % count, workers, worker, out);
      });
    }
    for (std::int64_t u = 0; final_state && u < states.units(); ++u)
      store_state(p, *final_state, p.unit(unit + u), states.run(u));
  }
}

}  // namespace attend::linear
