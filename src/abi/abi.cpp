// What the files of the C ABI share: error text, conversions; and the calls about library and machine.
#include "abi/abi.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <utility>

#include "attend/runtime.hpp"

namespace attend::abi {
namespace {

thread_local std::array<char, 1024> last_error{};

template <class Four>
Four four(const std::int64_t* values) {
  return {values[0], values[1], values[2], values[3]};
}

auto forward_of(void* context, auto* function) {
  return [context, function](auto tile) {
    const attend_tile place = place_of(tile);
    function(context, &place, tile.data, tile.row_stride);
  };
}

auto backward_of(void* context, auto* function) {
  return [context, function](auto scores, auto grad) {
    const attend_tile place = place_of(grad);
    function(context, &place, scores.data, scores.row_stride, grad.data, grad.row_stride);
  };
}

ScoreRule rule_of(const char* op, const attend_score_rule& given, std::int32_t dtype, bool backward) {
  ScoreRule rule;
  if (given.forward_f32 != nullptr) rule.forward_f32 = forward_of(given.context, given.forward_f32);
  if (given.forward_f64 != nullptr) rule.forward_f64 = forward_of(given.context, given.forward_f64);
  if (given.backward_f32 != nullptr) rule.backward_f32 = backward_of(given.context, given.backward_f32);
  if (given.backward_f64 != nullptr) rule.backward_f64 = backward_of(given.context, given.backward_f64);
  if (!rule.forward_f32 && !rule.forward_f64 && !rule.backward_f32 && !rule.backward_f64) return rule;

  // A missing function would be found out in the middle of the work, where nothing may fail.
  const bool f64 = dtype == ATTEND_F64;
  const char* suffix = f64 ? "f64" : "f32";
  if (f64 ? !rule.forward_f64 : !rule.forward_f32) {
    fail(op, std::string("rule.forward_") + suffix + " is null, expected a function (the tensors' dtype needs it)");
  }
  if (backward && (f64 ? !rule.backward_f64 : !rule.backward_f32)) {
    fail(op, std::string("rule.backward_") + suffix + " is null, expected a function (the gradient needs it)");
  }
  return rule;
}

}  // namespace

attend_status fail_with(attend_status status, const char* text) noexcept {
  static_cast<void>(std::snprintf(last_error.data(), last_error.size(), "%s", text));
  return status;
}

std::size_t checked_struct_size(const char* op, const char* type, const void* from, std::size_t known,
                                std::size_t alignment) {
  std::size_t size = 0;
  std::memcpy(&size, from, sizeof(size));
  if (size >= sizeof(size) && size <= known && size % alignment == 0) return size;
  const std::string got = std::string(type) + ".struct_size is " + std::to_string(size) + ", expected ";
  if (size > known && size % alignment == 0)
    fail(op, got + "at most " + std::to_string(known) + ": call " + type + "_init first; if it was, the program was " +
                 "compiled with the headers of a newer attend than this library, " + attend::version());
  fail(op,
       got + "the size of the struct in bytes, " + std::to_string(known) + " or less (call " + type + "_init first)");
}

void check_strides_given(const char* op, const char* what, const std::int64_t* shape, const std::int64_t* strides,
                         const char* instead) {
  const bool has_elements = std::all_of(shape, shape + 4, [](std::int64_t size) { return size > 0; });
  const bool is_one = std::all_of(shape, shape + 4, [](std::int64_t size) { return size == 1; });
  const bool is_given = std::any_of(strides, strides + 4, [](std::int64_t stride) { return stride != 0; });
  if (!has_elements || is_one || is_given) return;
  fail(op, std::string(what) + " shape is " + to_string(four<Shape>(shape)) +
               " and all its strides are 0: every element would be the first; " + instead);
}

View view(const char* op, const char* what, const attend_tensor* tensor) {
  return mutable_view(op, what, tensor);
}

MutableView mutable_view(const char* op, const char* what, const attend_tensor* tensor) {
  const attend_tensor& t = require(op, what, tensor);
  check_strides_given(op, what, t.shape, t.strides, "fill the tensor in with attend_tensor_contiguous");
  return {static_cast<DType>(t.dtype), t.data, four<Shape>(t.shape), four<Strides>(t.strides)};
}

std::optional<View> optional_view(const char* op, const char* what, const attend_tensor* tensor) {
  if (tensor == nullptr) return std::nullopt;
  return view(op, what, tensor);
}

std::optional<MutableView> optional_mutable_view(const char* op, const char* what, const attend_tensor* tensor) {
  if (tensor == nullptr) return std::nullopt;
  return mutable_view(op, what, tensor);
}

attend_tensor tensor_of(const MutableView& v) {
  return {static_cast<std::int32_t>(v.dtype),
          v.data,
          {v.shape[0], v.shape[1], v.shape[2], v.shape[3]},
          {v.strides[0], v.strides[1], v.strides[2], v.strides[3]}};
}

std::vector<std::int64_t> integers(const char* op, const char* what, const std::int64_t* data, std::int64_t count) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max() / 8;
  if (count < 0 || count > kMost) {
    fail(op, std::string("number of ") + what + " is " + std::to_string(count) + ", expected 0 to " +
                 std::to_string(kMost));
  }
  if (count == 0) return {};
  const std::int64_t* first = &require(op, what, data);
  return {first, first + count};
}

