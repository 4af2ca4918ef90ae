// Linear attention over all keys: one state from all of them, read by every query.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/checked.hpp"
#include "base/threads.hpp"
#include "variants/linear_attention_chunks.hpp"

namespace attend::linear {
namespace {

// A sum over the rows of a unit is cut into at most 64 segments, by its length alone, and merged in order.
struct Segments {
  explicit Segments(std::int64_t length) : chunks(chunks_of(length)) {
    each = std::max<std::int64_t>(8, (chunks + 63) / 64);
    count = std::max<std::int64_t>(1, divide_up(chunks, each));
  }
  std::int64_t chunks, each, count;
};

class Full {
 public:
  explicit Full(const Problem& p)
      : p_(p),
        workers_(p),
        size_(p.state_floats()),
        keys_(p.N),
        queries_(p.M),
        states_(partials(keys_)),
        transposed_(checked_product("linear_attention", {p.units, p.F, p.E})) {}

  void sum_states();
  void load_states(const View& from);
  void store_states(const MutableView& to);
  void write_rows(const MutableView& out);
  void backward(const View& dout, const LinearAttentionGradients& gradients);  // after the states

 private:
  std::int64_t partials(const Segments& s) const {
    return checked_product("linear_attention", {p_.units, s.count, size_});
  }
  // Calls f(unit, chunk, workspace) for all chunks; those of a segment follow each other on one worker.
  template <class F>
  void for_segments(const Segments& segments, const F& f) {
    parallel_for(p_.units * segments.count, workers_.count(), [&](std::int64_t item, int worker) {
      const std::int64_t first = item % segments.count * segments.each;
      for (std::int64_t c = first; c < std::min(segments.chunks, first + segments.each); ++c)
        f(item / segments.count, c, workers_.of(worker));
    });
  }
  // After merge() the first partial of a unit is its sum.
  void merge(float* partial, const Segments& segments);
  // The state of each unit, or its gradient, with rows and columns exchanged: products run along its rows.
  void transpose(const float* partial, const Segments& segments);
  float* transposed(std::int64_t u) const { return transposed_.data() + u * p_.F * p_.E; }
  float* state(std::int64_t u) const { return states_.data() + u * keys_.count * size_; }
  void add_keys(std::int64_t u, std::int64_t c, const Workspace& w, float* sum, bool first);
  void factors_of(const Workspace& w, const float* z, std::int64_t n, float scale, float* factors) const;
  void read_rows(std::int64_t u, std::int64_t c, const Workspace& w, const View& dout, const MutableView& dq,
                 float* sum, bool first);
  void finish_keys(std::int64_t u, std::int64_t c, const Workspace& w, const float* dS, const KeyGradients& to);

