/* Calls with every struct that opens with its size, each struct at the end of memory that may be read. CALLS names the
   function that this file becomes. */
#include "abi/calls.h"

#include <stdio.h>
#include <string.h>

#include "attend/attend_cuda.h"
#include "attend/attend_variants.h"

/* A struct of the type that this file's headers have, initialised. */
#define NEW(type, name)                                        \
  attend_##type* name = before_the_end(sizeof(attend_##type)); \
  attend_##type##_init(name)

#define OK(call) expect(to, call, ATTEND_OK, #call)

enum { H = 2, L = 6, D = 4 };

static void expect(results* to, attend_status status, attend_status expected, const char* what) {
  if (status == expected) return;
  printf("FAILED: %s: status %d, expected %d: %s\n", what, (int)status, (int)expected, attend_last_error());
  to->failures++;
}

/* A tensor of [batch, heads, length, dim] over memory of its own, filled with numbers that `key` chooses; 0: zeros. */
static attend_tensor* tensor(int64_t batch, int64_t heads, int64_t length, int64_t dim, unsigned key) {
  const int64_t shape[4] = {batch, heads, length, dim};
  const size_t count = (size_t)(batch * heads * length * dim);
  attend_tensor* made = before_the_end(sizeof(attend_tensor));
  float* data = before_the_end(count * sizeof(float));
  size_t n;
  attend_tensor_contiguous(ATTEND_F32, data, shape, made);
  for (n = 0; key != 0 && n < count; ++n) data[n] = (float)((n * 7919u + key * 104729u) % 201u) / 100.0f - 1.0f;
  return made;
}

static void keep(results* to, const attend_tensor* tensor) {
  size_t count = 1, d;
  for (d = 0; d < 4; ++d) count *= (size_t)tensor->shape[d];
  if (to->count + count > kMostResults) {
    printf("FAILED: more than %d results\n", (int)kMostResults);
    to->failures++;
    return;
  }
  memcpy(to->values + to->count, tensor->data, count * sizeof(float));
  to->count += count;
}

static void attention(results* to) {
  const attend_tensor *q = tensor(1, H, L, D, 1), *k = tensor(1, H, L, D, 2), *v = tensor(1, H, L, D, 3);
  const attend_tensor *out = tensor(1, H, L, D, 0), *lse = tensor(1, H, L, 1, 0), *bias = tensor(1, 1, L, L, 4);
  NEW(attention_options, options);
  NEW(attention_gradients, gradients);
  options->softcap = 2;
  options->bias = bias;
  OK(attend_attention(q, k, v, out, options, lse, NULL));
  gradients->dq = tensor(1, H, L, D, 0);
  gradients->dk = tensor(1, H, L, D, 0);
  gradients->dv = tensor(1, H, L, D, 0);
  OK(attend_attention_backward(out, q, k, v, out, lse, gradients, options));
  keep(to, out);
  keep(to, gradients->dq);
  keep(to, gradients->dk);
  keep(to, gradients->dv);
}

static void loss(results* to) {
  const attend_tensor *hidden = tensor(1, 1, L, D, 1), *weight = tensor(1, 1, 9, D, 2), *dloss = tensor(1, 1, L, 1, 3);
  const int64_t targets[L] = {0, 8, -100, 3, 3, 1};
  const attend_tensor* losses = tensor(1, 1, L, 1, 0);
  NEW(cross_entropy_options, options);
  NEW(cross_entropy_gradients, gradients);
  OK(attend_cross_entropy(hidden, weight, targets, L, losses, options));
  gradients->dhidden = tensor(1, 1, L, D, 0);
  gradients->dweight = tensor(1, 1, 9, D, 0);
  OK(attend_cross_entropy_backward(dloss, hidden, weight, targets, L, gradients, options));
  keep(to, losses);
  keep(to, gradients->dhidden);
  keep(to, gradients->dweight);
}

