// What the files of the C ABI share: the guard that keeps exceptions in, and conversions that check.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "attend/attend.h"
#include "attend/attention.hpp"
#include "attend/error.hpp"
#include "attend/inner_attention.hpp"
#include "attend/lens.hpp"
#include "attend/mask.hpp"
#include "attend/multi_head_attention.hpp"
#include "attend/paged_kv_cache.hpp"
#include "attend/rope.hpp"
#include "attend/tensor.hpp"
#include "base/check.hpp"
#include "base/export.hpp"

struct attend_mask {
  attend::Mask mask;
};
struct attend_paged_kv_cache {
  attend::PagedKvCache cache;
};
struct attend_inner {
  std::shared_ptr<attend::InnerAttention> inner;
};

namespace attend::abi {

// Keeps the text for attend_last_error. Allocates nothing, since memory may be what is short.
ATTEND_FOR_RING attend_status fail_with(attend_status status, const char* text) noexcept;

// Runs f; every exception ends here, as a status.
template <class F>
attend_status guard(F&& f) noexcept {
  try {
    f();
    return ATTEND_OK;
  } catch (const InvalidArgument& error) {
    return fail_with(ATTEND_INVALID_ARGUMENT, error.what());
  } catch (const std::bad_alloc&) {
    return fail_with(ATTEND_OUT_OF_MEMORY, "out of memory");
  } catch (const std::length_error&) {  // more than any memory has: a length that the caller gave
    return fail_with(ATTEND_OUT_OF_MEMORY, "out of memory");
  } catch (const OutOfPages& error) {
    return fail_with(ATTEND_OUT_OF_PAGES, error.what());
  } catch (const std::exception& error) {
    return fail_with(ATTEND_INTERNAL_ERROR, error.what());
  } catch (...) {
    return fail_with(ATTEND_INTERNAL_ERROR, "an exception of unknown type");
  }
}

template <class T>
T& require(const char* op, const char* what, T* pointer) {
  if (pointer == nullptr) fail(op, std::string(what) + " is null, expected a pointer");
  return *pointer;
}

// Makes a new handle: *out is null until f has succeeded.
template <class Handle, class F>
attend_status make(const char* op, Handle** out, F&& f) noexcept {
  return guard([&] {
    require(op, "the place for the result", out) = nullptr;
    *out = std::make_unique<Handle>(f()).release();
  });
}

// Structs that open with their size. The caller's may be that of an older header: shorter, and what it lacks has its
// default. So a struct only ever grows at its end, past the size it had (never into padding).

// Fills in the `size` bytes that the caller has; what this library does not know of is zeroed.
template <class T>
void write_struct(T* to, std::size_t size, T defaults) noexcept {
  if (to == nullptr || size < sizeof(std::size_t)) return;
  defaults.struct_size = size;
  void* bytes = to;
  std::memset(bytes, 0, size);
  std::memcpy(bytes, &defaults, std::min(size, sizeof(T)));
}

// The bytes that the struct at `from` says it has; refused where they end inside a field, or are more than `known`.
ATTEND_FOR_RING std::size_t checked_struct_size(const char* op, const char* type, const void* from, std::size_t known,
                                                std::size_t alignment);

template <class T>
T read_struct(const char* op, const char* type, const T& from, T defaults) {
  std::memcpy(&defaults, &from, checked_struct_size(op, type, &from, sizeof(T), alignof(T)));
  return defaults;
}

// C leaves fields that are not given at 0: strides of 0 alone, over more than one element, are rejected as forgotten.
void check_strides_given(const char* op, const char* what, const std::int64_t* shape, const std::int64_t* strides,
                         const char* instead);
ATTEND_FOR_RING View view(const char* op, const char* what, const attend_tensor* tensor);
ATTEND_FOR_RING MutableView mutable_view(const char* op, const char* what, const attend_tensor* tensor);
std::optional<View> optional_view(const char* op, const char* what, const attend_tensor* tensor);
ATTEND_FOR_RING std::optional<MutableView> optional_mutable_view(const char* op, const char* what,
                                                                 const attend_tensor* tensor);
attend_tensor tensor_of(const MutableView& view);

std::vector<std::int64_t> integers(const char* op, const char* what, const std::int64_t* data, std::int64_t count);
Align align_of(const char* op, std::int32_t align);
std::optional<RopeStyle> rope_style_of(const char* op, std::int32_t style);
attend_rope_scaling default_rope_scaling();
RopeScaling rope_scaling_of(const char* op, const attend_rope_scaling* scaling);

// A result of a layer: its place is checked before the work, and filled from contiguous memory after it.
MutableView result_view(const char* op, const char* what, const attend_tensor* tensor, DType dtype, const Shape& shape);
void copy(const Tensor& from, const MutableView& to);

// The tensor of a struct's list of names, or null.
template <class Struct, std::size_t Count>
Tensor* find(Struct& from, const std::array<std::pair<const char*, Tensor Struct::*>, Count>& names, const char* name) {
  for (const auto& [known, member] : names) {
    if (std::strcmp(known, name) == 0) return &(from.*member);
  }
  return nullptr;
}
attend_tensor found(const char* op, const char* name, Tensor* tensor);

// What the functions of every layer do: handles hold a `layer`, and those of their caches a `cache`.
template <class Handle>
attend_status initialise(const char* op, Handle* layer, std::uint64_t seed) noexcept {
  return guard([&] { require(op, "layer", layer).layer.initialise(seed); });
}
template <class Handle, class Names>
attend_status parameter_of(const char* op, Handle* layer, const Names& names, const char* name,
                           attend_tensor* parameter) noexcept {
  return guard([&] {
    const char* wanted = &require(op, "name", name);
    require(op, "parameter", parameter) =
        found(op, wanted, find(require(op, "layer", layer).layer.parameters(), names, wanted));
  });
}
template <class Handle>
attend_status length_of(const char* op, const Handle* cache, std::int64_t* length) noexcept {
  return guard([&] { require(op, "length", length) = require(op, "cache", cache).cache.length(); });
}
template <class Handle>
attend_status truncate(const char* op, Handle* cache, std::int64_t length) noexcept {
  return guard([&] { require(op, "cache", cache).cache.truncate(length); });
}

attend_attention_options default_attention_options();
template <class T>
attend_tile place_of(const ScoreTile<T>& tile) {
  return {tile.rows, tile.cols, tile.batch, tile.head, tile.first_row, tile.first_col};
}

// `backward`: the rule's gradient is needed too.
ATTEND_FOR_RING AttentionOptions options_of(const char* op, const attend_attention_options* options, std::int32_t dtype,
                                            bool backward);

RowSums row_sums_of(const char* op, const attend_row_sums& given);
RowStatistics statistics_of(const char* op, const attend_row_statistics* given);
LensArea area_of(const attend_lens_area* area);  // null: all of it
AttentionGradients gradients_of(const char* op, const attend_attention_gradients* given);

// What the layer and a transformer block share (layer.cpp). `find_parameter`: null when there is none of that name.
Tensor* find_parameter(MultiHeadAttentionParameters& parameters, const char* name);
MultiHeadAttentionConfig config_of(const char* op, const attend_layer_config& given);

}  // namespace attend::abi
