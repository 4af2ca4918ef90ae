// A call of attention whose keys and values are in a cache.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attend/paged_kv_cache.hpp"
#include "ops/attention_call.hpp"

namespace attend {

// Good for as long as nobody changes the cache. Throws as attention() over a cache does.
struct CachedCall {
  CachedCall(const View& q, const PagedKvCache& cache, std::span<const std::int64_t> sequences,
             const AttentionOptions& options);

  // Key j of KV head hk in batch b and its value, as the products see them: k [D], v [E].
  void read(const PagedKvCache& cache, std::int64_t b, std::int64_t hk, std::int64_t j, float* k, float* v) const;

  std::vector<std::int64_t> lengths;  // [B]
  AttentionCall call;
  std::vector<std::int32_t> pages;  // [B, tiles]
  PackedTiles packed{};
};

}  // namespace attend
