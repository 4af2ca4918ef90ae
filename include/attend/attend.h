/* The C ABI: status codes, text of the last error per thread, no exception crosses. The .hpp headers say what each
   operation means; here is only what differs in C. */
#ifndef ATTEND_ATTEND_H
#define ATTEND_ATTEND_H

#include <stddef.h>
#include <stdint.h>

#include "attend/export.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- errors ---- */

typedef enum attend_status {
  ATTEND_OK = 0,
  ATTEND_INVALID_ARGUMENT = 1, /* nothing was touched; attend_last_error says what was got and what was expected */
  ATTEND_OUT_OF_MEMORY = 2,
  ATTEND_INTERNAL_ERROR = 3,
  ATTEND_OUT_OF_PAGES = 4 /* of a paged KV cache; nothing was changed */
} attend_status;

/* What the last failed call of this thread said; "" before the first. Stands until the next failure. */
ATTEND_API const char* attend_last_error(void);

/* ---- the library and the machine ---- */

ATTEND_API const char* attend_version(void);
ATTEND_API const char* attend_kernel_name(void); /* NULL on error: ATTEND_ISA names what is not there */
ATTEND_API attend_status attend_set_threads(int count);
ATTEND_API int attend_threads(void); /* 0 on error */

/* ---- structs that may grow ---- */

/* Options, configs and lists of results open with struct_size: call attend_<name>_init, then set what differs. It is
   compiled into the program and tells the library how large the struct is there, so that a newer library, whose struct
   has more fields, neither writes nor reads past its end: what a program does not know of has its default. A struct
   that is larger than the library's is refused by the call that it is given to: the program was compiled for a newer
   attend. Other languages call attend_<name>_init_sized with the size of their own struct.
   All other structs, such as attend_tensor, keep their fields for good. */
/* NOLINTBEGIN(bugprone-macro-parentheses): a type cannot stand in parentheses */
#define ATTEND_INIT(type)                                   \
  ATTEND_API void type##_init_sized(type* it, size_t size); \
  static inline void type##_init(type* it) {                \
    type##_init_sized(it, sizeof(*it));                     \
  }
/* NOLINTEND(bugprone-macro-parentheses) */

/* ---- tensors ---- */

/* Constants travel as int32_t, so that a value from outside can be checked. */
enum { ATTEND_F32 = 0, ATTEND_F16 = 1, ATTEND_BF16 = 2, ATTEND_F64 = 3 };

/* A view of [batch, heads, length, dim]; owns nothing. Strides are in elements, any sign; 0 repeats, but not all four
   may be 0 where there is more than one element: attend_tensor_contiguous fills a tensor in.
   The library writes only through tensors named as results. */
typedef struct attend_tensor {
  int32_t dtype;
  void* data;
  int64_t shape[4];
  int64_t strides[4];
} attend_tensor;

/* Fills `tensor` in with the strides of contiguous memory. A shape has four sizes; a matrix is {1, 1, rows, columns}.
 */
ATTEND_API attend_status attend_tensor_contiguous(int32_t dtype, void* data, const int64_t shape[4],
                                                  attend_tensor* tensor);

/* ---- masks: handles; `*mask` is NULL after an error; what they point at is copied unless said otherwise ---- */

typedef struct attend_mask attend_mask;

enum { ATTEND_FIRST_KEY = 0, ATTEND_LAST_KEY = 1 }; /* where query 0, or the last query, stands */
#define ATTEND_UNLIMITED INT64_C(-1)

ATTEND_API attend_status attend_mask_causal(int32_t align, attend_mask** mask);
ATTEND_API attend_status attend_mask_causal_at(const int64_t* offsets, int64_t count, attend_mask** mask);
ATTEND_API attend_status attend_mask_window(int64_t left, int64_t right, int32_t align, attend_mask** mask);
ATTEND_API attend_status attend_mask_window_at(int64_t left, int64_t right, const int64_t* offsets, int64_t count,
                                               attend_mask** mask);
ATTEND_API attend_status attend_mask_padding(const int64_t* lengths, int64_t count, attend_mask** mask);
ATTEND_API attend_status attend_mask_left_padding(const int64_t* counts, int64_t count, attend_mask** mask);
ATTEND_API attend_status attend_mask_prefix(const int64_t* lengths, int64_t count, int32_t align, attend_mask** mask);
ATTEND_API attend_status attend_mask_prefix_at(const int64_t* lengths, int64_t count, const int64_t* offsets,
                                               int64_t offset_count, attend_mask** mask);
