/* The C ABI of the rest of the family: named mask patterns, other kinds of attention, blocks of a transformer. Errors,
   tensors, masks and structs are as attend.h has them. */
#ifndef ATTEND_ATTEND_VARIANTS_H
#define ATTEND_ATTEND_VARIANTS_H

#include "attend/attend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- mask patterns ---- */

/* Sparse Transformer. Causal. */
ATTEND_API attend_status attend_mask_strided(int64_t stride, int32_t align, attend_mask** mask);
ATTEND_API attend_status attend_mask_fixed(int64_t block, int64_t columns, int32_t align, attend_mask** mask);
/* Longformer: `window` keys on each side, `dilation` apart; global_count may be 0. */
ATTEND_API attend_status attend_mask_longformer(int64_t window, int64_t dilation, const int64_t* global_positions,
                                                int64_t global_count, int32_t align, attend_mask** mask);
/* StreamingLLM: the first `sinks` keys and the last `window`. Causal. */
ATTEND_API attend_status attend_mask_streaming(int64_t sinks, int64_t window, int32_t align, attend_mask** mask);

typedef struct attend_bigbird_options {
  size_t struct_size;
  int64_t block;         /* 64 */
  int64_t window_blocks; /* 3: odd */
  int64_t global_blocks; /* 1 */
  int64_t random_blocks; /* 3 */
  int64_t heads;         /* 1: one pattern for all heads, or one for each */
  uint64_t seed;
  int32_t causal;
} attend_bigbird_options;

ATTEND_INIT(attend_bigbird_options)
/* options NULL: the defaults. */
ATTEND_API attend_status attend_mask_bigbird(int64_t queries, int64_t keys, const attend_bigbird_options* options,
                                             attend_mask** mask);
/* BlockBERT: permutations [heads, blocks]; NULL: random ones by the seed. */
ATTEND_API attend_status attend_mask_block_permutation(int64_t queries, int64_t keys, int64_t blocks, int64_t heads,
                                                       const int64_t* permutations, uint64_t seed, attend_mask** mask);

/* ---- linear attention ---- */

enum {
  ATTEND_FEATURES_ELU_PLUS_ONE = 0,
  ATTEND_FEATURES_RELU = 1,
  ATTEND_FEATURES_IDENTITY = 2,
  ATTEND_FEATURES_GIVEN = 3
};

/* A feature map of the user's own, over rows of `dim` elements and `features` features. Only the functions of the
   call's dtype are needed (f64, or f32 for all others), and gradient for gradients alone. Called from several threads
   at once; must not throw. */
typedef struct attend_feature_map {
  int32_t kind;
  int64_t features; /* of ATTEND_FEATURES_GIVEN; 0: dim */
  void* context;    /* handed to each function */
  void (*value_f32)(void* context, const float* x, int64_t dim, float* y, int64_t features);
  void (*value_f64)(void* context, const double* x, int64_t dim, double* y, int64_t features);
  void (*gradient_f32)(void* context, const float* x, const float* dy, int64_t features, float* dx, int64_t dim);
  void (*gradient_f64)(void* context, const double* x, const double* dy, int64_t features, double* dx, int64_t dim);
} attend_feature_map;

typedef struct attend_linear_attention_options {
  size_t struct_size;
  attend_feature_map map;
  int32_t causal, normalise; /* 1 by default */
  double scale, eps;
  const attend_tensor* log_decay; /* [1|B, 1|Hk|H, 1|N, 1], or NULL */
  const attend_tensor* beta;      /* [1|B, 1|Hk|H, 1|N, 1], or NULL */
  const int64_t* lengths;
  int64_t length_count;               /* 0: all keys count */
  const attend_tensor* initial_state; /* of attend_linear_state_shape, or NULL */
} attend_linear_attention_options;
ATTEND_INIT(attend_linear_attention_options)

ATTEND_API attend_status attend_linear_state_shape(const attend_tensor* q, const attend_tensor* k,
                                                   const attend_tensor* v,
                                                   const attend_linear_attention_options* options, int64_t shape[4]);
