// The C ABI called with anything: every call returns a status, and no error is an internal one.
#include <fuzzer/FuzzedDataProvider.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "attend/attend_variants.h"

namespace {

using std::int64_t;

[[noreturn]] void stop(const char* text) {
  std::fprintf(stderr, "%s: %s\n", text, attend_last_error());
  std::abort();
}

// Sizes and lengths: mostly small, now and then hostile. Even one element of two bytes times the large ones overflows:
// nothing asks for memory that a sanitizer would refuse.
int64_t draw_size(FuzzedDataProvider& bytes) {
  constexpr std::array<int64_t, 6> kHostile = {
      -1, INT64_MIN, INT64_MAX, int64_t{1} << 62, INT64_MIN / 2, -(int64_t{1} << 32)};
  const auto kind = bytes.ConsumeIntegralInRange<int>(0, 40);
  return kind == 40 ? bytes.PickValueInArray(kHostile) : kind % 7;
}

// Tensors with memory of exactly their own, so that a byte outside is seen.
class Arena {
 public:
  explicit Arena(FuzzedDataProvider& bytes) : bytes_(bytes) {}

  // Of the given sizes, or of drawn ones; null now and then.
  const attend_tensor* tensor(std::array<int64_t, 4> shape) {
    const int kind = bytes_.ConsumeIntegralInRange<int>(0, 60);
    if (kind == 60) return nullptr;
    if (kind > 56) {
      for (int64_t& size : shape) size = draw_size(bytes_);
    }
    auto made = std::make_unique<attend_tensor>();
    made->dtype = kind > 53 ? bytes_.ConsumeIntegral<int32_t>() : dtype;
    if (kind == 53) made->dtype = bytes_.ConsumeIntegralInRange<int32_t>(-1, 4);
    __int128 elements = 1;
    for (std::size_t d = 4; d-- > 0;) {
      made->shape[d] = shape[d];
      made->strides[d] = static_cast<int64_t>(elements);
      if (shape[d] > 0 && elements < (int64_t{1} << 40)) elements *= shape[d];
    }
    if (elements <= kMostElements) {
      memory_.emplace_back(new std::byte[static_cast<std::size_t>(elements) * 8]());
      made->data = memory_.back().get();
    } else {
      made->data = nullptr;  // such a tensor must be refused
    }
    if (kind == 52) made->strides[bytes_.ConsumeIntegralInRange<int>(0, 3)] = 0;
    if (kind == 51) made->strides[bytes_.ConsumeIntegralInRange<int>(0, 3)] = INT64_MAX;
    tensors_.push_back(std::move(made));
    return tensors_.back().get();
  }

  // A list that may be null, with a count that may be wrong but never more than there is.
  std::pair<const int64_t*, int64_t> list() {
    std::vector<int64_t>& values = lists_.emplace_back();
    for (int n = bytes_.ConsumeIntegralInRange<int>(0, 4); n > 0; --n) values.push_back(draw_size(bytes_));
    if (bytes_.ConsumeIntegralInRange<int>(0, 15) == 15) return {nullptr, draw_size(bytes_)};
    const auto count = static_cast<int64_t>(values.size());
    return {values.data(), bytes_.ConsumeIntegralInRange<int>(0, 15) == 15 ? -1 : count};
  }

  int32_t dtype = ATTEND_F32;

 private:
  static constexpr int64_t kMostElements = 1 << 16;