/* `count` cumulative lengths each, one more than there are segments; keys NULL: the same as queries. */
ATTEND_API attend_status attend_mask_segments(const int64_t* queries, const int64_t* keys, int64_t count,
                                              attend_mask** mask);
/* bits[heads, rows, cols], nonzero: visible. */
ATTEND_API attend_status attend_mask_blocks(int64_t block_queries, int64_t block_keys, int64_t heads, int64_t rows,
                                            int64_t cols, const uint8_t* bits, attend_mask** mask);
/* The caller's bytes, not copied: they must outlive every use of the mask. strides (in bytes) NULL: contiguous. */
ATTEND_API attend_status attend_mask_dense(const uint8_t* data, const int64_t shape[4], const int64_t* strides,
                                           attend_mask** mask);
/* What both allow. a and b stay the caller's. */
ATTEND_API attend_status attend_mask_and(const attend_mask* a, const attend_mask* b, attend_mask** mask);
/* What a or b allows. */
ATTEND_API attend_status attend_mask_or(const attend_mask* a, const attend_mask* b, attend_mask** mask);
/* What `hidden` does not allow. */
ATTEND_API attend_status attend_mask_except(const attend_mask* hidden, attend_mask** mask);
/* The chunk of `size` keys that a query stands in, and `back` chunks before. */
ATTEND_API attend_status attend_mask_chunks(int64_t size, int64_t back, int32_t align, attend_mask** mask);
/* Every step-th key, counted from the query's own. */
ATTEND_API attend_status attend_mask_dilated(int64_t step, int32_t align, attend_mask** mask);
/* `count` keys from `first` on, in every `period` keys. */
ATTEND_API attend_status attend_mask_columns(int64_t period, int64_t first, int64_t count, attend_mask** mask);
/* Keys at these positions, and no others. */
ATTEND_API attend_status attend_mask_tokens(const int64_t* positions, int64_t count, attend_mask** mask);
/* Tokens that see all and are seen by all. */
ATTEND_API attend_status attend_mask_global_tokens(const int64_t* positions, int64_t count, int32_t align,
                                                   attend_mask** mask);
ATTEND_API void attend_mask_free(attend_mask* mask);

/* ---- attention ---- */

/* The place of a tile: element (r, c) is the score of query first_row + r and key first_col + c. */
typedef struct attend_tile {
  int64_t rows, cols;
  int64_t batch, head, first_row, first_col;
} attend_tile;

/* A rule of the user's own, with (r, c) at [r * stride + c]. Only the functions of the call's dtype are needed (f64, or
   f32 for all others), and backward for gradients alone. Called from several threads at once; must not throw. */
typedef struct attend_score_rule {
  void* context; /* handed to each function */
  void (*forward_f32)(void* context, const attend_tile* tile, float* scores, int64_t stride);
  void (*forward_f64)(void* context, const attend_tile* tile, double* scores, int64_t stride);
  void (*backward_f32)(void* context, const attend_tile* tile, const float* scores, int64_t scores_stride, float* grad,
                       int64_t grad_stride);
  void (*backward_f64)(void* context, const attend_tile* tile, const double* scores, int64_t scores_stride,
                       double* grad, int64_t grad_stride);
} attend_score_rule;

/* NULL instead of options means the defaults, here and below. */
typedef struct attend_attention_options {
  size_t struct_size;
  const attend_mask* mask; /* NULL: none */
  int32_t has_scale;       /* 0: 1/sqrt(D) */
  double scale;
  double softcap; /* 0: off */
  attend_score_rule rule;
  const attend_tensor* bias;         /* [1|B, 1|H, 1|M, 1|N], or NULL */
  const attend_tensor* alibi_slopes; /* [1|B, H, 1, 1], or NULL */
  int32_t alibi_align;
  const int64_t* alibi_offsets;
  int64_t alibi_offset_count; /* 0: by alibi_align */
  const attend_tensor* sinks; /* [1, H, 1, 1], or NULL */
  double dropout_probability;
  uint64_t dropout_seed;
  const attend_tensor* distance_bias; /* [1, 1|H, 1, M + N - 1], or NULL */
} attend_attention_options;
ATTEND_INIT(attend_attention_options)

/* lse and weights: NULL unless wanted. */
ATTEND_API attend_status attend_attention(const attend_tensor* q, const attend_tensor* k, const attend_tensor* v,
                                          const attend_tensor* out, const attend_attention_options* options,
                                          const attend_tensor* lse, const attend_tensor* weights);