Align align_of(const char* op, std::int32_t align) {
  if (align == ATTEND_FIRST_KEY) return Align::first_key;
  if (align == ATTEND_LAST_KEY) return Align::last_key;
  fail(op, "align is " + std::to_string(align) + ", expected ATTEND_FIRST_KEY (0) or ATTEND_LAST_KEY (1)");
}

std::optional<RopeStyle> rope_style_of(const char* op, std::int32_t style) {
  if (style == ATTEND_ROPE_NONE) return std::nullopt;
  if (style == ATTEND_ROPE_HALF_SPLIT) return RopeStyle::half_split;
  if (style == ATTEND_ROPE_INTERLEAVED) return RopeStyle::interleaved;
  fail(op, "RoPE style is " + std::to_string(style) + ", expected ATTEND_ROPE_NONE, _HALF_SPLIT or _INTERLEAVED (0-2)");
}

attend_tensor found(const char* op, const char* name, Tensor* tensor) {
  if (tensor == nullptr) fail(op, std::string("name is \"") + name + "\", expected one that attend.h lists");
  if (tensor->empty()) fail(op, std::string("name is \"") + name + "\", which this layer does not have");
  return tensor_of(tensor->view());
}

MutableView result_view(const char* op, const char* what, const attend_tensor* tensor, DType dtype,
                        const Shape& shape) {
  const MutableView result = mutable_view(op, what, tensor);
  check_dtype(op, what, result.dtype, dtype);
  check_shape(op, what, result.shape, shape);
  check_writable(op, what, result);
  return result;
}

// From contiguous memory to any strides, same dtype and shape.
void copy(const Tensor& from, const MutableView& to) {
  const std::int64_t bytes = size_of(to.dtype);
  const auto [B, H, M, D] = to.shape;
  const auto* source = static_cast<const std::byte*>(from.view().data);
  auto* target = static_cast<std::byte*>(to.data);
  for (std::int64_t row = 0; row < B * H * M; ++row) {
    const std::int64_t b = row / (H * M), h = row / M % H, i = row % M;
    std::byte* place = target + (b * to.strides[0] + h * to.strides[1] + i * to.strides[2]) * bytes;
    if (to.strides[3] == 1) {
      std::memcpy(place, source + row * D * bytes, static_cast<std::size_t>(D * bytes));
      continue;
    }
    for (std::int64_t d = 0; d < D; ++d) {
      std::memcpy(place + d * to.strides[3] * bytes, source + (row * D + d) * bytes, static_cast<std::size_t>(bytes));
    }
  }
}

