// The C ABI of masks.
#include "abi/abi.hpp"
#include "base/checked.hpp"

using attend::Diagonal;
using attend::Shape;
using namespace attend::abi;

attend_status attend_mask_causal(int32_t align, attend_mask** mask) {
  const char* op = "attend_mask_causal";
  return make(op, mask, [&] { return attend::causal(align_of(op, align)); });
}

attend_status attend_mask_causal_at(const int64_t* offsets, int64_t count, attend_mask** mask) {
  const char* op = "attend_mask_causal_at";
  return make(op, mask, [&] { return attend::causal(Diagonal::at(integers(op, "offsets", offsets, count))); });
}

attend_status attend_mask_window(int64_t left, int64_t right, int32_t align, attend_mask** mask) {
  const char* op = "attend_mask_window";
  return make(op, mask, [&] { return attend::window(left, right, align_of(op, align)); });
}

attend_status attend_mask_window_at(int64_t left, int64_t right, const int64_t* offsets, int64_t count,
                                    attend_mask** mask) {
  const char* op = "attend_mask_window_at";
  return make(op, mask,
              [&] { return attend::window(left, right, Diagonal::at(integers(op, "offsets", offsets, count))); });
}

attend_status attend_mask_padding(const int64_t* lengths, int64_t count, attend_mask** mask) {
  const char* op = "attend_mask_padding";
  return make(op, mask, [&] { return attend::padding(integers(op, "lengths", lengths, count)); });
}

attend_status attend_mask_left_padding(const int64_t* counts, int64_t count, attend_mask** mask) {
  const char* op = "attend_mask_left_padding";
  return make(op, mask, [&] { return attend::left_padding(integers(op, "counts", counts, count)); });
}

attend_status attend_mask_prefix(const int64_t* lengths, int64_t count, int32_t align, attend_mask** mask) {
  const char* op = "attend_mask_prefix";
  return make(op, mask, [&] { return attend::prefix(integers(op, "lengths", lengths, count), align_of(op, align)); });
}

attend_status attend_mask_prefix_at(const int64_t* lengths, int64_t count, const int64_t* offsets, int64_t offset_count,
                                    attend_mask** mask) {
  const char* op = "attend_mask_prefix_at";
  return make(op, mask, [&] {
    return attend::prefix(integers(op, "lengths", lengths, count),
                          Diagonal::at(integers(op, "offsets", offsets, offset_count)));
  });
}

attend_status attend_mask_segments(const int64_t* queries, const int64_t* keys, int64_t count, attend_mask** mask) {
  const char* op = "attend_mask_segments";
  return make(op, mask, [&] {
    if (keys == nullptr) return attend::segments(integers(op, "queries", queries, count));
    return attend::segments(integers(op, "queries", queries, count), integers(op, "keys", keys, count));
  });
}

attend_status attend_mask_blocks(int64_t block_queries, int64_t block_keys, int64_t heads, int64_t rows, int64_t cols,
                                 const uint8_t* bits, attend_mask** mask) {
  const char* op = "attend_mask_blocks";
  return make(op, mask, [&] {
    const int64_t count = attend::checked_product("attend_mask_blocks: heads * rows * cols", {heads, rows, cols});
    const uint8_t* first = count == 0 ? nullptr : &require(op, "bits", bits);
    return attend::blocks(block_queries, block_keys, heads, rows, cols, {first, first + count});
  });
}

attend_status attend_mask_dense(const uint8_t* data, const int64_t shape[4], const int64_t* strides,
                                attend_mask** mask) {
  const char* op = "attend_mask_dense";
  return make(op, mask, [&] {
    const int64_t* s = &require(op, "shape", shape);
    const Shape sizes{s[0], s[1], s[2], s[3]};
    if (strides == nullptr) return attend::dense(data, sizes);
    check_strides_given(op, "mask", shape, strides, "give NULL for contiguous bytes");
    return attend::dense(data, sizes, {strides[0], strides[1], strides[2], strides[3]});
  });
}

attend_status attend_mask_and(const attend_mask* a, const attend_mask* b, attend_mask** mask) {
  const char* op = "attend_mask_and";
  return make(op, mask, [&] { return require(op, "a", a).mask & require(op, "b", b).mask; });
}

void attend_mask_free(attend_mask* mask) {
  delete mask;
}