static void positions(results* to) {
  const attend_tensor *x = tensor(1, H, L, D, 1), *y = tensor(1, H, L, D, 0), *bias = tensor(1, H, 1, 400, 0);
  NEW(rope_options, options);
  NEW(rope_scaling, scaling);
  NEW(t5_buckets, buckets);
  scaling->kind = ATTEND_SCALING_YARN;
  scaling->factor = 4;
  scaling->original_length = 16;
  options->theta = 100;
  OK(attend_rope(x, y, options));
  keep(to, y);
  OK(attend_t5_bias(tensor(1, 1, 32, H, 2), bias, -200, buckets));
  keep(to, bias);
  {
    attend_layer* layer = NULL;
    NEW(layer_config, config);
    config->width = H * D;
    config->heads = H;
    config->rope_style = ATTEND_ROPE_HALF_SPLIT;
    OK(attend_layer_create(config, &layer));
    OK(attend_layer_initialise(layer, 5));
    x = tensor(1, 1, L, H * D, 6);
    y = tensor(1, 1, L, H * D, 0);
    OK(attend_layer_forward(layer, x, NULL, NULL, y, NULL, NULL));
    keep(to, y);
    attend_layer_free(layer);
  }
  {
    attend_latent* layer = NULL;
    NEW(latent_config, config);
    config->width = 8;
    config->kv_rank = 4;
    config->nope_dim = config->rope_dim = config->value_dim = 2;
    config->rope_scaling = scaling;
    OK(attend_latent_create(config, &layer));
    OK(attend_latent_initialise(layer, 7));
    y = tensor(1, 1, L, 8, 0);
    OK(attend_latent_forward(layer, tensor(1, 1, L, 8, 8), NULL, y, NULL));
    keep(to, y);
    attend_latent_free(layer);
  }
}

static void block(results* to) {
  const attend_tensor* y = tensor(1, 1, L, H * D, 0);
  attend_transformer_block* made = NULL;
  NEW(layer_config, layer);
  NEW(transformer_block_config, config);
  layer->width = H * D;
  layer->heads = H;
  config->attention = layer;
  OK(attend_transformer_block_create(config, &made));
  OK(attend_transformer_block_initialise(made, 9));
  OK(attend_transformer_block_forward(made, tensor(1, 1, L, H * D, 10), NULL, 0, y));
  keep(to, y);
  attend_transformer_block_free(made);
}

static void bigbird(results* to) {
  const attend_tensor *q = tensor(1, 1, 16, D, 11), *out = tensor(1, 1, 16, D, 0);
  attend_mask* mask = NULL;
  NEW(bigbird_options, bird);
  NEW(attention_options, options);
  bird->block = 2;
  bird->random_blocks = 1;
  bird->seed = 3;
  OK(attend_mask_bigbird(16, 16, bird, &mask));
  options->mask = mask;
  OK(attend_attention(q, q, q, out, options, NULL, NULL));
  keep(to, out);
  attend_mask_free(mask);
}

static void linear_and_linformer(results* to) {
  const attend_tensor *q = tensor(1, H, L, D, 12), *k = tensor(1, H, L, D, 13), *v = tensor(1, H, L, D, 14);
  const attend_tensor *out = tensor(1, H, L, D, 0), *lse = tensor(1, H, L, 1, 0), *e = tensor(1, 1, 3, L, 15);
  NEW(linear_attention_options, linear);
  NEW(linear_attention_gradients, linear_gradients);
  NEW(linformer_options, linformer);
  NEW(linformer_gradients, gradients);
  OK(attend_linear_attention(q, k, v, out, linear, NULL));
  keep(to, out);
  linear_gradients->dq = gradients->dq = tensor(1, H, L, D, 0);
  linear_gradients->dk = gradients->dk = tensor(1, H, L, D, 0);
  linear_gradients->dv = gradients->dv = tensor(1, H, L, D, 0);
  OK(attend_linear_attention_backward(out, q, k, v, linear_gradients, linear, NULL, NULL));
  keep(to, linear_gradients->dk);
  OK(attend_linformer(q, k, v, e, NULL, out, linformer, lse, NULL, NULL));
  keep(to, out);
  gradients->de = tensor(1, 1, 3, L, 0);
  OK(attend_linformer_backward(out, q, k, v, e, NULL, out, lse, NULL, NULL, gradients, linformer));
  keep(to, gradients->de);
}

static void spans_and_hashes(results* to) {
  const attend_tensor *q = tensor(1, H, L, D, 16), *k = tensor(1, H, L, D, 17), *v = tensor(1, H, L, D, 18);
  const attend_tensor *out = tensor(1, H, L, D, 0), *lse = tensor(1, H, L, 1, 0), *span = tensor(1, H, 1, 1, 0);
  NEW(reformer_options, reformer);
  NEW(adaptive_span_options, options);
  NEW(adaptive_span_gradients, gradients);
  reformer->rounds = 2;
  reformer->chunk = 2;
  OK(attend_reformer(q, v, out, reformer, lse));
  keep(to, out);
  options->ramp = 2;
  options->max_span = 8;
  ((float*)span->data)[0] = 3;
  ((float*)span->data)[1] = 1.5f;
  OK(attend_adaptive_span(q, k, v, span, out, options, lse));
  keep(to, out);
  gradients->dq = tensor(1, H, L, D, 0);
  gradients->dk = tensor(1, H, L, D, 0);
  gradients->dv = tensor(1, H, L, D, 0);
  /* dspan is left out: a program that does not know of it is told, not crashed. */
  expect(to, attend_adaptive_span_backward(out, q, k, v, span, out, lse, gradients, options), ATTEND_INVALID_ARGUMENT,
         "attend_adaptive_span_backward without dspan");
}