attend_rope_scaling default_rope_scaling() {
  const RopeScaling defaults;
  attend_rope_scaling result{};
  result.factor = defaults.factor;
  result.low_frequency = defaults.low_frequency;
  result.high_frequency = defaults.high_frequency;
  result.beta_fast = defaults.beta_fast;
  result.beta_slow = defaults.beta_slow;
  result.truncate = defaults.truncate ? 1 : 0;
  return result;
}

attend_attention_options default_attention_options() {
  attend_attention_options result{};
  result.alibi_align = ATTEND_LAST_KEY;
  return result;
}

RopeScaling rope_scaling_of(const char* op, const attend_rope_scaling* scaling) {
  RopeScaling result;
  if (scaling == nullptr) return result;
  const attend_rope_scaling given = read_struct(op, "attend_rope_scaling", *scaling, default_rope_scaling());
  result.kind = static_cast<RopeScaling::Kind>(given.kind);
  result.factor = given.factor;
  result.original_length = given.original_length;
  result.low_frequency = given.low_frequency;
  result.high_frequency = given.high_frequency;
  result.beta_fast = given.beta_fast;
  result.beta_slow = given.beta_slow;
  result.truncate = given.truncate != 0;
  if (given.has_attention_factor != 0) result.attention_factor = given.attention_factor;
  result.mscale = given.mscale;
  result.mscale_all_dim = given.mscale_all_dim;
  return result;
}

AttentionOptions options_of(const char* op, const attend_attention_options* options, std::int32_t dtype,
                            bool backward) {
  if (options == nullptr) return {};
  const attend_attention_options given =
      read_struct(op, "attend_attention_options", *options, default_attention_options());
  AttentionOptions result;
  if (given.mask != nullptr) result.mask = given.mask->mask;
  if (given.has_scale != 0) result.scale = given.scale;
  result.softcap = given.softcap;
  result.rule = rule_of(op, given.rule, dtype, backward);
  result.bias = optional_view(op, "bias", given.bias);
  result.distance_bias = optional_view(op, "distance_bias", given.distance_bias);
  result.alibi_slopes = optional_view(op, "alibi_slopes", given.alibi_slopes);
  result.alibi_diagonal = align_of(op, given.alibi_align);
  if (given.alibi_offset_count != 0) {
    result.alibi_diagonal = Diagonal::at(integers(op, "alibi_offsets", given.alibi_offsets, given.alibi_offset_count));
  }
  result.sinks = optional_view(op, "sinks", given.sinks);
  result.dropout = {given.dropout_probability, given.dropout_seed};
  return result;
}

}  // namespace attend::abi

using namespace attend::abi;

const char* attend_last_error() {
  return attend::abi::last_error.data();
}

const char* attend_version() {
  return attend::version();
}

const char* attend_kernel_name() {
  const char* name = nullptr;
  guard([&] { name = attend::kernel_name(); });
  return name;
}

attend_status attend_set_threads(int count) {
  return guard([&] { attend::set_threads(count); });
}

int attend_threads() {
  int count = 0;
  guard([&] { count = attend::threads(); });
  return count;
}

attend_status attend_tensor_contiguous(int32_t dtype, void* data, const int64_t shape[4], attend_tensor* tensor) {
  return guard([&] {
    const char* op = "attend_tensor_contiguous";
    attend_tensor& result = attend::abi::require(op, "tensor", tensor);
    const int64_t* s = &attend::abi::require(op, "shape", shape);
    const attend::Shape sizes{s[0], s[1], s[2], s[3]};
    if (sizes.back() == 0 && sizes.front() > 0)
      attend::fail(op, "shape is " + attend::to_string(sizes) +
                           ", expected four sizes, [batch, heads, length, dim], and " +
                           "a dim of at least 1: a matrix is {1, 1, rows, columns}");
    result =
        attend::abi::tensor_of({static_cast<attend::DType>(dtype), data, sizes, attend::contiguous_strides(sizes)});
  });
}
