// What the forms of linear attention share: the problem as numbers, a chunk of tokens in f32, a worker's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "attend/linear_attention.hpp"
#include "base/checked.hpp"
#include "cpu/dispatch.hpp"
#include "ops/matmul.hpp"
#include "ops/scratch.hpp"

namespace attend::linear {

// Tokens whose products with each other are computed directly; part of the bits.
constexpr std::int64_t kChunk = 64;

// One state and what reads and writes it.
struct Unit {
  std::int64_t b, s;
  std::int64_t kv;  // its KV head
};
struct Chunk {
  Unit unit;
  std::int64_t first, rows;
  std::int64_t visible;  // rows before lengths[b]; the others leave the state as it is
};

struct Problem {
  Problem(View q, View k, View v, const LinearAttentionOptions& options);

  View q, k, v;
  const LinearAttentionOptions& options;
  std::int64_t B, H, Hk, Hs, M, N, D, F, E;
  std::int64_t G;      // query heads a state has
  std::int64_t units;  // B * Hs
  bool normalise, delta;

  std::int64_t state_floats() const { return F * E + (normalise ? F : 0); }  // S, then z
  Unit unit(std::int64_t n) const { return {n / Hs, n % Hs, n % Hs * Hk / Hs}; }
  Chunk chunk(const Unit& unit, std::int64_t c, std::int64_t length) const;
  std::int64_t visible_keys(std::int64_t b) const;  // of N
};

inline std::int64_t chunks_of(std::int64_t length) {
  return divide_up(length, kChunk);
}

// The decays within a chunk, all at most 1: from before its first token to after token i, from after token j to its
// end, from after j to after i, and over all of it. Ratios come from differences of sums of logs, never from a
// quotient.
struct Decays {
  bool any = false;  // else all are 1, and `ratio` is null
  float from_start[kChunk], to_end[kChunk];
  float total = 1;
  const float* ratio = nullptr;  // [rows][rows], its lower triangle
};

// The memory of one worker: matrices of a chunk, in floats.
struct Workspace {
  float *k, *q, *f1, *f2;      // [kChunk, F]
  float *v, *o, *e1;           // [kChunk, E], and room for one more
  float *raw, *draw;           // [kChunk, D], for maps of the user's own
  float *p, *dp, *kk, *ratio;  // [kChunk, kChunk]
  float* state;                // state_floats
  float* row[6];               // [kChunk]
  void* product;               // for block_product

  static std::int64_t bytes(const Problem& problem);
  Workspace(const Problem& problem, void* memory);
};

// A worker's memory and what it remembers between items.
class Workers {
 public:
  explicit Workers(const Problem& p) : problem_(p), scratch_(Workspace::bytes(p)), ratio_of_(at_most(), -1) {}

  int count() const { return scratch_.workers(); }
  Workspace of(int worker) const { return {problem_, scratch_.of(worker)}; }
  // The decays of a chunk, with ratios in the workspace if wanted. A head whose decay is one number has them once.
  void load_decays(int worker, const Workspace& w, const Chunk& chunk, bool ratios, Decays& decays);

 private:
  std::size_t at_most() const { return static_cast<std::size_t>(scratch_.workers()); }
  const Problem& problem_;
  Scratch scratch_;
  std::vector<std::int64_t> ratio_of_;  // the unit whose ratios of a whole chunk a worker holds
};

inline const LinearAttentionKernels& rows_kernels() {
  return kernels().linear_attention;
}

inline FloatMatrix matrix(const float* data, std::int64_t rows, std::int64_t cols) {
  return {const_cast<float*>(data), rows, cols, cols};
}

// c = a . b, or c += a . b; all contiguous along a row or a column, c along its rows.
inline void multiply(const FloatMatrix& a, const FloatMatrix& b, const FloatMatrix& c, bool add, void* scratch,
                     const RowsAhead& first = {}, const RowsAhead& second = {}) {
  if (c.rows == 0 || c.cols == 0) return;
  if (rows_kernels().product({a.data,
                              a.row_stride,
                              a.col_stride,
                              b.data,
                              b.row_stride,
                              b.col_stride,
                              c.data,
                              c.row_stride,
                              c.rows,
                              c.cols,
                              a.cols,
                              add,
                              {first, second}},
                             scratch))
    return;
  block_product(a, b, c, add, scratch);
}

// kChunk rows of a head from `first` on, as what comes soon; none past the end.
inline RowsAhead rows_ahead(const View& x, std::int64_t b, std::int64_t h, std::int64_t first) {
  if (first + kChunk > x.length() || x.strides[3] != 1) return {};
  const std::int64_t size = size_of(x.dtype);
  return {static_cast<const char*>(x.data) + (b * x.strides[0] + h * x.strides[1] + first * x.strides[2]) * size,
          x.strides[2] * size, x.dim() * size};
}

// Rows of a head as floats, and back times `factor`, or a factor a row.
void load_rows(const View& x, std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t rows, float* to);
void store_rows(const MutableView& x, std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t rows,
                const float* from, const float* factors = nullptr, float factor = 1);

// phi of rows of a head, [rows][F]; and the gradient of the rows from that of the features, in place for known maps:
// returns where it is, [rows][D].
void load_features(const Problem& p, const Workspace& w, const View& x, std::int64_t b, std::int64_t h,
                   std::int64_t first, std::int64_t rows, float* to);
float* feature_gradient(const Problem& p, const Workspace& w, const View& x, std::int64_t b, std::int64_t h,
                        std::int64_t first, std::int64_t rows, const float* features, float* gradient);

// Keys and values of a chunk; those past the length are zero.
void load_keys(const Problem& p, const Workspace& w, const Chunk& chunk, float* to);
void load_values(const Problem& p, const Chunk& chunk, float* to);
void load_beta(const Problem& p, const Chunk& chunk, float* to);

// The scalar of token t of a state head in [1|B, 1|Hk|H, 1|N, 1].
double scalar_at(const Problem& p, const View& x, const Unit& unit, std::int64_t t);

// A unit's state as S then z, from and to the public [F, E (+ 1)]; without a view it is zero.
void load_state(const Problem& p, const std::optional<View>& x, const Unit& unit, float* to);
void store_state(const Problem& p, const MutableView& x, const Unit& unit, const float* from);

// The gradient of scalars per token and unit, summed into a view with repeated dimensions.
void sum_scalars(const Problem& p, const double* values, const MutableView& to);

// Where gradients of k and v go: into the views, or, where several states read one KV head, into floats first.
class KeyGradients {
 public:
  KeyGradients(const Problem& p, const MutableView& dk, const MutableView& dv);
  void store(const Chunk& chunk, const float* dk, const float* dv) const;  // [rows, D] and [rows, E]
  void finish() const;

 private:
  const Problem& p_;
  MutableView dk_, dv_;
  bool shared_;
  Buffer<float> partial_;  // dk [units, N, D], then dv [units, N, E]
};

// The forms: arguments checked, f32 family, nothing empty but perhaps F.
void causal_forward(const Problem& p, const MutableView& out, const std::optional<MutableView>& final_state);
void causal_backward(const Problem& p, const View& dout, const LinearAttentionGradients& gradients,
                     const std::optional<View>& dfinal_state);
void full_forward(const Problem& p, const MutableView& out, const std::optional<MutableView>& final_state);
void full_backward(const Problem& p, const View& dout, const LinearAttentionGradients& gradients,
                   const std::optional<View>& final_state);
void step(const Problem& p, const MutableView& out, const MutableView& state);

}  // namespace attend::linear