/* final_state: NULL unless wanted. */
ATTEND_API attend_status attend_linear_attention(const attend_tensor* q, const attend_tensor* k, const attend_tensor* v,
                                                 const attend_tensor* out,
                                                 const attend_linear_attention_options* options,
                                                 const attend_tensor* final_state);

typedef struct attend_linear_attention_gradients {
  size_t struct_size;
  const attend_tensor *dq, *dk, *dv;
  const attend_tensor *dlog_decay, *dbeta, *dinitial_state; /* NULL unless wanted */
} attend_linear_attention_gradients;
ATTEND_INIT(attend_linear_attention_gradients)

/* dfinal_state, final_state: NULL for none. */
ATTEND_API attend_status attend_linear_attention_backward(const attend_tensor* dout, const attend_tensor* q,
                                                          const attend_tensor* k, const attend_tensor* v,
                                                          const attend_linear_attention_gradients* gradients,
                                                          const attend_linear_attention_options* options,
                                                          const attend_tensor* dfinal_state,
                                                          const attend_tensor* final_state);

ATTEND_API attend_status attend_linear_attention_step(const attend_tensor* q, const attend_tensor* k,
                                                      const attend_tensor* v, const attend_tensor* out,
                                                      const attend_tensor* state,
                                                      const attend_linear_attention_options* options);

/* ---- Linformer ---- */

typedef struct attend_linformer_options {
  size_t struct_size;
  const attend_mask* mask; /* padding alone; NULL: none */
  int32_t has_scale;       /* 0: 1/sqrt(D) */
  double scale;
} attend_linformer_options;
ATTEND_INIT(attend_linformer_options)

/* f: NULL where e serves both. lse, keys, values (the projected ones): NULL unless wanted. */
ATTEND_API attend_status attend_linformer(const attend_tensor* q, const attend_tensor* k, const attend_tensor* v,
                                          const attend_tensor* e, const attend_tensor* f, const attend_tensor* out,
                                          const attend_linformer_options* options, const attend_tensor* lse,
                                          const attend_tensor* keys, const attend_tensor* values);

typedef struct attend_linformer_gradients {
  size_t struct_size;
  const attend_tensor *dq, *dk, *dv, *de;
  const attend_tensor* df; /* NULL exactly where f is */
} attend_linformer_gradients;
ATTEND_INIT(attend_linformer_gradients)

/* keys, values: as attend_linformer gave them, or NULL both. */
ATTEND_API attend_status attend_linformer_backward(const attend_tensor* dout, const attend_tensor* q,
                                                   const attend_tensor* k, const attend_tensor* v,
                                                   const attend_tensor* e, const attend_tensor* f,
                                                   const attend_tensor* out, const attend_tensor* lse,
                                                   const attend_tensor* keys, const attend_tensor* values,
                                                   const attend_linformer_gradients* gradients,
                                                   const attend_linformer_options* options);

/* ---- Reformer ---- */

typedef struct attend_reformer_options {
  size_t struct_size;
  int64_t rounds;
  int64_t chunk;
  const int64_t* buckets; /* its factors, each even */
  int64_t bucket_count;   /* how many factors; 0: chosen by the length */
  int32_t causal;
  uint64_t seed;
  int32_t has_scale; /* 0: 1/sqrt(D) */
  double scale;
} attend_reformer_options;
ATTEND_INIT(attend_reformer_options)

/* Queries and keys are shared. lse: NULL unless wanted. */
ATTEND_API attend_status attend_reformer(const attend_tensor* q, const attend_tensor* v, const attend_tensor* out,
                                         const attend_reformer_options* options, const attend_tensor* lse);
ATTEND_API attend_status attend_reformer_backward(const attend_tensor* dout, const attend_tensor* q,
                                                  const attend_tensor* v, const attend_tensor* out,
                                                  const attend_tensor* lse, const attend_tensor* dq,
                                                  const attend_tensor* dv, const attend_reformer_options* options);
