// The states of causal linear attention before each chunk of a window of tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "base/checked.hpp"
#include "variants/linear_attention_chunks.hpp"

namespace attend::linear {

// How much is held at once: some units, and of those a window of chunks. It never shows in the bits.
struct Windows {
  Windows(const Problem& p, std::int64_t floats_per_chunk);

  std::int64_t chunks;  // of all tokens
  std::int64_t units_at_once, chunks_at_once;

  std::int64_t count() const { return divide_up(chunks, chunks_at_once); }
};

// Chunks side by side make what they add; then the states follow each other in order; chunks then read them side by
// side again. With the delta rule a chunk writes U instead of its values, and
//   (I + T) U = beta (V - decay K S),  T(i, j) = beta_i decay(i, j) k_i . k_j below the diagonal
// is solved for U = U0 - W S before S is known.
class States {
 public:
  // `keep_all`: room for all chunks of the units at once, so that earlier windows can be shown again.
  States(const Problem& p, const Windows& windows, Workers& workers, bool keep_all = false);
  static std::int64_t floats_per_chunk(const Problem& p);

  // The units of the next windows, and their states before the first of them.
  void begin(std::int64_t first_unit, std::int64_t units);
  // Fills the window of chunks [first, last): begin() or the windows before it have left the state before it in run().
  void fill(std::int64_t first, std::int64_t last);
  // Shows a window that was filled before; with keep_all.
  void show(std::int64_t first) { chunk0_ = base_ = first; }

  // Unit u counts from the first of begin(), chunk c from the first of the window.
  float* run(std::int64_t u) const { return run_.data() + u * size_; }
  float* before(std::int64_t u, std::int64_t c) const { return states_.data() + (u * slots_ + base_ + c) * size_; }
  float total(std::int64_t u, std::int64_t c) const { return totals_[u * slots_ + base_ + c]; }
  // Of the delta rule: U [rows, E], -W [rows, F], keys times their decay to the chunk's end [rows, F].
  float* written(std::int64_t u, std::int64_t c) const {
    return written_.data() + (u * slots_ + base_ + c) * kChunk * p_.E;
  }
  float* minus_w(std::int64_t u, std::int64_t c) const {
    return keys_.data() + (u * slots_ + base_ + c) * 2 * kChunk * p_.F;
  }
  float* keys_to_end(std::int64_t u, std::int64_t c) const { return minus_w(u, c) + kChunk * p_.F; }
  Chunk chunk(std::int64_t u, std::int64_t c) const { return p_.chunk(p_.unit(unit0_ + u), chunk0_ + c, p_.N); }
  std::int64_t units() const { return units_; }

 private:
  void prepare_sum(std::int64_t u, std::int64_t c, int worker);
  void prepare_delta(std::int64_t u, std::int64_t c, int worker);
  void chain_sum(std::int64_t count);
  void chain_delta(std::int64_t count);

  const Problem& p_;
  Workers& workers_;
  bool keep_all_;
  std::int64_t slots_, size_;
  std::int64_t unit0_ = 0, units_ = 0, chunk0_ = 0;
  std::int64_t base_ = 0;  // the slot of the window's first chunk
  Buffer<float> run_, states_, totals_, written_, keys_;
};

// T of the delta rule from k . k^T [rows, rows] in `t`.
void make_triangle(const Decays& decays, const float* beta, std::int64_t rows, float* t);

}  // namespace attend::linear
