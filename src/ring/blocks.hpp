// Blocks of keys and values on their way around the ring, and the slices in which a block is worked on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "attend/tensor.hpp"
#include "ops/rows.hpp"
#include "ring/link.hpp"
#include "ring/shards.hpp"

namespace attend::ring {

struct Block {
  Tensor k, v;
};

inline std::string step_text(const Link& link, std::int64_t step, const char* what, std::int64_t of_rank) {
  return std::string(what) + " of rank " + std::to_string(of_rank) + " (step " + std::to_string(step + 1) + " of " +
         std::to_string(link.ranks()) + ")";
}

// K and V of all ranks, one after the other: at step t those of rank - t. Two blocks of memory.
class KeysValues {
 public:
  KeysValues(Link& link, const View& k, const View& v)
      : link_(link), here_{Tensor(k.dtype, k.shape), Tensor(v.dtype, v.shape)} {
    copy_rows(k, here_.k);
    copy_rows(v, here_.v);
    if (link.ranks() > 1) coming_ = {Tensor(k.dtype, k.shape), Tensor(v.dtype, v.shape)};
  }

  View k() const { return here_.k; }
  View v() const { return here_.v; }
  std::int64_t owner(std::int64_t step) const { return (link_.rank() + link_.ranks() - step) % link_.ranks(); }

  // The block in hand goes on, the next one comes; both stay readable and writable until finish().
  void start(std::int64_t step) {
    if (step + 1 >= link_.ranks()) return;
    for (Tensor Block::* part : {&Block::k, &Block::v}) {
      Tensor& in = coming_.*part;
      const Tensor& out = here_.*part;
      link_.receive(Kind::keys_values, in.view().data, in.bytes(), link_.previous(), messages_);
      link_.send(Kind::keys_values, out.view().data, out.bytes(), link_.next(), messages_);
    }
  }
  void finish(std::int64_t step) {
    if (step + 1 >= link_.ranks()) return;
    link_.wait(messages_, step_text(link_, step, "K and V", owner(step + 1)));
    std::swap(here_, coming_);
  }

 private:
  Link& link_;
  Block here_, coming_;
  Messages messages_;
};

// The gradients of the keys and values of all ranks, in f32: each block goes round behind its keys and values, every
// rank adds its share, and after P steps it is back with its owner. Sums start with the owner's share and go on in the
// order of ranks.
class CirculatingGradients {
 public:
  CirculatingGradients(Link& link, const Shape& k, const Shape& v) : link_(link), here_(block(k, v)) {
    if (link.ranks() == 1) return;
    leaving_ = block(k, v);
    coming_ = block(k, v);
  }

  MutableView dk() { return here_.k; }  // this rank's share at this step: zeros at its start
  MutableView dv() { return here_.v; }

  void start(std::int64_t step) {
    if (step == 0) return;
    clear(here_.k);
    clear(here_.v);
    receive();
  }
  void finish(std::int64_t step) {
    if (link_.ranks() == 1) return;
    if (step > 0) {
      link_.wait(received_, step_text(link_, step, "dK and dV", owner(step)));
      add(coming_.k, here_.k);
      add(coming_.v, here_.v);
      link_.wait(sent_, step_text(link_, step, "the taking of dK and dV", owner(step - 1)));
    }
    std::swap(here_, leaving_);
    for (Tensor Block::* part : {&Block::k, &Block::v}) {
      const Tensor& out = leaving_.*part;
      link_.send(Kind::gradients, out.view().data, out.bytes(), link_.next(), sent_);
    }
  }
  // After the last step: dk() and dv() are those of the rank's own keys and values.
  void return_to_owner() {
    if (link_.ranks() == 1) return;
    receive();
    link_.wait(received_, step_text(link_, link_.ranks() - 1, "dK and dV", link_.rank()));
    link_.wait(sent_, step_text(link_, link_.ranks() - 1, "the taking of dK and dV", link_.next()));
    std::swap(here_, coming_);
  }