typedef struct attend_attention_gradients {
  size_t struct_size;
  const attend_tensor *dq, *dk, *dv;
  const attend_tensor *dbias, *dsinks; /* NULL unless wanted */
  const attend_tensor* ddistance_bias; /* NULL unless wanted */
} attend_attention_gradients;
ATTEND_INIT(attend_attention_gradients)

ATTEND_API attend_status attend_attention_backward(const attend_tensor* dout, const attend_tensor* q,
                                                   const attend_tensor* k, const attend_tensor* v,
                                                   const attend_tensor* out, const attend_tensor* lse,
                                                   const attend_attention_gradients* gradients,
                                                   const attend_attention_options* options);

/* ---- weights that are never stored: sums over them, and a look at each tile ---- */

/* Each row's sum over keys of weight(i, j) * f_n(i, j), gathered in the same sweep as the output. */
typedef struct attend_row_sums {
  size_t struct_size;
  const attend_tensor* sums; /* [B, H, M, count], f32 */
  /* Writes f_n of (r, c) to values[r * stride + c], for the whole tile. Called from several threads at once; must not
     throw. */
  void (*values)(void* context, int64_t n, const attend_tile* tile, float* values, int64_t stride);
  void* context;
} attend_row_sums;
ATTEND_INIT(attend_row_sums)

/* attend_attention, and the sums. Not for f64. */
ATTEND_API attend_status attend_attention_row_sums(const attend_tensor* q, const attend_tensor* k,
                                                   const attend_tensor* v, const attend_tensor* out,
                                                   const attend_attention_options* options, const attend_tensor* lse,
                                                   const attend_tensor* weights, const attend_row_sums* row_sums);

/* Element (r, c) of the tile is weights[r * stride + c]. Called from several threads at once; must not throw. */
typedef void (*attend_weight_visitor)(void* context, const attend_tile* tile, const float* weights, int64_t stride);

/* Shows the weights to the visitor, with the lse that attend_attention gave for the same options. Not for f64. */
ATTEND_API attend_status attend_visit_weights(const attend_tensor* q, const attend_tensor* k, const attend_tensor* lse,
                                              const attend_attention_options* options, attend_weight_visitor visitor,
                                              void* context);

/* ---- the operations beside it ---- */

ATTEND_API attend_status attend_softmax(const attend_tensor* x, const attend_tensor* y);
ATTEND_API attend_status attend_softmax_backward(const attend_tensor* dy, const attend_tensor* y,
                                                 const attend_tensor* dx);

enum { ATTEND_ROPE_NONE = 0, ATTEND_ROPE_HALF_SPLIT = 1, ATTEND_ROPE_INTERLEAVED = 2 };

enum { ATTEND_SCALING_NONE = 0, ATTEND_SCALING_LINEAR = 1, ATTEND_SCALING_LLAMA3 = 2, ATTEND_SCALING_YARN = 3 };

/* How RoPE is stretched to longer sequences: RopeScaling in rope.hpp. */
typedef struct attend_rope_scaling {
  size_t struct_size;
  int32_t kind;
  double factor;
  int64_t original_length;
  double low_frequency, high_frequency; /* llama3 */
  double beta_fast, beta_slow;          /* yarn */
  int32_t truncate;
  int32_t has_attention_factor; /* 0: from mscale and mscale_all_dim, or from the factor alone */
  double attention_factor;
  double mscale, mscale_all_dim; /* 0: not given */
} attend_rope_scaling;
ATTEND_INIT(attend_rope_scaling)

typedef struct attend_rope_options {
  size_t struct_size;
  int32_t style;
  double theta;
  int64_t rotary_dim; /* 0: all of dim */
  const int64_t* positions;
  int64_t position_count; /* 0: first_position, first_position + 1, ... */
  int64_t first_position;
  const attend_rope_scaling* scaling; /* NULL: none */
} attend_rope_options;
ATTEND_INIT(attend_rope_options)

ATTEND_API attend_status attend_rope(const attend_tensor* x, const attend_tensor* y,
                                     const attend_rope_options* options);
ATTEND_API attend_status attend_rope_backward(const attend_tensor* dy, const attend_tensor* dx,
                                              const attend_rope_options* options);

/* The cosines and sines of `length` positions for rows of `dim` numbers, made once: a handle; NULL after an error. */
typedef struct attend_rope_table attend_rope_table;
ATTEND_API attend_status attend_rope_table_create(int64_t dim, int64_t length, const attend_rope_options* options,
                                                  attend_rope_table** table);