/* hashes[rounds, B, H, L], `count` of them: room for all. */
ATTEND_API attend_status attend_reformer_hashes(const attend_tensor* q, const attend_reformer_options* options,
                                                int32_t* hashes, int64_t count);
ATTEND_API attend_status attend_reformer_recall(const attend_tensor* q, const attend_reformer_options* options,
                                                int64_t samples, double* recall);

/* ---- adaptive span ---- */

typedef struct attend_adaptive_span_options {
  size_t struct_size;
  double ramp;
  double max_span;
  int32_t symmetric;
  int32_t align;
  const int64_t* offsets;
  int64_t offset_count;    /* 0: by align */
  const attend_mask* mask; /* padding alone; NULL: none */
  int32_t has_scale;       /* 0: 1/sqrt(D) */
  double scale;
} attend_adaptive_span_options;
ATTEND_INIT(attend_adaptive_span_options)

/* span [1, H, 1, 1]. lse: NULL unless wanted. */
ATTEND_API attend_status attend_adaptive_span(const attend_tensor* q, const attend_tensor* k, const attend_tensor* v,
                                              const attend_tensor* span, const attend_tensor* out,
                                              const attend_adaptive_span_options* options, const attend_tensor* lse);

typedef struct attend_adaptive_span_gradients {
  size_t struct_size;
  const attend_tensor *dq, *dk, *dv, *dspan;
} attend_adaptive_span_gradients;
ATTEND_INIT(attend_adaptive_span_gradients)

ATTEND_API attend_status attend_adaptive_span_backward(const attend_tensor* dout, const attend_tensor* q,
                                                       const attend_tensor* k, const attend_tensor* v,
                                                       const attend_tensor* span, const attend_tensor* out,
                                                       const attend_tensor* lse,
                                                       const attend_adaptive_span_gradients* gradients,
                                                       const attend_adaptive_span_options* options);
/* dspan: NULL unless its gradient is wanted. */
ATTEND_API attend_status attend_adaptive_span_penalty(const attend_tensor* span, double loss_weight,
                                                      const attend_adaptive_span_options* options, double* penalty,
                                                      const attend_tensor* dspan);

/* ---- additive attention ---- */

typedef struct attend_additive_options {
  size_t struct_size;
  const attend_mask* mask; /* NULL: none */
  double scale;            /* 1 */
} attend_additive_options;
ATTEND_INIT(attend_additive_options)

/* lse: NULL unless wanted. */
ATTEND_API attend_status attend_additive_attention(const attend_tensor* a, const attend_tensor* b,
                                                   const attend_tensor* w, const attend_tensor* v,
                                                   const attend_tensor* out, const attend_additive_options* options,
                                                   const attend_tensor* lse);

typedef struct attend_additive_gradients {
  size_t struct_size;
  const attend_tensor *da, *db, *dw, *dv;
} attend_additive_gradients;
ATTEND_INIT(attend_additive_gradients)

ATTEND_API attend_status attend_additive_attention_backward(const attend_tensor* dout, const attend_tensor* a,
                                                            const attend_tensor* b, const attend_tensor* w,
                                                            const attend_tensor* v, const attend_tensor* out,
                                                            const attend_tensor* lse,
                                                            const attend_additive_gradients* gradients,
                                                            const attend_additive_options* options);

enum { ATTEND_ALIGN_DOT = 0, ATTEND_ALIGN_GENERAL = 1, ATTEND_ALIGN_CONCAT = 2 };

typedef struct attend_alignment {
  size_t struct_size;
  int32_t score;
  const attend_tensor *wq, *wk, *w; /* NULL where the score has none */
} attend_alignment;
ATTEND_INIT(attend_alignment)

ATTEND_API attend_status attend_aligned_attention(const attend_alignment* alignment, const attend_tensor* q,
                                                  const attend_tensor* k, const attend_tensor* v,
                                                  const attend_tensor* out, const attend_additive_options* options,
                                                  const attend_tensor* lse);