 private:
  static Block block(const Shape& k, const Shape& v) { return {Tensor(DType::f32, k), Tensor(DType::f32, v)}; }
  static void clear(Tensor& x) { std::fill_n(x.data<float>(), x.size(), 0.0F); }
  static void add(const Tensor& from, Tensor& to) {
    const float* a = from.data<float>();
    float* b = to.data<float>();
    for_each_row(to.size() / std::max<std::int64_t>(1, to.shape()[3]), to.shape()[3], [&](std::int64_t r) {
      for (std::int64_t n = r * to.shape()[3]; n < (r + 1) * to.shape()[3]; ++n) b[n] = a[n] + b[n];
    });
  }
  std::int64_t owner(std::int64_t step) const { return (link_.rank() + link_.ranks() - step) % link_.ranks(); }
  void receive() {
    for (Tensor Block::* part : {&Block::k, &Block::v}) {
      Tensor& in = coming_.*part;
      link_.receive(Kind::gradients, in.view().data, in.bytes(), link_.previous(), received_);
    }
  }

  Link& link_;
  Block here_, leaving_, coming_;
  Messages sent_, received_;
};

// A part of a block that is computed in one go; transfers get a chance to move between two of them. The cut follows the
// problem alone.
struct SliceSize {
  std::int64_t heads, tokens;
};
// `work`: multiplications for one token of one KV head.
inline SliceSize slice_size(const RingOptions& options, std::int64_t heads, std::int64_t tokens, double work) {
  constexpr std::int64_t kLeastTokens = 64;  // fewer would read the other side too often
  const double head = std::max(1.0, work * static_cast<double>(tokens));
  if (head <= options.slice_work) {
    const double heads_each = std::min(options.slice_work / head, static_cast<double>(heads));
    return {std::max<std::int64_t>(1, static_cast<std::int64_t>(heads_each)), tokens};
  }
  const auto tokens_each = static_cast<std::int64_t>(std::min(options.slice_work / work, 0x1p40)) / 64 * 64;
  return {1, std::min(tokens, std::max(kLeastTokens, tokens_each))};
}

// f(first head, heads, first token, tokens) for every slice, in rising order.
template <class F>
void for_each_slice(std::int64_t heads, std::int64_t tokens, const SliceSize& size, const F& f) {
  for (std::int64_t h = 0; h < heads; h += size.heads) {
    for (std::int64_t i = 0; i < tokens; i += size.tokens) {
      f(h, std::min(size.heads, heads - h), i, std::min(size.tokens, tokens - i));
    }
  }
}

// Calls f(queries, keys) for the chunks of this rank's queries and of the block of `owner` that see one another.
template <class F>
void for_each_pair(const Link& link, const RingOptions& options, std::int64_t owner, std::int64_t local, const F& f) {
  if (!counts_positions(options.attention)) return f(Chunk{0, 0, local}, Chunk{0, 0, local});
  for (const Chunk& queries : chunks_of(options.sharding, link.rank(), link.ranks(), local)) {
    for (const Chunk& keys : chunks_of(options.sharding, owner, link.ranks(), local)) {
      if (sees(options.attention.mask, queries, keys)) f(queries, keys);
    }
  }
}

// Sums in f32, contiguous, rounded once to the dtype of `to`.
inline void round_rows(const View& from, const MutableView& to) {
  const std::int64_t D = to.dim();
  const auto* sums = static_cast<const float*>(from.data);
  visit_f32_family(to.dtype, [&](auto element) {
    using T = decltype(element);
    for_each_row(row_count(to.shape), D, [&](std::int64_t r) {
      const MutableRow<T> row = row_of<T>(to, r);
      for (std::int64_t d = 0; d < D; ++d) row.set(d, sums[r * D + d]);
    });
  });
}

inline void add_times(const RingOptions& options, const RingTimes& times) {
  if (options.times == nullptr) return;
  options.times->compute += times.compute;
  options.times->progress += times.progress;
  options.times->wait += times.wait;
  options.times->bytes_sent += times.bytes_sent;
}

}  // namespace attend::ring
