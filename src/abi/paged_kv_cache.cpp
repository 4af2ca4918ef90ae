// The C ABI of the paged KV cache and of attention over it.
#include "attend/paged_kv_cache.hpp"

#include "abi/abi.hpp"

static_assert(ATTEND_PAGE_TOKENS == attend::PagedKvCache::kPageTokens);
static_assert(ATTEND_SPLIT_TOKENS == attend::PagedKvCache::kSplitTokens);

using namespace attend::abi;

void attend_paged_kv_cache_options_init_sized(attend_paged_kv_cache_options* options, size_t size) {
  attend::abi::write_struct(options, size, {});
}

attend_status attend_paged_kv_cache_create(const attend_paged_kv_cache_options* options,
                                           attend_paged_kv_cache** cache) {
  const char* op = "attend_paged_kv_cache_create";
  return attend::abi::make(op, cache, [&] {
    const attend_paged_kv_cache_options given =
        attend::abi::read_struct(op, "attend_paged_kv_cache_options", require(op, "options", options), {});
    return attend::PagedKvCache({.dtype = static_cast<attend::DType>(given.dtype),
                                 .kv_heads = given.kv_heads,
                                 .key_dim = given.key_dim,
                                 .value_dim = given.value_dim,
                                 .pages = given.pages,
                                 .int8 = given.int8 != 0});
  });
}

attend_status attend_paged_kv_cache_bytes(const attend_paged_kv_cache* cache, int64_t* bytes,
                                          int64_t* bytes_per_token) {
  return guard([&] {
    const attend::PagedKvCache& of = require("attend_paged_kv_cache_bytes", "cache", cache).cache;
    if (bytes != nullptr) *bytes = of.bytes();
    if (bytes_per_token != nullptr) *bytes_per_token = of.bytes_per_token();
  });
}

attend_status attend_paged_kv_cache_pages_left(const attend_paged_kv_cache* cache, int64_t* pages) {
  const char* op = "attend_paged_kv_cache_pages_left";
  return guard([&] { require(op, "pages", pages) = require(op, "cache", cache).cache.free_pages(); });
}

// The place for the number is checked first: without it nobody could remove the sequence.
attend_status attend_paged_kv_cache_add(attend_paged_kv_cache* cache, int64_t* sequence) {
  const char* op = "attend_paged_kv_cache_add";
  return guard([&] {
    int64_t& number = require(op, "sequence", sequence);
    number = require(op, "cache", cache).cache.add();
  });
}

attend_status attend_paged_kv_cache_fork(attend_paged_kv_cache* cache, int64_t sequence, int64_t length,
                                         int64_t* forked) {
  const char* op = "attend_paged_kv_cache_fork";
  return guard([&] {
    int64_t& number = require(op, "forked", forked);
    number = require(op, "cache", cache).cache.fork(sequence, length);
  });
}

attend_status attend_paged_kv_cache_remove(attend_paged_kv_cache* cache, int64_t sequence) {
  return guard([&] { require("attend_paged_kv_cache_remove", "cache", cache).cache.remove(sequence); });
}

attend_status attend_paged_kv_cache_length(const attend_paged_kv_cache* cache, int64_t sequence, int64_t* length) {
  const char* op = "attend_paged_kv_cache_length";
  return guard([&] { require(op, "length", length) = require(op, "cache", cache).cache.length(sequence); });
}

attend_status attend_paged_kv_cache_append(attend_paged_kv_cache* cache, int64_t sequence, const attend_tensor* k,
                                           const attend_tensor* v) {
  const char* op = "attend_paged_kv_cache_append";
  return guard([&] { require(op, "cache", cache).cache.append(sequence, view(op, "k", k), view(op, "v", v)); });
}

attend_status attend_paged_kv_cache_replace(attend_paged_kv_cache* cache, int64_t sequence, int64_t at,
                                            const attend_tensor* k, const attend_tensor* v) {
  const char* op = "attend_paged_kv_cache_replace";
  return guard([&] { require(op, "cache", cache).cache.replace(sequence, at, view(op, "k", k), view(op, "v", v)); });
}

attend_status attend_paged_kv_cache_pages_to_append(const attend_paged_kv_cache* cache, int64_t sequence, int64_t count,
                                                    int64_t* pages) {
  const char* op = "attend_paged_kv_cache_pages_to_append";
  return guard(
      [&] { require(op, "pages", pages) = require(op, "cache", cache).cache.pages_to_append(sequence, count); });
}

attend_status attend_paged_kv_cache_truncate(attend_paged_kv_cache* cache, int64_t sequence, int64_t length) {
  return guard([&] { require("attend_paged_kv_cache_truncate", "cache", cache).cache.truncate(sequence, length); });
}

attend_status attend_paged_kv_cache_forget(attend_paged_kv_cache* cache, int64_t sequence, int64_t first,
                                           int64_t count) {
  return guard([&] { require("attend_paged_kv_cache_forget", "cache", cache).cache.forget(sequence, first, count); });
}

void attend_paged_kv_cache_free(attend_paged_kv_cache* cache) {
  delete cache;
}

attend_status attend_paged_attention(const attend_tensor* q, const attend_paged_kv_cache* cache,
                                     const int64_t* sequences, int64_t sequence_count, const attend_tensor* out,
                                     const attend_attention_options* options, const attend_tensor* lse,
                                     const attend_row_sums* row_sums) {
  const char* op = "attend_paged_attention";
  return guard([&] {
    const attend::View q_view = view(op, "q", q);
    attend::AttentionExtras extras{.lse = optional_mutable_view(op, "lse", lse)};
    if (row_sums != nullptr) extras.row_sums = attend::abi::row_sums_of(op, *row_sums);
    attend::attention(q_view, require(op, "cache", cache).cache,
                      attend::abi::integers(op, "sequences", sequences, sequence_count), mutable_view(op, "out", out),
                      attend::abi::options_of(op, options, q->dtype, false), extras);
  });
}