typedef struct attend_alignment_gradients {
  size_t struct_size;
  const attend_tensor *dq, *dk, *dv;
  const attend_tensor *dwq, *dwk, *dw; /* NULL where the score has none */
} attend_alignment_gradients;
ATTEND_INIT(attend_alignment_gradients)

ATTEND_API attend_status attend_aligned_attention_backward(const attend_alignment* alignment, const attend_tensor* dout,
                                                           const attend_tensor* q, const attend_tensor* k,
                                                           const attend_tensor* v, const attend_tensor* out,
                                                           const attend_tensor* lse,
                                                           const attend_alignment_gradients* gradients,
                                                           const attend_additive_options* options);

/* ---- latent attention (MLA) ---- */

typedef struct attend_latent attend_latent;
typedef struct attend_latent_saved attend_latent_saved;
typedef struct attend_latent_gradients attend_latent_gradients;
typedef struct attend_latent_cache attend_latent_cache;

typedef struct attend_latent_config {
  size_t struct_size;
  int32_t dtype;
  int64_t width, heads;
  int64_t q_rank; /* 0: the query straight from x */
  int64_t kv_rank;
  int64_t nope_dim, rope_dim, value_dim;
  double norm_eps;
  int32_t rope_style;
  double rope_theta;
  const attend_rope_scaling* rope_scaling; /* NULL: none */
  int32_t has_scale;                       /* 0: the default of latent_attention.hpp */
  double scale;
} attend_latent_config;
ATTEND_INIT(attend_latent_config)

ATTEND_API attend_status attend_latent_create(const attend_latent_config* config, attend_latent** layer);
ATTEND_API attend_status attend_latent_initialise(attend_latent* layer, uint64_t seed);
/* A writable view of the layer's memory: "wq_down" "q_norm" "wq" "wkv_down" "kv_norm" "wkv_up" "wo". */
ATTEND_API attend_status attend_latent_parameter(attend_latent* layer, const char* name, attend_tensor* parameter);
/* What a cache takes for a token, and what one of all heads' keys and values would; either may be NULL. */
ATTEND_API attend_status attend_latent_bytes_per_token(const attend_latent* layer, int64_t* bytes, int64_t* expanded);

/* x [B, 1, L, width] -> out of the same shape. saved: NULL unless wanted; what the options point at must stay until
   backward. */
ATTEND_API attend_status attend_latent_forward(const attend_latent* layer, const attend_tensor* x,
                                               const attend_attention_options* options, const attend_tensor* out,
                                               attend_latent_saved** saved);
ATTEND_API attend_status attend_latent_backward(const attend_latent* layer, const attend_tensor* dout,
                                                const attend_latent_saved* saved, attend_latent_gradients** gradients);
/* A view of the gradients' memory: "dx", or the name of a parameter. */
ATTEND_API attend_status attend_latent_gradient(attend_latent_gradients* gradients, const char* name,
                                                attend_tensor* gradient);

ATTEND_API attend_status attend_latent_cache_create(const attend_latent* layer, int64_t batch, int64_t capacity,
                                                    attend_latent_cache** cache);
ATTEND_API attend_status attend_latent_cache_length(const attend_latent_cache* cache, int64_t* length);
ATTEND_API attend_status attend_latent_cache_truncate(attend_latent_cache* cache, int64_t length);
/* x [B, 1, T, width] -> out of the same shape. options NULL: causal. */
ATTEND_API attend_status attend_latent_prefill(const attend_latent* layer, const attend_tensor* x,
                                               attend_latent_cache* cache, const attend_attention_options* options,
                                               const attend_tensor* out);
ATTEND_API attend_status attend_latent_step(const attend_latent* layer, const attend_tensor* x,
                                            attend_latent_cache* cache, const attend_attention_options* options,
                                            const attend_tensor* out);

ATTEND_API void attend_latent_free(attend_latent* layer);
ATTEND_API void attend_latent_saved_free(attend_latent_saved* saved);
ATTEND_API void attend_latent_gradients_free(attend_latent_gradients* gradients);
ATTEND_API void attend_latent_cache_free(attend_latent_cache* cache);