ATTEND_API void attend_rope_table_free(attend_rope_table* table);
/* Row i of x stands at position `first` + i of the table. */
ATTEND_API attend_status attend_rope_by_table(const attend_tensor* x, const attend_tensor* y,
                                              const attend_rope_table* table, int64_t first);
ATTEND_API attend_status attend_rope_by_table_backward(const attend_tensor* dy, const attend_tensor* dx,
                                                       const attend_rope_table* table, int64_t first);

ATTEND_API attend_status attend_rms_norm(const attend_tensor* x, const attend_tensor* weight, const attend_tensor* y,
                                         double eps);
ATTEND_API attend_status attend_rms_norm_backward(const attend_tensor* dy, const attend_tensor* x,
                                                  const attend_tensor* weight, const attend_tensor* dx,
                                                  const attend_tensor* dweight, double eps);

/* bias: NULL for none. */
ATTEND_API attend_status attend_layer_norm(const attend_tensor* x, const attend_tensor* weight,
                                           const attend_tensor* bias, const attend_tensor* y, double eps);
/* dbias: NULL unless wanted. */
ATTEND_API attend_status attend_layer_norm_backward(const attend_tensor* dy, const attend_tensor* x,
                                                    const attend_tensor* weight, const attend_tensor* dx,
                                                    const attend_tensor* dweight, const attend_tensor* dbias,
                                                    double eps);

enum {
  ATTEND_ACTIVATION_SILU = 0,
  ATTEND_ACTIVATION_GELU = 1,
  ATTEND_ACTIVATION_GELU_TANH = 2,
  ATTEND_ACTIVATION_RELU = 3
};

/* y = act(x), dx = dy * act'(x). */
ATTEND_API attend_status attend_activation(int32_t kind, const attend_tensor* x, const attend_tensor* y);
ATTEND_API attend_status attend_activation_backward(int32_t kind, const attend_tensor* dy, const attend_tensor* x,
                                                    const attend_tensor* dx);
/* y = act(gate) * up. */
ATTEND_API attend_status attend_gated_activation(int32_t kind, const attend_tensor* gate, const attend_tensor* up,
                                                 const attend_tensor* y);
ATTEND_API attend_status attend_gated_activation_backward(int32_t kind, const attend_tensor* dy,
                                                          const attend_tensor* gate, const attend_tensor* up,
                                                          const attend_tensor* dgate, const attend_tensor* dup);

ATTEND_API attend_status attend_add(const attend_tensor* x, const attend_tensor* y, const attend_tensor* z);
ATTEND_API attend_status attend_convert(const attend_tensor* x, const attend_tensor* y);
ATTEND_API attend_status attend_dropout(const attend_tensor* x, const attend_tensor* y, double probability,
                                        uint64_t seed);

/* Row n of y is row tokens[n] of the table; `count` is the number of rows of y. */
ATTEND_API attend_status attend_embedding(const attend_tensor* table, const int64_t* tokens, int64_t count,
                                          const attend_tensor* y);
ATTEND_API attend_status attend_embedding_backward(const attend_tensor* dy, const int64_t* tokens, int64_t count,
                                                   const attend_tensor* dtable);

typedef struct attend_cross_entropy_options {
  size_t struct_size;
  int64_t ignore_index; /* rows with this target have no loss and no gradient */
} attend_cross_entropy_options;
ATTEND_INIT(attend_cross_entropy_options)

/* The loss of each row of hidden over the logits of its projection; `count` targets, one for each row. */
ATTEND_API attend_status attend_cross_entropy(const attend_tensor* hidden, const attend_tensor* weight,
                                              const int64_t* targets, int64_t count, const attend_tensor* loss,
                                              const attend_cross_entropy_options* options);

typedef struct attend_cross_entropy_gradients {
  size_t struct_size;
  const attend_tensor *dhidden, *dweight, *loss; /* NULL unless wanted */
} attend_cross_entropy_gradients;
ATTEND_INIT(attend_cross_entropy_gradients)

ATTEND_API attend_status attend_cross_entropy_backward(const attend_tensor* dloss, const attend_tensor* hidden,
                                                       const attend_tensor* weight, const int64_t* targets,
                                                       int64_t count, const attend_cross_entropy_gradients* gradients,
                                                       const attend_cross_entropy_options* options);

/* bias: NULL for none. */
ATTEND_API attend_status attend_linear(const attend_tensor* x, const attend_tensor* weight, const attend_tensor* bias,
                                       const attend_tensor* y);
