// Keys and values of running sequences, kept the way the kernels read them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>

#include "attend/attention.hpp"
#include "attend/export.h"
#include "attend/state_pointer.hpp"

namespace attend {

struct PagedKvCacheOptions {
  DType dtype = DType::f32;  // of q, k and v: f32, bf16 or f16
  std::int64_t kv_heads = 0, key_dim = 0, value_dim = 0;
  std::int64_t pages = 0;  // of PagedKvCache::kPageTokens tokens each, for all sequences together
  // Keys and values as int8 with one scale per token, head and side: half the memory of bf16. Each number is off by at
  // most 1/254 of the largest in its row, and by the rounding of the dtype.
  bool int8 = false;
};

// An append that the free pages cannot hold.
class ATTEND_API OutOfPages : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A pool of pages and the sequences that hold them. Calls that change it must not run at the same time as others.
class ATTEND_API PagedKvCache {
 public:
  static constexpr std::int64_t kPageTokens = 64;
  static constexpr std::int64_t kSplitTokens = 512;  // forgetting a multiple of so many at the front keeps every bit
  static constexpr std::int64_t pages_for(std::int64_t tokens) {  // that so many tokens of one sequence take
    return tokens / kPageTokens + (tokens % kPageTokens != 0 ? 1 : 0);
  }

  explicit PagedKvCache(const PagedKvCacheOptions& options);
  ~PagedKvCache();
  PagedKvCache(PagedKvCache&&) noexcept;
  PagedKvCache& operator=(PagedKvCache&&) noexcept;

  const PagedKvCacheOptions& options() const;
  std::int64_t bytes() const;            // all pages
  std::int64_t bytes_per_token() const;  // keys and values of all heads
  std::int64_t free_pages() const;

  std::int64_t add();  // a new, empty sequence; its number
  // A new sequence that begins with the first `length` tokens of another: whole pages are shared, a part of one is
  // copied.
  std::int64_t fork(std::int64_t sequence, std::int64_t length);
  void remove(std::int64_t sequence);
  std::int64_t length(std::int64_t sequence) const;

  // k [1, kv_heads, T, key_dim], v [1, kv_heads, T, value_dim]. Throws OutOfPages, with nothing changed, when they do
  // not fit.
  void append(std::int64_t sequence, View k, View v);
  // Writes other keys and values over those of tokens [at, at + T). OutOfPages as for append: a page that another
  // sequence sees is copied first.
  void replace(std::int64_t sequence, std::int64_t at, View k, View v);
  std::int64_t pages_to_append(std::int64_t sequence, std::int64_t count) const;  // that an append would take
  void truncate(std::int64_t sequence, std::int64_t length);                      // forgets the tokens from `length` on
  // Forgets the whole pages that hold tokens [first, first + count), both multiples of kPageTokens; those behind move
  // up. For windows: what no query will look at again need not be kept.
  void forget(std::int64_t sequence, std::int64_t first, std::int64_t count);

 private:
  friend struct CacheAccess;
  struct State;
  StatePointer<std::unique_ptr<State>> state_;
};

// Attention over cached keys: q [B, H, M, D], batch b reading sequences[b]. Keys past a sequence's end are hidden, and
// diagonals count from its own end. Results have the bits of attention() over the same keys (not with int8). No
// segments, and no weights on request.
ATTEND_API void attention(View q, const PagedKvCache& cache, std::span<const std::int64_t> sequences, MutableView out,
                          const AttentionOptions& options = {}, const AttentionExtras& extras = {});

}  // namespace attend
