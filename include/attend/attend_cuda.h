/* The C ABI of attention on an NVIDIA GPU: tensors of device memory, and a stream that the work is put on. cuda.hpp
   says what each call means; here is only what differs in C. No header of CUDA's is needed. Errors are told as in
   attend.h: ATTEND_INVALID_ARGUMENT where the library was built without CUDA or there is no GPU, with the sentence of
   attend_cuda_why_not; ATTEND_INTERNAL_ERROR where the driver fails. */
#ifndef ATTEND_ATTEND_CUDA_H
#define ATTEND_ATTEND_CUDA_H

#include "attend/attend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether the calls below can run in this process: 1 or 0. */
ATTEND_API int32_t attend_cuda_available(void);
/* Why not, in a sentence; "" where they can. Stands until this thread asks again. */
ATTEND_API const char* attend_cuda_why_not(void);

/* stream, here and below: a cudaStream_t or CUstream; NULL: the default stream. All tensors, those in the options and
   the bytes of a dense mask among them, are of device memory. lse and statistics: NULL unless wanted; the tokens of
   statistics are the host's. */
ATTEND_API attend_status attend_cuda_attention(const attend_tensor* q, const attend_tensor* k, const attend_tensor* v,
                                               const attend_tensor* out, const attend_attention_options* options,
                                               const attend_tensor* lse, const attend_row_statistics* statistics,
                                               void* stream);

/* In which order the parts of dq are added. */
enum { ATTEND_CUDA_ORDER_FIXED = 0, ATTEND_CUDA_ORDER_FREE = 1 };

ATTEND_API attend_status attend_cuda_attention_backward(const attend_tensor* dout, const attend_tensor* q,
                                                        const attend_tensor* k, const attend_tensor* v,
                                                        const attend_tensor* out, const attend_tensor* lse,
                                                        const attend_attention_gradients* gradients,
                                                        const attend_attention_options* options, int32_t order,
                                                        void* stream);

/* ---- the lens ---- */

/* As attend_lens_map, for one head with the lse known; peak: NULL unless wanted. */
ATTEND_API attend_status attend_cuda_map(const attend_tensor* q, const attend_tensor* k, const attend_tensor* lse,
                                         int64_t batch, int64_t head, const attend_lens_area* area,
                                         const attend_tensor* mass, const attend_tensor* peak,
                                         const attend_attention_options* options, void* stream);

/* ---- caches of keys and values, for decoding: compute capability 9.0 alone ---- */

enum { ATTEND_CUDA_CACHE_PLAIN = 0, ATTEND_CUDA_CACHE_INT8 = 1, ATTEND_CUDA_CACHE_FP8 = 2 };

/* [pages, KV heads, tokens of a page, dim], strides in elements; scales f32, or NULL. */
typedef struct attend_cuda_pages {
  void* data;
  int64_t shape[4];
  int64_t strides[4];
  const attend_tensor* scales;
} attend_cuda_pages;

/* Lengths and table lie in device memory and are read by the kernels. */
typedef struct attend_cuda_cache {
  size_t struct_size;
  int32_t format;
  attend_cuda_pages k, v;
  const int32_t* lengths; /* [batch]; NULL: as many tokens as the pages hold */
  const int32_t* table;   /* [batch, table_pages], rows table_stride numbers apart; NULL: sequence b is page b */
  int64_t table_pages, table_stride;
} attend_cuda_cache;
ATTEND_INIT(attend_cuda_cache)

/* How much memory a call over this cache needs at most, by the shapes alone. */
ATTEND_API attend_status attend_cuda_working_bytes(const attend_tensor* q, const attend_cuda_cache* cache,
                                                   int64_t* bytes);
/* memory: `bytes` bytes of the caller's, on 256 bytes; NULL: from the pool. */
ATTEND_API attend_status attend_cuda_cached_attention(const attend_tensor* q, const attend_cuda_cache* cache,
                                                      const attend_tensor* out, const attend_attention_options* options,
                                                      const attend_tensor* lse, void* memory, int64_t bytes,
                                                      void* stream);
/* own_scales 1: the scales of rows are made here. */
ATTEND_API attend_status attend_cuda_append(const attend_tensor* k, const attend_tensor* v,
                                            const attend_cuda_cache* cache, int32_t own_scales, void* stream);

#ifdef __cplusplus
}
#endif

#endif