/* ---- blocks of a transformer ---- */

/* Handles; `*handle` is NULL after an error. */
typedef struct attend_transformer_block attend_transformer_block;
typedef struct attend_transformer_block_gradients attend_transformer_block_gradients;

enum { ATTEND_SWIGLU = 0, ATTEND_GELU = 1, ATTEND_RELU = 2 };

typedef struct attend_transformer_block_config {
  size_t struct_size;
  const attend_layer_config* attention; /* its width and dtype are the block's */
  int32_t feed_forward;
  int64_t hidden; /* 0: 4 * width */
  double norm_eps;
} attend_transformer_block_config;
ATTEND_INIT(attend_transformer_block_config)

ATTEND_API attend_status attend_transformer_block_create(const attend_transformer_block_config* config,
                                                         attend_transformer_block** block);
ATTEND_API attend_status attend_transformer_block_initialise(attend_transformer_block* block, uint64_t seed);
/* A writable view of the block's memory: "norm1" "norm2" "gate" "up" "down", or the name of a layer's parameter. */
ATTEND_API attend_status attend_transformer_block_parameter(attend_transformer_block* block, const char* name,
                                                            attend_tensor* parameter);
ATTEND_API attend_status attend_transformer_block_parameter_count(const attend_transformer_block* block,
                                                                  int64_t* count);

/* x and out [B, 1, M, width] in the block's dtype. queries: how many at a time; 0: all. */
ATTEND_API attend_status attend_transformer_block_forward(const attend_transformer_block* block, const attend_tensor* x,
                                                          const attend_attention_options* options, int64_t queries,
                                                          const attend_tensor* out);
ATTEND_API attend_status attend_transformer_block_backward(const attend_transformer_block* block,
                                                           const attend_tensor* dout, const attend_tensor* x,
                                                           const attend_attention_options* options, int64_t queries,
                                                           attend_transformer_block_gradients** gradients);
/* A view of the gradients' memory: "dx" "dbias" "dsinks", or the name of a parameter. */
ATTEND_API attend_status attend_transformer_block_gradient(attend_transformer_block_gradients* gradients,
                                                           const char* name, attend_tensor* gradient);

ATTEND_API void attend_transformer_block_free(attend_transformer_block* block);
ATTEND_API void attend_transformer_block_gradients_free(attend_transformer_block_gradients* gradients);

/* ---- inner attention ---- */

/* attend_inner is what a layer may compute between its projections instead of softmax attention: made here, given to a
   layer in its config. The layer keeps what it needs of it: free it when you like. */

/* A writable view of a learned parameter of its own, in memory that lives as long as the handle or a layer that uses
   it. */
ATTEND_API attend_status attend_inner_parameter(attend_inner* inner, const char* name, attend_tensor* parameter);
ATTEND_API void attend_inner_free(attend_inner* inner);

/* What the options point at is copied, but for functions. options NULL: the defaults. */
ATTEND_API attend_status attend_inner_linear_attention(const attend_linear_attention_options* options,
                                                       attend_inner** inner);
ATTEND_API attend_status attend_inner_reformer(const attend_reformer_options* options, attend_inner** inner);
/* Parameters "e" and, unless shared, "f". kv_heads: 1, or as many as the layer has. */
ATTEND_API attend_status attend_inner_linformer(int32_t dtype, int64_t length, int64_t rank, int64_t kv_heads,
                                                int32_t shared, uint64_t seed, attend_inner** inner);
/* Parameter "span". */
ATTEND_API attend_status attend_inner_adaptive_span(int64_t heads, double initial_span,
                                                    const attend_adaptive_span_options* options, attend_inner** inner);
/* Parameter "w". */
ATTEND_API attend_status attend_inner_additive(int32_t dtype, int64_t heads, int64_t head_dim,
                                               const attend_additive_options* options, attend_inner** inner);

#ifdef __cplusplus
}
#endif

#endif