  const Problem& p_;
  Workers workers_;
  std::int64_t size_;
  Segments keys_, queries_;
  Buffer<float> states_, transposed_;
};

void Full::merge(float* partial, const Segments& segments) {
  parallel_for(p_.units, [&](std::int64_t u, int) {
    float* sum = partial + u * segments.count * size_;
    for (std::int64_t n = 1; n < segments.count; ++n) rows_kernels().sum_rows(sum + n * size_, nullptr, 1, size_, sum);
  });
}

void Full::transpose(const float* partial, const Segments& segments) {
  for (std::int64_t u = 0; u < p_.units; ++u)
    for (std::int64_t f = 0; f < p_.F; ++f)
      for (std::int64_t e = 0; e < p_.E; ++e)
        transposed(u)[e * p_.F + f] = partial[u * segments.count * size_ + f * p_.E + e];
}

void Full::sum_states() {
  if (p_.N == 0) std::fill_n(states_.data(), p_.units * size_, 0.0F);
  for_segments(keys_, [&](std::int64_t u, std::int64_t c, const Workspace& w) {
    add_keys(u, c, w, state(u) + c / keys_.each * size_, c % keys_.each == 0);
  });
  merge(states_.data(), keys_);
}

void Full::load_states(const View& from) {
  for (std::int64_t u = 0; u < p_.units; ++u) load_state(p_, from, p_.unit(u), state(u));
}
void Full::store_states(const MutableView& to) {
  for (std::int64_t u = 0; u < p_.units; ++u) store_state(p_, to, p_.unit(u), state(u));
}

void Full::add_keys(std::int64_t u, std::int64_t c, const Workspace& w, float* sum, bool first) {
  const Chunk place = p_.chunk(p_.unit(u), c, p_.N);
  if (first) std::fill_n(sum, size_, 0.0F);
  load_keys(p_, w, place, w.k);
  load_values(p_, place, w.v);
  multiply(matrix(w.k, place.rows, p_.F).transposed(), matrix(w.v, place.rows, p_.E), matrix(sum, p_.F, p_.E), !first,
           w.product, rows_ahead(p_.k, place.unit.b, place.unit.kv, place.first + kChunk),
           rows_ahead(p_.v, place.unit.b, place.unit.kv, place.first + kChunk));
  if (p_.normalise) rows_kernels().sum_rows(w.k, nullptr, place.rows, p_.F, sum + p_.F * p_.E);
}

// scale / (q . z + eps), or zero.
void Full::factors_of(const Workspace& w, const float* z, std::int64_t n, float scale, float* factors) const {
  rows_kernels().dot_rows(w.q, z, 0, n, p_.F, factors);
  for (std::int64_t i = 0; i < n; ++i) {
    const float denominator = factors[i] + static_cast<float>(p_.options.eps);
    factors[i] = std::abs(denominator) < std::numeric_limits<float>::min() ? 0.0F : scale / denominator;
  }
}

void Full::write_rows(const MutableView& out) {
  for_segments(queries_, [&](std::int64_t u, std::int64_t c, const Workspace& w) {
    const Chunk place = p_.chunk(p_.unit(u), c, p_.M);
    const float *S = state(u), scale = static_cast<float>(p_.options.scale);
    for (std::int64_t g = 0; g < p_.G; ++g) {
      const std::int64_t h = place.unit.s * p_.G + g;
      load_features(p_, w, p_.q, place.unit.b, h, place.first, place.rows, w.q);
      multiply(matrix(w.q, place.rows, p_.F), matrix(S, p_.F, p_.E), matrix(w.o, place.rows, p_.E), false, w.product,
               rows_ahead(p_.q, place.unit.b, h, place.first + kChunk));
      if (p_.normalise) factors_of(w, S + p_.F * p_.E, place.rows, scale, w.row[0]);
      store_rows(out, place.unit.b, h, place.first, place.rows, w.o, p_.normalise ? w.row[0] : nullptr, scale);
    }
  });
}

// dq of a chunk of rows, and what they add to the gradient of the state.
void Full::read_rows(std::int64_t u, std::int64_t c, const Workspace& w, const View& dout, const MutableView& dq,
                     float* sum, bool first) {
  const LinearAttentionKernels& kernel = rows_kernels();
  const Chunk place = p_.chunk(p_.unit(u), c, p_.M);
  const std::int64_t n = place.rows, F = p_.F, E = p_.E, b = place.unit.b;
  const float *S = state(u), *z = S + F * E;
  float *factors = w.row[0], *terms = w.row[1];
  if (first) std::fill_n(sum, size_, 0.0F);
  for (std::int64_t g = 0; g < p_.G; ++g) {
    const std::int64_t h = place.unit.s * p_.G + g;
    load_features(p_, w, p_.q, b, h, place.first, n, w.q);
    load_rows(dout, b, h, place.first, n, w.o);
    if (p_.options.scale != 1) kernel.scale(w.o, static_cast<float>(p_.options.scale), n * E);
    if (p_.normalise) {
      factors_of(w, z, n, 1, factors);
      kernel.scale_rows(w.o, E, factors, n, E, w.o, false);
    }
    multiply(matrix(w.o, n, E), matrix(transposed(u), E, F), matrix(w.f1, n, F), false, w.product,
             rows_ahead(p_.q, b, h, place.first + kChunk));
    if (p_.normalise) {
      kernel.dot_rows(w.q, w.f1, F, n, F, terms);
      for (std::int64_t i = 0; i < n; ++i) terms[i] *= -factors[i];
      kernel.scale_rows(z, 0, terms, n, F, w.f1, true);
      kernel.sum_rows(w.q, terms, n, F, sum + F * E);
    }
    multiply(matrix(w.q, n, F).transposed(), matrix(w.o, n, E), matrix(sum, F, E), !first || g > 0, w.product,
             rows_ahead(dout, b, h, place.first + kChunk));
    store_rows(dq, b, h, place.first, n, feature_gradient(p_, w, p_.q, b, h, place.first, n, w.q, w.f1));
  }
}

void Full::finish_keys(std::int64_t u, std::int64_t c, const Workspace& w, const float* dS, const KeyGradients& to) {
  const Chunk place = p_.chunk(p_.unit(u), c, p_.N);
  const std::int64_t n = place.rows, F = p_.F, E = p_.E;
  load_keys(p_, w, place, w.k);
  load_values(p_, place, w.v);
  multiply(matrix(w.v, n, E), matrix(transposed(u), E, F), matrix(w.f1, n, F), false, w.product,
           rows_ahead(p_.k, place.unit.b, place.unit.kv, place.first + kChunk));
  multiply(matrix(w.k, n, F), matrix(dS, F, E), matrix(w.o, n, E), false, w.product,
           rows_ahead(p_.v, place.unit.b, place.unit.kv, place.first + kChunk));
  if (p_.normalise)
    for (std::int64_t i = 0; i < n; ++i) rows_kernels().sum_rows(dS + F * E, nullptr, 1, F, w.f1 + i * F);
  float* dx = feature_gradient(p_, w, p_.k, place.unit.b, place.unit.kv, place.first, place.visible, w.k, w.f1);
  std::fill(dx + place.visible * p_.D, dx + n * p_.D, 0.0F);
  to.store(place, dx, w.o);
}

void Full::backward(const View& dout, const LinearAttentionGradients& gradients) {
  const Buffer<float> dstates(partials(queries_));
  transpose(states_.data(), keys_);
  if (p_.M == 0) std::fill_n(dstates.data(), p_.units * size_, 0.0F);
  for_segments(queries_, [&](std::int64_t u, std::int64_t c, const Workspace& w) {
    float* sum = dstates.data() + (u * queries_.count + c / queries_.each) * size_;
    read_rows(u, c, w, dout, gradients.dq, sum, c % queries_.each == 0);
  });
  merge(dstates.data(), queries_);
  transpose(dstates.data(), queries_);
  const KeyGradients to(p_, gradients.dk, gradients.dv);
  for_segments(keys_, [&](std::int64_t u, std::int64_t c, const Workspace& w) {
    finish_keys(u, c, w, dstates.data() + u * queries_.count * size_, to);
  });
  to.finish();
}

}  // namespace

void full_forward(const Problem& p, const MutableView& out, const std::optional<MutableView>& final_state) {
  Full full(p);
  full.sum_states();
  if (final_state) full.store_states(*final_state);
  full.write_rows(out);
}

void full_backward(const Problem& p, const View& dout, const LinearAttentionGradients& gradients,
                   const std::optional<View>& final_state) {
  Full full(p);
  if (final_state)
    full.load_states(*final_state);
  else
    full.sum_states();
  full.backward(dout, gradients);
}

}  // namespace attend::linear