/* dx, dweight, dbias: NULL unless wanted. */
ATTEND_API attend_status attend_linear_backward(const attend_tensor* dy, const attend_tensor* x,
                                                const attend_tensor* weight, const attend_tensor* dx,
                                                const attend_tensor* dweight, const attend_tensor* dbias);

/* ---- weights of projections, in the formats of model files ---- */

enum {
  ATTEND_WEIGHT_F32 = 0,
  ATTEND_WEIGHT_F16 = 1,
  ATTEND_WEIGHT_BF16 = 2,
  ATTEND_WEIGHT_Q4_0 = 3, /* ggml's blocks, from here on */
  ATTEND_WEIGHT_Q4_1 = 4,
  ATTEND_WEIGHT_Q5_0 = 5,
  ATTEND_WEIGHT_Q5_1 = 6,
  ATTEND_WEIGHT_Q8_0 = 7,
  ATTEND_WEIGHT_Q4_K = 8,
  ATTEND_WEIGHT_Q5_K = 9,
  ATTEND_WEIGHT_Q6_K = 10
};

typedef struct attend_weight attend_weight;

/* How many numbers of a row lie in how many bytes; either may be NULL. */
ATTEND_API attend_status attend_weight_block(int32_t format, int64_t* numbers, int64_t* bytes);
/* What a weight of this shape would hold in memory, without making one. */
ATTEND_API attend_status attend_weight_bytes(int32_t format, int64_t out, int64_t in, int64_t* bytes);
/* data: `bytes` bytes, at any alignment: `out` rows of `in` numbers. Copied. */
ATTEND_API attend_status attend_weight_create(int32_t format, int64_t out, int64_t in, const void* data, int64_t bytes,
                                              attend_weight** weight);
/* Each may be NULL. */
ATTEND_API attend_status attend_weight_shape(const attend_weight* weight, int32_t* format, int64_t* out, int64_t* in);
/* Row `row` as `count` floats, all of it: count is `in`. */
ATTEND_API attend_status attend_weight_row(const attend_weight* weight, int64_t row, float* y, int64_t count);
/* attend_embedding of such rows: y is f32. */
ATTEND_API attend_status attend_weight_embedding(const attend_weight* weight, const int64_t* tokens, int64_t count,
                                                 const attend_tensor* y);
ATTEND_API void attend_weight_free(attend_weight* weight);

typedef struct attend_projection {
  const attend_weight* weight;
  const attend_tensor* bias; /* [1, 1, 1, out], f32, or NULL */
  const attend_tensor* y;    /* [1, 1, L, out], f32, elements of a row side by side */
} attend_projection;

/* y = x . weight^T + bias for `count` weights on the same x [1, 1, L, in], f32. */
ATTEND_API attend_status attend_project(const attend_tensor* x, const attend_projection* projections, int64_t count);

/* ---- positions ---- */

/* theta 10000 in the paper; positions NULL: first_position, first_position + 1, ... */
ATTEND_API attend_status attend_sinusoidal(const attend_tensor* out, double theta, const int64_t* positions,
                                           int64_t position_count, int64_t first_position);
ATTEND_API attend_status attend_add_positions(const attend_tensor* x, const attend_tensor* table,
                                              const attend_tensor* y, int64_t first_position);
ATTEND_API attend_status attend_add_positions_backward(const attend_tensor* dy, const attend_tensor* dtable,
                                                       int64_t first_position);
/* Fills slopes [1, heads, 1, 1], f32. */
ATTEND_API attend_status attend_alibi_slopes(const attend_tensor* slopes);

typedef struct attend_t5_buckets {
  size_t struct_size;
  int32_t bidirectional;
  int64_t count, max_distance;
} attend_t5_buckets;
ATTEND_INIT(attend_t5_buckets)
ATTEND_API attend_status attend_t5_bucket(int64_t distance, const attend_t5_buckets* buckets, int64_t* bucket);
ATTEND_API attend_status attend_t5_bias(const attend_tensor* table, const attend_tensor* out, int64_t first_distance,
                                        const attend_t5_buckets* buckets);
ATTEND_API attend_status attend_t5_bias_backward(const attend_tensor* dout, const attend_tensor* dtable,
                                                 int64_t first_distance, const attend_t5_buckets* buckets);

/* ---- the layer: handles; `*handle` is NULL after an error ---- */

typedef struct attend_layer attend_layer;
typedef struct attend_layer_saved attend_layer_saved;
typedef struct attend_layer_gradients attend_layer_gradients;
typedef struct attend_kv_cache attend_kv_cache;
typedef struct attend_inner attend_inner; /* attend_variants.h makes one */

