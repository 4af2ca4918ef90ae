// The C ABI of unions and patterns.
#include "attend/patterns.hpp"

#include "abi/abi.hpp"
#include "attend/attend_variants.h"
#include "base/checked.hpp"

using namespace attend::abi;

namespace {

attend_bigbird_options default_bigbird() {
  const attend::BigBird defaults;
  return {0,
          defaults.block,
          defaults.window_blocks,
          defaults.global_blocks,
          defaults.random_blocks,
          defaults.heads,
          defaults.seed,
          defaults.causal ? 1 : 0};
}

}  // namespace

attend_status attend_mask_or(const attend_mask* a, const attend_mask* b, attend_mask** mask) {
  const char* op = "attend_mask_or";
  return make(op, mask, [&] { return require(op, "a", a).mask | require(op, "b", b).mask; });
}

attend_status attend_mask_except(const attend_mask* hidden, attend_mask** mask) {
  const char* op = "attend_mask_except";
  return make(op, mask, [&] { return attend::except(require(op, "hidden", hidden).mask); });
}

attend_status attend_mask_chunks(int64_t size, int64_t back, int32_t align, attend_mask** mask) {
  const char* op = "attend_mask_chunks";
  return make(op, mask, [&] { return attend::chunks(size, back, align_of(op, align)); });
}

attend_status attend_mask_dilated(int64_t step, int32_t align, attend_mask** mask) {
  const char* op = "attend_mask_dilated";
  return make(op, mask, [&] { return attend::dilated(step, align_of(op, align)); });
}

attend_status attend_mask_columns(int64_t period, int64_t first, int64_t count, attend_mask** mask) {
  return make("attend_mask_columns", mask, [&] { return attend::columns(period, first, count); });
}

attend_status attend_mask_tokens(const int64_t* positions, int64_t count, attend_mask** mask) {
  const char* op = "attend_mask_tokens";
  return make(op, mask, [&] { return attend::tokens(integers(op, "positions", positions, count)); });
}

attend_status attend_mask_global_tokens(const int64_t* positions, int64_t count, int32_t align, attend_mask** mask) {
  const char* op = "attend_mask_global_tokens";
  return make(op, mask,
              [&] { return attend::global_tokens(integers(op, "positions", positions, count), align_of(op, align)); });
}

attend_status attend_mask_strided(int64_t stride, int32_t align, attend_mask** mask) {
  const char* op = "attend_mask_strided";
  return make(op, mask, [&] { return attend::strided(stride, align_of(op, align)); });
}

attend_status attend_mask_fixed(int64_t block, int64_t columns, int32_t align, attend_mask** mask) {
  const char* op = "attend_mask_fixed";
  return make(op, mask, [&] { return attend::fixed(block, columns, align_of(op, align)); });
}

attend_status attend_mask_longformer(int64_t window, int64_t dilation, const int64_t* global_positions,
                                     int64_t global_count, int32_t align, attend_mask** mask) {
  const char* op = "attend_mask_longformer";
  return make(op, mask, [&] {
    return attend::longformer(window, dilation, integers(op, "global_positions", global_positions, global_count),
                              align_of(op, align));
  });
}

attend_status attend_mask_streaming(int64_t sinks, int64_t window, int32_t align, attend_mask** mask) {
  const char* op = "attend_mask_streaming";
  return make(op, mask, [&] { return attend::streaming(sinks, window, align_of(op, align)); });
}

void attend_bigbird_options_init_sized(attend_bigbird_options* options, size_t size) {
  attend::abi::write_struct(options, size, default_bigbird());
}

attend_status attend_mask_bigbird(int64_t queries, int64_t keys, const attend_bigbird_options* options,
                                  attend_mask** mask) {
  const char* op = "attend_mask_bigbird";
  return make(op, mask, [&] {
    if (options == nullptr) return attend::bigbird(queries, keys);
    const attend_bigbird_options given =
        attend::abi::read_struct(op, "attend_bigbird_options", *options, default_bigbird());
    return attend::bigbird(queries, keys,
                           {given.block, given.window_blocks, given.global_blocks, given.random_blocks, given.heads,
                            given.seed, given.causal != 0});
  });
}

attend_status attend_mask_block_permutation(int64_t queries, int64_t keys, int64_t blocks, int64_t heads,
                                            const int64_t* permutations, uint64_t seed, attend_mask** mask) {
  const char* op = "attend_mask_block_permutation";
  return make(op, mask, [&] {
    if (permutations == nullptr) return attend::block_permutation(queries, keys, blocks, heads, seed);
    if (blocks < 1 || heads < 1)
      attend::fail(
          op, "blocks is " + std::to_string(blocks) + " and heads " + std::to_string(heads) + ", expected at least 1");
    attend::checked_product("attend_mask_block_permutation: heads * blocks", {heads, blocks, int64_t{sizeof(int64_t)}});
    std::vector<std::vector<int64_t>> rows;
    for (int64_t h = 0; h < heads; ++h) rows.push_back(integers(op, "permutations", permutations + h * blocks, blocks));
    return attend::block_permutation(queries, keys, rows);
  });
}