static void additive(results* to) {
  const attend_tensor *a = tensor(1, H, L, D, 19), *b = tensor(1, H, L, D, 20), *w = tensor(1, H, 1, D, 21);
  const attend_tensor *v = tensor(1, H, L, D, 22), *out = tensor(1, H, L, D, 0), *lse = tensor(1, H, L, 1, 0);
  NEW(additive_options, options);
  NEW(additive_gradients, gradients);
  NEW(alignment, alignment);
  NEW(alignment_gradients, aligned);
  OK(attend_additive_attention(a, b, w, v, out, options, lse));
  keep(to, out);
  gradients->da = tensor(1, H, L, D, 0);
  gradients->db = tensor(1, H, L, D, 0);
  gradients->dw = tensor(1, H, 1, D, 0);
  expect(to, attend_additive_attention_backward(out, a, b, w, v, out, lse, gradients, options), ATTEND_INVALID_ARGUMENT,
         "attend_additive_attention_backward without dv");
  OK(attend_aligned_attention(alignment, a, b, v, out, options, lse));
  keep(to, out);
  aligned->dq = tensor(1, H, L, D, 0);
  aligned->dk = tensor(1, H, L, D, 0);
  aligned->dv = tensor(1, H, L, D, 0);
  OK(attend_aligned_attention_backward(alignment, out, a, b, v, out, lse, aligned, options));
  keep(to, aligned->dk);
}

/* f(i, j) = j; with no context. */
static void column(void* context, int64_t n, const attend_tile* tile, float* values, int64_t stride) {
  int64_t r, c;
  for (r = 0; context == NULL && r < tile->rows; ++r)
    for (c = 0; c < tile->cols; ++c) values[r * stride + c] = (float)(n + tile->first_col + c);
}

static void cache_and_sums(results* to) {
  const attend_tensor *q = tensor(1, H, 2, D, 23), *k = tensor(1, H, L, D, 24), *out = tensor(1, H, 2, D, 0);
  attend_paged_kv_cache* cache = NULL;
  int64_t sequence = -1;
  NEW(paged_kv_cache_options, options);
  NEW(row_sums, sums);
  options->kv_heads = H;
  options->key_dim = options->value_dim = D;
  options->pages = 2;
  OK(attend_paged_kv_cache_create(options, &cache));
  OK(attend_paged_kv_cache_add(cache, &sequence));
  OK(attend_paged_kv_cache_append(cache, sequence, k, k));
  sums->sums = tensor(1, H, 2, 1, 0);
  sums->values = column;
  OK(attend_paged_attention(q, cache, &sequence, 1, out, NULL, NULL, sums));
  keep(to, out);
  keep(to, sums->sums);
  attend_paged_kv_cache_free(cache);
}

static void looked_at(results* to) {
  const attend_tensor *q = tensor(1, H, L, D, 25), *k = tensor(1, H, L, D, 26);
  attend_lens* lens = NULL;
  NEW(row_statistics, statistics);
  NEW(cell, cell);
  statistics->rows = tensor(1, H, L, ATTEND_ROW_STATISTICS, 0);
  OK(attend_lens_create(q, k, k, NULL, NULL, &lens));
  OK(attend_lens_statistics(lens, statistics));
  keep(to, statistics->rows);
  OK(attend_lens_cell(lens, 0, 0, 1, 1, cell));
  attend_lens_free(lens);
}

/* Of the host's memory: refused where there is a GPU, and where there is none; not for the size of the struct. */
static void on_a_gpu(results* to) {
  const attend_tensor *q = tensor(1, H, 1, D, 27), *out = tensor(1, H, 1, D, 0);
  NEW(cuda_cache, cache);
  cache->k.data = cache->v.data = q->data;
  cache->k.shape[0] = cache->k.shape[1] = cache->k.shape[2] = 1;
  cache->k.shape[3] = D;
  cache->v = cache->k;
  expect(to, attend_cuda_cached_attention(q, cache, out, NULL, NULL, NULL, 0, NULL), ATTEND_INVALID_ARGUMENT,
         "attend_cuda_cached_attention");
  if (strstr(attend_last_error(), "struct_size") != NULL) expect(to, ATTEND_INVALID_ARGUMENT, ATTEND_OK, "its size");
}

void CALLS(results* to) {
  on_a_gpu(to);
  looked_at(to);
  cache_and_sums(to);
  attention(to);
  positions(to);
  loss(to);
  block(to);
  bigbird(to);
  linear_and_linformer(to);
  spans_and_hashes(to);
  additive(to);
}