typedef struct attend_layer_config {
  size_t struct_size;
  int32_t dtype;
  int64_t width;
  int64_t context_width; /* 0: width */
  int64_t output_width;  /* 0: width */
  int64_t heads;
  int64_t kv_heads;   /* 0: heads */
  int64_t head_dim;   /* 0: width / heads */
  int64_t value_dim;  /* 0: head_dim */
  int64_t value_rank; /* > 0: W_V is factored */
  int32_t qkv_bias, output_bias, qk_norm;
  double norm_eps;
  int32_t rope_style;
  double rope_theta;
  const attend_inner* inner;               /* NULL: softmax attention */
  const attend_rope_scaling* rope_scaling; /* NULL: none */
} attend_layer_config;
ATTEND_INIT(attend_layer_config)

ATTEND_API attend_status attend_layer_create(const attend_layer_config* config, attend_layer** layer);
ATTEND_API attend_status attend_layer_initialise(attend_layer* layer, uint64_t seed);
/* A writable view of the layer's memory: "wq" "wk" "wv" "wv_down" "wo" "bq" "bk" "bv" "bo" "q_norm" "k_norm". */
ATTEND_API attend_status attend_layer_parameter(attend_layer* layer, const char* name, attend_tensor* parameter);
ATTEND_API attend_status attend_layer_parameter_count(const attend_layer* layer, int64_t* count);

/* x [B, 1, M, width], context [B, 1, N, context_width] or NULL for self-attention, out [B, 1, M, output_width] in the
   layer's dtype. weights [B, H, M, N], f32 (f64 for f64), and saved: NULL unless wanted. What the options point at must
   stay until backward. */
ATTEND_API attend_status attend_layer_forward(const attend_layer* layer, const attend_tensor* x,
                                              const attend_tensor* context, const attend_attention_options* options,
                                              const attend_tensor* out, const attend_tensor* weights,
                                              attend_layer_saved** saved);
ATTEND_API attend_status attend_layer_backward(const attend_layer* layer, const attend_tensor* dout,
                                               const attend_layer_saved* saved, attend_layer_gradients** gradients);
/* A view of the gradients' memory: "dx" "dcontext" "dbias" "dsinks" "ddistance_bias", or the name of a parameter;
   "inner.<name>" for a parameter of the inner attention. */
ATTEND_API attend_status attend_layer_gradient(attend_layer_gradients* gradients, const char* name,
                                               attend_tensor* gradient);

ATTEND_API attend_status attend_kv_cache_create(const attend_layer* layer, int64_t batch, int64_t capacity,
                                                attend_kv_cache** cache);
ATTEND_API attend_status attend_kv_cache_length(const attend_kv_cache* cache, int64_t* length);
ATTEND_API attend_status attend_kv_cache_truncate(attend_kv_cache* cache, int64_t length);
/* x [B, 1, T, width] -> out [B, 1, T, output_width]. options NULL: causal. */
ATTEND_API attend_status attend_layer_step(const attend_layer* layer, const attend_tensor* x, attend_kv_cache* cache,
                                           const attend_attention_options* options, const attend_tensor* out);

ATTEND_API void attend_layer_free(attend_layer* layer);
ATTEND_API void attend_layer_saved_free(attend_layer_saved* saved);
ATTEND_API void attend_layer_gradients_free(attend_layer_gradients* gradients);
ATTEND_API void attend_kv_cache_free(attend_kv_cache* cache);

/* ---- the paged KV cache: sequences that share a pool of pages. Calls that change it must not run at the same time as
   others. ---- */

typedef struct attend_paged_kv_cache attend_paged_kv_cache;

/* Tokens of a page; forgetting a multiple of ATTEND_SPLIT_TOKENS at the front keeps every bit. */
enum { ATTEND_PAGE_TOKENS = 64, ATTEND_SPLIT_TOKENS = 512 };

typedef struct attend_paged_kv_cache_options {
  size_t struct_size;
  int32_t dtype; /* of q, k and v: f32, bf16 or f16 */
  int64_t kv_heads, key_dim, value_dim;
  int64_t pages; /* for all sequences together */
  int32_t int8;  /* 1: keys and values as int8 with a scale for each token, head and side */
} attend_paged_kv_cache_options;
ATTEND_INIT(attend_paged_kv_cache_options)

ATTEND_API attend_status attend_paged_kv_cache_create(const attend_paged_kv_cache_options* options,
                                                      attend_paged_kv_cache** cache);