  FuzzedDataProvider& bytes_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::vector<std::unique_ptr<attend_tensor>> tensors_;
  std::vector<std::vector<int64_t>> lists_;
};

// A failure must be one of the two that a caller can cause, and come with a text.
bool settled(attend_status status) {
  if (status == ATTEND_OK) return true;
  if (status != ATTEND_INVALID_ARGUMENT && status != ATTEND_OUT_OF_MEMORY) stop("not a status for bad arguments");
  if (std::strlen(attend_last_error()) == 0) stop("an error without a text");
  return false;
}

struct FreeMask {
  void operator()(attend_mask* mask) const { attend_mask_free(mask); }
};
using MaskHandle = std::unique_ptr<attend_mask, FreeMask>;

MaskHandle draw_mask(FuzzedDataProvider& bytes, Arena& arena, std::vector<std::uint8_t>& bits) {
  attend_mask* mask = nullptr;
  const auto [values, count] = arena.list();
  const auto [others, other_count] = arena.list();
  const auto align = bytes.ConsumeIntegralInRange<int32_t>(-1, 2);
  attend_status status = ATTEND_OK;
  switch (bytes.ConsumeIntegralInRange<int>(0, 21)) {
    case 0:
      status = attend_mask_causal(align, &mask);
      break;
    case 1:
      status = attend_mask_causal_at(values, count, &mask);
      break;
    case 2:
      status = attend_mask_window(draw_size(bytes), draw_size(bytes), align, &mask);
      break;
    case 3:
      status = attend_mask_window_at(draw_size(bytes), draw_size(bytes), values, count, &mask);
      break;
    case 4:
      status = attend_mask_padding(values, count, &mask);
      break;
    case 5:
      status = attend_mask_left_padding(values, count, &mask);
      break;
    case 6:
      status = attend_mask_prefix(values, count, align, &mask);
      break;
    case 7:
      status = attend_mask_prefix_at(values, count, others, other_count, &mask);
      break;
    case 8:
      status = attend_mask_segments(values, count <= other_count ? others : nullptr, count, &mask);
      break;
    case 9: {
      // As many bits as rows and columns ask for, when that is a number one can have.
      const int64_t rows = draw_size(bytes), cols = draw_size(bytes);
      status = attend_mask_blocks(draw_size(bytes), draw_size(bytes), 1, rows, cols,
                                  rows < 8 && cols < 8 ? bits.data() : nullptr, &mask);
      break;
    }
    case 10: {
      const int64_t shape[4] = {1, 1, draw_size(bytes), draw_size(bytes)};
      status = attend_mask_dense(shape[2] < 8 && shape[3] < 8 ? bits.data() : nullptr, shape, nullptr, &mask);
      break;
    }
    case 11:
      status = attend_mask_chunks(draw_size(bytes), draw_size(bytes), align, &mask);
      break;
    case 12:
      status = attend_mask_dilated(draw_size(bytes), align, &mask);
      break;
    case 13:
      status = attend_mask_columns(draw_size(bytes), draw_size(bytes), draw_size(bytes), &mask);
      break;
    case 14:
      status = attend_mask_tokens(values, count, &mask);
      break;
    case 15:
      status = attend_mask_global_tokens(values, count, align, &mask);
      break;
    case 16:
      status = attend_mask_strided(draw_size(bytes), align, &mask);
      break;
    case 17:
      status = attend_mask_fixed(draw_size(bytes), draw_size(bytes), align, &mask);
      break;
    case 18:
      status = attend_mask_longformer(draw_size(bytes), draw_size(bytes), values, count, align, &mask);
      break;
    case 19:
      status = attend_mask_streaming(draw_size(bytes), draw_size(bytes), align, &mask);
      break;
    case 20: {
      // A layout of blocks is memory that the caller asks for: lengths one can have.
      const auto length = bytes.ConsumeIntegralInRange<int64_t>(-1, 64);
      attend_bigbird_options bird;
      attend_bigbird_options_init(&bird);
      bird.block = draw_size(bytes);
      bird.random_blocks = draw_size(bytes);
      status = bytes.ConsumeBool() ? attend_mask_bigbird(length, 64, &bird, &mask)
                                   : attend_mask_block_permutation(length, 64, draw_size(bytes), 2, nullptr, 1, &mask);
      break;
    }
    default:
      break;
  }
  if (!settled(status) && mask != nullptr) stop("a mask after an error");
  return MaskHandle(mask);
}

void run_attention(FuzzedDataProvider& bytes, Arena& arena, const attend_attention_options* options) {
  const int64_t B = draw_size(bytes), Hk = draw_size(bytes), M = draw_size(bytes), N = draw_size(bytes);
  const int64_t D = draw_size(bytes), E = draw_size(bytes);
  const int64_t H = Hk >= 0 && Hk < 8 ? Hk * bytes.ConsumeIntegralInRange<int64_t>(1, 2) : Hk;
  const attend_tensor *q = arena.tensor({B, H, M, D}), *k = arena.tensor({B, Hk, N, D});
  const attend_tensor *v = arena.tensor({B, Hk, N, E}), *out = arena.tensor({B, H, M, E});
  const int32_t dtype = std::exchange(arena.dtype, arena.dtype == ATTEND_F64 ? ATTEND_F64 : ATTEND_F32);
  const attend_tensor* lse = arena.tensor({B, H, M, 1});
  arena.dtype = dtype;
  const attend_tensor* weights = bytes.ConsumeBool() ? arena.tensor({B, H, M, N}) : nullptr;
  if (!settled(attend_attention(q, k, v, out, options, lse, weights))) return;

  attend_attention_gradients gradients;
  attend_attention_gradients_init(&gradients);
  gradients.dq = arena.tensor({B, H, M, D});
  gradients.dk = arena.tensor({B, Hk, N, D});
  gradients.dv = arena.tensor({B, Hk, N, E});
  settled(attend_attention_backward(arena.tensor({B, H, M, E}), q, k, v, out, lse, &gradients, options));
}

void run_others(FuzzedDataProvider& bytes, Arena& arena) {
  const std::array<int64_t, 4> shape = {draw_size(bytes), draw_size(bytes), draw_size(bytes), draw_size(bytes)};
  const std::array<int64_t, 4> row = {1, 1, 1, shape[3]};
  settled(attend_softmax(arena.tensor(shape), arena.tensor(shape)));
  settled(attend_softmax_backward(arena.tensor(shape), arena.tensor(shape), arena.tensor(shape)));
  attend_rope_options rope;
  attend_rope_options_init(&rope);
  rope.style = bytes.ConsumeIntegralInRange<int32_t>(-1, 3);
  rope.rotary_dim = draw_size(bytes);
  rope.theta = bytes.ConsumeBool() ? bytes.ConsumeFloatingPoint<double>() : 10000;
  rope.first_position = draw_size(bytes);
  const auto [positions, count] = arena.list();
  rope.positions = positions;
  rope.position_count = count;
  settled(attend_rope(arena.tensor(shape), arena.tensor(shape), &rope));
  settled(attend_rope_backward(arena.tensor(shape), arena.tensor(shape), nullptr));
  const double eps = bytes.ConsumeFloatingPoint<double>();
  settled(attend_rms_norm(arena.tensor(shape), arena.tensor(row), arena.tensor(shape), eps));
  settled(attend_rms_norm_backward(arena.tensor(shape), arena.tensor(shape), arena.tensor(row), arena.tensor(shape),
                                   arena.tensor(row), eps));
  const int64_t wide = draw_size(bytes);
  const std::array<int64_t, 4> weight = {1, 1, wide, shape[3]}, result = {shape[0], shape[1], shape[2], wide};
  const std::array<int64_t, 4> bias = {1, 1, 1, wide};
  settled(attend_linear(arena.tensor(shape), arena.tensor(weight), arena.tensor(bias), arena.tensor(result)));
  settled(attend_linear_backward(arena.tensor(result), arena.tensor(shape), arena.tensor(weight), arena.tensor(shape),
                                 arena.tensor(weight), arena.tensor(bias)));
}

void run_layer(FuzzedDataProvider& bytes, Arena& arena, const attend_attention_options* options) {
  attend_layer_config config;
  attend_layer_config_init(&config);
  config.dtype = arena.dtype;
  config.width = draw_size(bytes);
  config.context_width = bytes.ConsumeBool() ? 0 : draw_size(bytes);
  config.heads = draw_size(bytes);
  config.kv_heads = bytes.ConsumeBool() ? 0 : draw_size(bytes);
  config.head_dim = draw_size(bytes);
  config.value_dim = draw_size(bytes);
  config.value_rank = bytes.ConsumeBool() ? 0 : draw_size(bytes);
  config.qkv_bias = bytes.ConsumeBool();
  config.qk_norm = bytes.ConsumeBool();
  config.rope_style = bytes.ConsumeIntegralInRange<int32_t>(-1, 3);
  attend_layer* layer = nullptr;
  if (!settled(attend_layer_create(&config, &layer))) {
    if (layer != nullptr) stop("a layer after an error");
    return;
  }
  settled(attend_layer_initialise(layer, bytes.ConsumeIntegral<std::uint64_t>()));
  attend_tensor parameter;
  settled(attend_layer_parameter(layer, bytes.ConsumeRandomLengthString(8).c_str(), &parameter));
  settled(attend_layer_parameter(layer, "wq", &parameter));
  const int64_t B = draw_size(bytes), M = draw_size(bytes);
  attend_layer_saved* saved = nullptr;
  attend_layer_gradients* gradients = nullptr;
  const attend_tensor *x = arena.tensor({B, 1, M, config.width}), *out = arena.tensor({B, 1, M, config.width});
  if (settled(attend_layer_forward(layer, x, nullptr, options, out, nullptr, &saved)) &&
      settled(attend_layer_backward(layer, out, saved, &gradients))) {
    settled(attend_layer_gradient(gradients, "dx", &parameter));
  }
  attend_kv_cache* cache = nullptr;
  if (settled(attend_kv_cache_create(layer, B, draw_size(bytes), &cache))) {
    settled(attend_layer_step(layer, x, cache, bytes.ConsumeBool() ? options : nullptr, out));
    settled(attend_kv_cache_truncate(cache, draw_size(bytes)));
  }
  attend_kv_cache_free(cache);
  attend_layer_gradients_free(gradients);
  attend_layer_saved_free(saved);
  attend_layer_free(layer);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider bytes(data, size);
  Arena arena(bytes);
  std::vector<std::uint8_t> bits(64, 1);
  if (!settled(attend_set_threads(1))) stop("one thread was refused");

  arena.dtype = bytes.ConsumeIntegralInRange<int32_t>(ATTEND_F32, ATTEND_F64);
  const MaskHandle a = draw_mask(bytes, arena, bits), b = draw_mask(bytes, arena, bits);
  attend_mask* both = nullptr;
  const attend_status joining =
      bytes.ConsumeBool() ? attend_mask_and(a.get(), b.get(), &both) : attend_mask_or(a.get(), b.get(), &both);
  if (!settled(joining) && both != nullptr) stop("a mask after an error");
  const MaskHandle joined(both);

  attend_attention_options options;
  attend_attention_options_init(&options);
  options.mask = joined != nullptr ? joined.get() : a.get();
  options.has_scale = bytes.ConsumeBool();
  options.scale = bytes.ConsumeFloatingPoint<double>();
  options.softcap = bytes.ConsumeBool() ? 0 : bytes.ConsumeFloatingPoint<double>();
  options.dropout_probability = bytes.ConsumeBool() ? 0 : bytes.ConsumeFloatingPoint<double>();
  options.alibi_align = bytes.ConsumeIntegralInRange<int32_t>(-1, 2);
  if (bytes.ConsumeIntegralInRange<int>(0, 20) == 20) options.struct_size = bytes.ConsumeIntegral<std::uint16_t>();
  const attend_attention_options* given = bytes.ConsumeBool() ? &options : nullptr;
  switch (bytes.ConsumeIntegralInRange<int>(0, 2)) {
    case 0:
      run_attention(bytes, arena, given);
      break;
    case 1:
      run_others(bytes, arena);
      break;
    default:
      run_layer(bytes, arena, given);
      break;
  }
  return 0;
}
