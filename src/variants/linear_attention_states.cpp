// The states of causal linear attention before each chunk of a window of tokens.
#include "variants/linear_attention_states.hpp"

#include <algorithm>

#include "base/checked.hpp"
#include "base/threads.hpp"

namespace attend::linear {
namespace {

constexpr std::int64_t kWindowFloats = (8 << 20) / 4;
// Chunks held at once if there are so many: enough for the threads, and still in the cache.
constexpr std::int64_t kItems = 64;
constexpr std::int64_t kLeastChunks = 4;
constexpr std::int64_t kColumns = 64;
constexpr std::int64_t kPiece = 2048;

}  // namespace

Windows::Windows(const Problem& p, std::int64_t floats_per_chunk) : chunks(chunks_of(p.N)) {
  // The delta rule makes a unit's states one after the other: a unit for every thread, as far as they fit.
  const std::int64_t fitting = kWindowFloats / std::max<std::int64_t>(1, kLeastChunks * floats_per_chunk);
  const std::int64_t side_by_side = p.delta ? std::min<std::int64_t>(thread_count(), fitting) : 1;
  units_at_once = std::clamp(std::max(divide_up(kItems, chunks), side_by_side), std::int64_t{1}, p.units);
  const std::int64_t fit = kWindowFloats / std::max<std::int64_t>(1, units_at_once * floats_per_chunk);
  chunks_at_once = std::min(chunks, std::clamp(fit, kLeastChunks, kItems));
}

std::int64_t States::floats_per_chunk(const Problem& p) {
  return p.state_floats() + (p.delta ? kChunk * (p.E + 2 * p.F) : 0);
}

States::States(const Problem& p, const Windows& windows, Workers& workers, bool keep_all)
    : p_(p),
      workers_(workers),
      keep_all_(keep_all),
      slots_(keep_all ? windows.chunks : windows.chunks_at_once),
      size_(p.state_floats()),
      run_(checked_product("linear_attention", {windows.units_at_once, size_})),
      states_(checked_product("linear_attention", {windows.units_at_once, slots_, size_})),
      totals_(windows.units_at_once * slots_),
      written_(p.delta ? checked_product("linear_attention", {windows.units_at_once, slots_, kChunk, p.E}) : 0),
      keys_(p.delta ? checked_product("linear_attention", {windows.units_at_once, slots_, kChunk, 2 * p.F}) : 0) {}

void States::begin(std::int64_t first_unit, std::int64_t units) {
  unit0_ = first_unit;
  units_ = units;
  for (std::int64_t u = 0; u < units; ++u) load_state(p_, p_.options.initial_state, p_.unit(first_unit + u), run(u));
}

void States::fill(std::int64_t first, std::int64_t last) {
  chunk0_ = first;
  base_ = keep_all_ ? first : 0;
  const std::int64_t count = last - first;
  parallel_for(units_ * count, workers_.count(), [&](std::int64_t item, int worker) {
    if (p_.delta)
      prepare_delta(item / count, item % count, worker);
    else
      prepare_sum(item / count, item % count, worker);
  });
  if (p_.delta)
    chain_delta(count);
  else
    chain_sum(count);
}

// What a chunk adds to the state: the sum of decay_to_end k v^T, and of decay_to_end k.
void States::prepare_sum(std::int64_t u, std::int64_t c, int worker) {
  const Workspace w = workers_.of(worker);
  const LinearAttentionKernels& kernel = rows_kernels();
  const Chunk place = chunk(u, c);
  Decays decays;
  workers_.load_decays(worker, w, place, false, decays);
  load_keys(p_, w, place, w.k);
  load_values(p_, place, w.v);
  if (decays.any) kernel.scale_rows(w.k, p_.F, decays.to_end, place.rows, p_.F, w.k, false);
  float* slot = before(u, c);
  multiply(matrix(w.k, place.rows, p_.F).transposed(), matrix(w.v, place.rows, p_.E), matrix(slot, p_.F, p_.E), false,
           w.product);
  totals_[u * slots_ + base_ + c] = decays.total;
  if (!p_.normalise) return;
  float* z = slot + p_.F * p_.E;
  std::fill_n(z, p_.F, 0.0F);
  kernel.sum_rows(w.k, nullptr, place.rows, p_.F, z);
}

void make_triangle(const Decays& decays, const float* beta, std::int64_t rows, float* t) {
  rows_kernels().cut_rows(t, decays.ratio, rows, 0, nullptr);
  rows_kernels().scale_rows(t, rows, beta, rows, rows, t, false);
}

void States::prepare_delta(std::int64_t u, std::int64_t c, int worker) {
  const Workspace w = workers_.of(worker);
  const LinearAttentionKernels& kernel = rows_kernels();
  const Chunk place = chunk(u, c);
  const std::int64_t n = place.rows;
  Decays decays;
  workers_.load_decays(worker, w, place, true, decays);
  load_keys(p_, w, place, w.k);
  load_values(p_, place, w.v);
  float* beta = w.row[0];
  load_beta(p_, place, beta);
  multiply(matrix(w.k, n, p_.F), matrix(w.k, n, p_.F).transposed(), matrix(w.p, n, n), false, w.product);
  make_triangle(decays, beta, n, w.p);

  float *U = written(u, c), *W = minus_w(u, c);
  kernel.scale_rows(w.v, p_.E, beta, n, p_.E, U, false);
  kernel.solve(w.p, false, n, U, p_.E);
  float* factors = w.row[1];
  for (std::int64_t i = 0; i < n; ++i) factors[i] = -beta[i] * decays.from_start[i];
  kernel.scale_rows(w.k, p_.F, factors, n, p_.F, W, false);
  kernel.solve(w.p, false, n, W, p_.F);
  kernel.scale_rows(w.k, p_.F, decays.to_end, n, p_.F, keys_to_end(u, c), false);
  totals_[u * slots_ + base_ + c] = decays.total;
}

void States::chain_sum(std::int64_t count) {
  const std::int64_t pieces = divide_up(size_, kPiece);
  parallel_for(units_ * pieces, [&](std::int64_t item, int) {
    const std::int64_t u = item / pieces, at = item % pieces * kPiece, n = std::min(kPiece, size_ - at);
    for (std::int64_t c = 0; c < count; ++c) rows_kernels().chain(run(u) + at, before(u, c) + at, total(u, c), n);
  });
}

// Columns of the state do not meet each other.
void States::chain_delta(std::int64_t count) {
  const std::int64_t blocks = divide_up(p_.E, kColumns);
  parallel_for(units_ * blocks, workers_.count(), [&](std::int64_t item, int worker) {
    const Workspace w = workers_.of(worker);
    const std::int64_t u = item / blocks, at = item % blocks * kColumns, cols = std::min(kColumns, p_.E - at);
    const FloatMatrix S{run(u) + at, p_.F, cols, p_.E};
    const auto keep = [&](std::int64_t c) {
      for (std::int64_t f = 0; f < p_.F; ++f) std::copy_n(S.data + f * p_.E, cols, before(u, c) + f * p_.E + at);
    };
    for (std::int64_t c = 0; c < count; ++c) {
      const std::int64_t n = chunk(u, c).rows;
      const FloatMatrix U{written(u, c) + at, n, cols, p_.E};
      keep(c);
      multiply(matrix(minus_w(u, c), n, p_.F), S, U, true, w.product);
      if (p_.options.log_decay)
        for (std::int64_t f = 0; f < p_.F; ++f) rows_kernels().scale(S.data + f * p_.E, total(u, c), cols);
      multiply(matrix(keys_to_end(u, c), n, p_.F).transposed(), U, S, true, w.product);
    }
  });
}

}  // namespace attend::linear