/* Of all pages, and of a token in all heads; either may be NULL. */
ATTEND_API attend_status attend_paged_kv_cache_bytes(const attend_paged_kv_cache* cache, int64_t* bytes,
                                                     int64_t* bytes_per_token);
ATTEND_API attend_status attend_paged_kv_cache_pages_left(const attend_paged_kv_cache* cache, int64_t* pages);

/* A new, empty sequence; its number. */
ATTEND_API attend_status attend_paged_kv_cache_add(attend_paged_kv_cache* cache, int64_t* sequence);
/* A new sequence that begins with the first `length` tokens of another; its number. */
ATTEND_API attend_status attend_paged_kv_cache_fork(attend_paged_kv_cache* cache, int64_t sequence, int64_t length,
                                                    int64_t* forked);
ATTEND_API attend_status attend_paged_kv_cache_remove(attend_paged_kv_cache* cache, int64_t sequence);
ATTEND_API attend_status attend_paged_kv_cache_length(const attend_paged_kv_cache* cache, int64_t sequence,
                                                      int64_t* length);

/* k [1, kv_heads, T, key_dim], v [1, kv_heads, T, value_dim]. */
ATTEND_API attend_status attend_paged_kv_cache_append(attend_paged_kv_cache* cache, int64_t sequence,
                                                      const attend_tensor* k, const attend_tensor* v);
/* Over the tokens [at, at + T). */
ATTEND_API attend_status attend_paged_kv_cache_replace(attend_paged_kv_cache* cache, int64_t sequence, int64_t at,
                                                       const attend_tensor* k, const attend_tensor* v);
/* That an append of `count` tokens would take. */
ATTEND_API attend_status attend_paged_kv_cache_pages_to_append(const attend_paged_kv_cache* cache, int64_t sequence,
                                                               int64_t count, int64_t* pages);
/* Forgets the tokens from `length` on. */
ATTEND_API attend_status attend_paged_kv_cache_truncate(attend_paged_kv_cache* cache, int64_t sequence, int64_t length);
/* Forgets the whole pages that hold tokens [first, first + count); those behind move up. */
ATTEND_API attend_status attend_paged_kv_cache_forget(attend_paged_kv_cache* cache, int64_t sequence, int64_t first,
                                                      int64_t count);
ATTEND_API void attend_paged_kv_cache_free(attend_paged_kv_cache* cache);

/* q [B, H, M, D], batch b reading sequences[b], B = sequence_count. lse and row_sums: NULL unless wanted. */
ATTEND_API attend_status attend_paged_attention(const attend_tensor* q, const attend_paged_kv_cache* cache,
                                                const int64_t* sequences, int64_t sequence_count,
                                                const attend_tensor* out, const attend_attention_options* options,
                                                const attend_tensor* lse, const attend_row_sums* row_sums);

/* ---- the lens: statistics of rows, maps, top keys, zoom and single cells of weights that are never stored ---- */

/* The columns of a row's statistics: RowStatistic in row_statistics.hpp. */
enum {
  ATTEND_STATISTIC_MASS = 0,
  ATTEND_STATISTIC_ENTROPY = 1,
  ATTEND_STATISTIC_DISTANCE_MEAN = 2,
  ATTEND_STATISTIC_DISTANCE_VARIANCE = 3,
  ATTEND_STATISTIC_SINK_TOKENS = 4,
  ATTEND_STATISTIC_SELF = 5,
  ATTEND_STATISTIC_PREVIOUS = 6,
  ATTEND_STATISTIC_LOCAL = 7,
  ATTEND_STATISTIC_RECENT = 8,
  ATTEND_STATISTIC_DUPLICATE = 9,
  ATTEND_STATISTIC_INDUCTION = 10,
  ATTEND_STATISTIC_MAXIMUM = 11,
  ATTEND_STATISTIC_ARGMAX = 12,
  ATTEND_ROW_STATISTICS = 13
};

typedef struct attend_row_statistics {
  size_t struct_size;
  const attend_tensor* rows; /* [B, H, M, ATTEND_ROW_STATISTICS], f32 (f64 for f64 inputs) */
  int64_t sink_tokens;
  int32_t sinks_apart;
  int32_t align; /* where query 0 or the last stands among the keys */
  int64_t local_width, recent_width;
  const int64_t* offsets; /* instead of align */
  int64_t offset_count;
  const int32_t* tokens; /* of the keys, [B, N] or [N]; NULL: not known */
  int64_t token_count;
} attend_row_statistics;
ATTEND_INIT(attend_row_statistics)

