// The C ABI called with anything: every call returns a status, and no error is an internal one.
#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "attend/attend_variants.h"
#include "fuzz/c_abi_drawing.hpp"

namespace {

using attend::fuzz::Arena;
using attend::fuzz::draw_size;
using attend::fuzz::settled;
using attend::fuzz::stop;
using std::int64_t;

// A size that a struct of some version could have, or none at all.
template <class T>
void draw_struct_size(FuzzedDataProvider& bytes, T& given) {
  const int kind = bytes.ConsumeIntegralInRange<int>(0, 20);
  if (kind == 20) given.struct_size = bytes.ConsumeIntegral<std::uint16_t>();
  if (kind == 19) given.struct_size = alignof(T) * bytes.ConsumeIntegralInRange<std::size_t>(0, sizeof(T) / alignof(T));
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
      draw_struct_size(bytes, bird);
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
  draw_struct_size(bytes, gradients);
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
  draw_struct_size(bytes, rope);
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
  settled(attend_layer_norm(arena.tensor(shape), arena.tensor(row), arena.tensor(row), arena.tensor(shape), eps));
  settled(attend_layer_norm_backward(arena.tensor(shape), arena.tensor(shape), arena.tensor(row), arena.tensor(shape),
                                     arena.tensor(row), arena.tensor(row), eps));
  const int32_t kind = bytes.ConsumeIntegralInRange<int32_t>(-1, 4);
  settled(attend_gated_activation(kind, arena.tensor(shape), arena.tensor(shape), arena.tensor(shape)));
  settled(attend_gated_activation_backward(kind, arena.tensor(shape), arena.tensor(shape), arena.tensor(shape),
                                           arena.tensor(shape), arena.tensor(shape)));
  settled(attend_add(arena.tensor(shape), arena.tensor(shape), arena.tensor(shape)));
  settled(attend_convert(arena.tensor(shape), arena.tensor(shape)));
  settled(attend_dropout(arena.tensor(shape), arena.tensor(shape), eps, 7));
  const int64_t wide = draw_size(bytes);
  const std::array<int64_t, 4> table = {1, 1, wide, shape[3]}, column = {shape[0], shape[1], shape[2], 1};
  settled(attend_embedding(arena.tensor(table), positions, count, arena.tensor(shape)));
  settled(attend_embedding_backward(arena.tensor(shape), positions, count, arena.tensor(table)));
  attend_cross_entropy_options loss;
  attend_cross_entropy_options_init(&loss);
  draw_struct_size(bytes, loss);
  settled(
      attend_cross_entropy(arena.tensor(shape), arena.tensor(table), positions, count, arena.tensor(column), &loss));
  const std::array<int64_t, 4> weight = {1, 1, wide, shape[3]}, result = {shape[0], shape[1], shape[2], wide};
  const std::array<int64_t, 4> bias = {1, 1, 1, wide};
  settled(attend_linear(arena.tensor(shape), arena.tensor(weight), arena.tensor(bias), arena.tensor(result)));
  settled(attend_linear_backward(arena.tensor(result), arena.tensor(shape), arena.tensor(weight), arena.tensor(shape),
                                 arena.tensor(weight), arena.tensor(bias)));
}

void run_layer(FuzzedDataProvider& bytes, Arena& arena, const attend_attention_options* options) {
  attend_layer_config config;
  attend_layer_config_init(&config);
  draw_struct_size(bytes, config);
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

void write_values(void* context, int64_t n, const attend_tile* tile, float* values, int64_t stride) {
  if (context != nullptr) stop("a context that nobody gave");
  for (int64_t r = 0; r < tile->rows; ++r)
    for (int64_t c = 0; c < tile->cols; ++c) values[r * stride + c] = static_cast<float>(n + tile->first_col + c);
}

void read_weights(void* context, const attend_tile* tile, const float* weights, int64_t stride) {
  double& sum = *static_cast<double*>(context);
  for (int64_t r = 0; r < tile->rows; ++r)
    for (int64_t c = 0; c < tile->cols; ++c) sum += static_cast<double>(weights[r * stride + c]);
}

attend_row_sums draw_row_sums(FuzzedDataProvider& bytes, Arena& arena, const std::array<int64_t, 3>& rows) {
  attend_row_sums sums;
  attend_row_sums_init(&sums);
  draw_struct_size(bytes, sums);
  const int32_t dtype = std::exchange(arena.dtype, ATTEND_F32);
  sums.sums = arena.tensor({rows[0], rows[1], rows[2], draw_size(bytes)});
  arena.dtype = dtype;
  sums.values = bytes.ConsumeIntegralInRange<int>(0, 20) == 20 ? nullptr : &write_values;
  return sums;
}

void run_observers(FuzzedDataProvider& bytes, Arena& arena, const attend_attention_options* options) {
  const int64_t B = draw_size(bytes), H = draw_size(bytes), M = draw_size(bytes), N = draw_size(bytes);
  const int64_t D = draw_size(bytes);
  const attend_tensor *q = arena.tensor({B, H, M, D}), *k = arena.tensor({B, H, N, D}), *v = arena.tensor({B, H, N, D});
  const attend_row_sums sums = draw_row_sums(bytes, arena, {B, H, M});
  const attend_tensor* out = arena.tensor({B, H, M, D});
  arena.dtype = ATTEND_F32;
  const attend_tensor* lse = arena.tensor({B, H, M, 1});
  if (!settled(attend_attention_row_sums(q, k, v, out, options, lse, nullptr, &sums))) return;
  double sum = 0;
  settled(attend_visit_weights(q, k, lse, options, &read_weights, &sum));
}

void run_weight(FuzzedDataProvider& bytes, Arena& arena) {
  const auto format = bytes.ConsumeIntegralInRange<int32_t>(-1, 11);
  int64_t numbers = 1, block_bytes = 0, planned = 0;
  settled(attend_weight_block(format, &numbers, &block_bytes));
  const int64_t out = draw_size(bytes), blocks = draw_size(bytes), rows = draw_size(bytes);
  const int64_t in = blocks >= 0 && blocks < 8 ? blocks * numbers : blocks;
  settled(attend_weight_bytes(format, out, in, &planned));
  int64_t size = out >= 0 && out < 8 && blocks >= 0 && blocks < 8 ? out * blocks * block_bytes : 0;
  const std::byte* data = arena.bytes(static_cast<std::size_t>(size));
  if (bytes.ConsumeIntegralInRange<int>(0, 20) == 20) size -= 1;
  attend_weight* weight = nullptr;
  if (!settled(attend_weight_create(format, out, in, data, size, &weight))) {
    if (weight != nullptr) stop("a weight after an error");
    return;
  }
  std::vector<float> row(static_cast<std::size_t>(in));
  settled(attend_weight_row(weight, draw_size(bytes), row.data(), in));
  settled(attend_weight_row(weight, draw_size(bytes), row.data(), draw_size(bytes) == 1 ? draw_size(bytes) : in));
  arena.dtype = ATTEND_F32;
  const attend_tensor *x = arena.tensor({1, 1, rows, in}), *bias = arena.tensor({1, 1, 1, out});
  const std::array<attend_projection, 2> projections{
      {{weight, bytes.ConsumeBool() ? bias : nullptr, arena.tensor({1, 1, rows, out})},
       {bytes.ConsumeIntegralInRange<int>(0, 20) == 20 ? nullptr : weight, nullptr, arena.tensor({1, 1, rows, out})}}};
  settled(attend_project(x, projections.data(), bytes.ConsumeIntegralInRange<int64_t>(-1, 2)));
  attend_weight_free(weight);
}

// One change of a cache, or a call over it.
void change_cache(FuzzedDataProvider& bytes, Arena& arena, const attend_paged_kv_cache_options& made,
                  attend_paged_kv_cache* cache, std::vector<int64_t>& sequences,
                  const attend_attention_options* options) {
  const int64_t Hk = made.kv_heads, drawn = draw_size(bytes);
  const int64_t T = drawn >= 0 && drawn < 8 ? drawn * bytes.ConsumeIntegralInRange<int64_t>(1, 20) : drawn;
  const int64_t known = sequences.empty() ? -1 : sequences[bytes.ConsumeIntegral<std::uint8_t>() % sequences.size()];
  const int64_t sequence = bytes.ConsumeIntegralInRange<int>(0, 20) == 20 ? draw_size(bytes) : known;
  int64_t number = -1;
  switch (bytes.ConsumeIntegralInRange<int>(0, 8)) {
    case 0:
      if (settled(attend_paged_kv_cache_add(cache, &number))) sequences.push_back(number);
      break;
    case 1:
      if (settled(attend_paged_kv_cache_fork(cache, sequence, draw_size(bytes), &number), true))
        sequences.push_back(number);
      break;
    case 2:
      if (settled(attend_paged_kv_cache_remove(cache, sequence))) std::erase(sequences, sequence);
      break;
    case 3:
      settled(attend_paged_kv_cache_append(cache, sequence, arena.tensor({1, Hk, T, made.key_dim}),
                                           arena.tensor({1, Hk, T, made.value_dim})),
              true);
      break;
    case 4:
      settled(attend_paged_kv_cache_replace(cache, sequence, draw_size(bytes), arena.tensor({1, Hk, T, made.key_dim}),
                                            arena.tensor({1, Hk, T, made.value_dim})),
              true);
      break;
    case 5:
      settled(attend_paged_kv_cache_truncate(cache, sequence, draw_size(bytes)));
      break;
    case 6:
      settled(attend_paged_kv_cache_forget(cache, sequence, ATTEND_PAGE_TOKENS * bytes.ConsumeIntegralInRange(0, 2),
                                           ATTEND_PAGE_TOKENS * bytes.ConsumeIntegralInRange(0, 2)));
      break;
    case 7:
      settled(attend_paged_kv_cache_pages_to_append(cache, sequence, draw_size(bytes), &number));
      break;
    default: {
      const auto count = static_cast<int64_t>(sequences.size());
      const int64_t H = Hk * bytes.ConsumeIntegralInRange<int64_t>(1, 2), M = draw_size(bytes);
      const attend_tensor *q = arena.tensor({count, H, M, made.key_dim}),
                          *out = arena.tensor({count, H, M, made.value_dim});
      const attend_row_sums sums = draw_row_sums(bytes, arena, {count, H, M});
      settled(attend_paged_attention(q, cache, sequences.data(), count, out, options, nullptr,
                                     bytes.ConsumeBool() ? &sums : nullptr));
      break;
    }
  }
}

void run_cache(FuzzedDataProvider& bytes, Arena& arena, const attend_attention_options* options) {
  attend_paged_kv_cache_options made;
  attend_paged_kv_cache_options_init(&made);
  made.dtype = arena.dtype;
  made.kv_heads = draw_size(bytes);
  made.key_dim = draw_size(bytes);
  made.value_dim = draw_size(bytes);
  made.pages = draw_size(bytes);
  made.int8 = bytes.ConsumeBool();
  draw_struct_size(bytes, made);
  attend_paged_kv_cache* cache = nullptr;
  if (!settled(attend_paged_kv_cache_create(&made, &cache))) {
    if (cache != nullptr) stop("a cache after an error");
    return;
  }
  std::vector<int64_t> sequences;
  for (int steps = bytes.ConsumeIntegralInRange<int>(0, 24); steps > 0; --steps)
    change_cache(bytes, arena, made, cache, sequences, options);
  for (const int64_t sequence : sequences) settled(attend_paged_kv_cache_remove(cache, sequence));
  int64_t left = -1;
  if (!settled(attend_paged_kv_cache_pages_left(cache, &left)) || left != made.pages) stop("a page was lost");
  attend_paged_kv_cache_free(cache);
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
  draw_struct_size(bytes, options);
  const attend_attention_options* given = bytes.ConsumeBool() ? &options : nullptr;
  switch (bytes.ConsumeIntegralInRange<int>(0, 5)) {
    case 0:
      run_attention(bytes, arena, given);
      break;
    case 1:
      run_others(bytes, arena);
      break;
    case 2:
      run_observers(bytes, arena, given);
      break;
    case 3:
      run_weight(bytes, arena);
      break;
    case 4:
      run_cache(bytes, arena, given);
      break;
    default:
      run_layer(bytes, arena, given);
      break;
  }
  return 0;
}
