/* The C ABI of the ring, in libattend_ring: one sequence over several processes under MPI. ring.hpp says what each call
   means; here is only what differs in C. Errors are told as in attend.h. */
#ifndef ATTEND_ATTEND_RING_H
#define ATTEND_ATTEND_RING_H

#include "attend/attend.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { ATTEND_RING_CONTIGUOUS = 0, ATTEND_RING_ZIGZAG = 1 };
enum { ATTEND_RING_AUTOMATIC = 0, ATTEND_RING_THREAD = 1, ATTEND_RING_SLICES = 2, ATTEND_RING_NONE = 3 };

typedef struct attend_ring_times { /* in seconds; calls add to it */
  size_t struct_size;
  double compute, progress, wait;
  int64_t bytes_sent;
} attend_ring_times;
ATTEND_INIT(attend_ring_times)

typedef struct attend_ring_options {
  size_t struct_size;
  int32_t sharding;
  int32_t progress;
  const attend_attention_options* attention; /* NULL: the defaults */
  double timeout_seconds;
  double slice_work;
  attend_ring_times* times; /* NULL unless wanted */
} attend_ring_options;
ATTEND_INIT(attend_ring_options)

/* The places of the rank's length / ranks tokens in the sequence. */
ATTEND_API attend_status attend_ring_positions(int32_t sharding, int64_t rank, int64_t ranks, int64_t length,
                                               int64_t* positions);

/* comm: MPI_Comm_c2f(...), an MPI_Fint. lse: NULL unless wanted. options: NULL means the defaults. */
ATTEND_API attend_status attend_ring_attention(int comm, const attend_tensor* q, const attend_tensor* k,
                                               const attend_tensor* v, const attend_tensor* out,
                                               const attend_tensor* lse, const attend_ring_options* options);
ATTEND_API attend_status attend_ring_attention_backward(int comm, const attend_tensor* dout, const attend_tensor* q,
                                                        const attend_tensor* k, const attend_tensor* v,
                                                        const attend_tensor* out, const attend_tensor* lse,
                                                        const attend_tensor* dq, const attend_tensor* dk,
                                                        const attend_tensor* dv, const attend_ring_options* options);

/* saved: NULL unless backward follows. What they give is freed as attend.h says. */
ATTEND_API attend_status attend_ring_layer_forward(int comm, const attend_layer* layer, const attend_tensor* x,
                                                   const attend_ring_options* options, const attend_tensor* out,
                                                   attend_layer_saved** saved);
ATTEND_API attend_status attend_ring_layer_backward(int comm, const attend_layer* layer, const attend_tensor* dout,
                                                    const attend_layer_saved* saved, const attend_ring_options* options,
                                                    attend_layer_gradients** gradients);

ATTEND_API attend_status attend_ring_transfer_seconds(int comm, const attend_tensor* k, const attend_tensor* v,
                                                      int32_t backward, double* seconds);

#ifdef __cplusplus
}
#endif

#endif