/* attend_attention and attend_paged_attention, and the statistics. lse: NULL unless wanted. */
ATTEND_API attend_status attend_attention_statistics(const attend_tensor* q, const attend_tensor* k,
                                                     const attend_tensor* v, const attend_tensor* out,
                                                     const attend_attention_options* options, const attend_tensor* lse,
                                                     const attend_row_statistics* statistics);
ATTEND_API attend_status attend_paged_attention_statistics(const attend_tensor* q, const attend_paged_kv_cache* cache,
                                                           const int64_t* sequences, int64_t sequence_count,
                                                           const attend_tensor* out,
                                                           const attend_attention_options* options,
                                                           const attend_tensor* lse,
                                                           const attend_row_statistics* statistics);

/* Looks at the weights of one call: Lens in lens.hpp. All memory that the arguments point at (tensors' data, masks'
   bytes, the cache) must live as long, unchanged; the structs themselves are copied. lse and v may be NULL. */
typedef struct attend_lens attend_lens;
ATTEND_API attend_status attend_lens_create(const attend_tensor* q, const attend_tensor* k, const attend_tensor* v,
                                            const attend_tensor* lse, const attend_attention_options* options,
                                            attend_lens** lens);
ATTEND_API attend_status attend_lens_create_paged(const attend_tensor* q, const attend_paged_kv_cache* cache,
                                                  const int64_t* sequences, int64_t sequence_count,
                                                  const attend_tensor* lse, const attend_attention_options* options,
                                                  attend_lens** lens);
ATTEND_API void attend_lens_free(attend_lens* lens);

ATTEND_API attend_status attend_lens_statistics(const attend_lens* lens, const attend_row_statistics* statistics);
ATTEND_API attend_status attend_lens_lse(const attend_lens* lens, const attend_tensor* lse); /* [B, H, M, 1] */

/* Queries and keys that are looked at; NULL instead means all of them. */
typedef struct attend_lens_area {
  int64_t first_query, queries;
  int64_t first_key, keys;
} attend_lens_area;

/* Some finished rows of cells, [rows, cols]. Returns 0 to end the sweep. Called by one thread at a time; must not
   throw. */
typedef int32_t (*attend_map_progress)(void* context, int64_t first_row, int64_t rows, int64_t cols, const float* mass,
                                       const float* peak);

/* The results have as many rows and columns as the map has cells, at most those of the area: mass and peak [1, 1, rows,
   cols], weights [1, 1, queries, keys], received [1, 1, 1, keys]. progress may be NULL; finished, if not NULL, says
   whether it let the map come to its end. */
ATTEND_API attend_status attend_lens_map(const attend_lens* lens, int64_t batch, int64_t head,
                                         const attend_lens_area* area, const attend_tensor* mass,
                                         const attend_tensor* peak, attend_map_progress progress, void* context,
                                         int32_t* finished);
ATTEND_API attend_status attend_lens_received(const attend_lens* lens, int64_t batch, int64_t head,
                                              const attend_lens_area* area, const attend_tensor* received);
ATTEND_API attend_status attend_lens_zoom(const attend_lens* lens, int64_t batch, int64_t head,
                                          const attend_lens_area* area, const attend_tensor* weights);
/* keys [queries, count] and weights [1, 1, queries, count]. */
ATTEND_API attend_status attend_lens_top_keys(const attend_lens* lens, int64_t batch, int64_t head, int64_t count,
                                              const attend_lens_area* area, int64_t* keys,
                                              const attend_tensor* weights);
/* counts [bins + 1]: the last are the visible ones below. */
ATTEND_API attend_status attend_lens_histogram(const attend_lens* lens, int64_t batch, int64_t head, int64_t bins,
                                               const attend_lens_area* area, int64_t* counts);

/* The arithmetic of one weight: CellArithmetic in lens.hpp. The arrays are the caller's, [D] and [E], NULL unless
   wanted; v and weighted need a lens with values. */
typedef struct attend_cell {
  size_t struct_size;
  double *q, *k, *products, *v, *weighted;
  double dot, scale, scaled, softcap, capped, ruled, bias, alibi_slope, alibi_distance, alibi, score;
  int64_t visible;                       /* 0 or 1 */
  double lse, sink, sink_weight, weight; /* sink: -inf where the head has none */
} attend_cell;
ATTEND_INIT(attend_cell)
ATTEND_API attend_status attend_lens_cell(const attend_lens* lens, int64_t batch, int64_t head, int64_t query,
                                          int64_t key, attend_cell* cell);

#ifdef __cplusplus
}
#endif

#endif
