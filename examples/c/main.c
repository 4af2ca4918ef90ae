/* Causal attention from C: 4 tokens, 2 query heads that share one KV head. */
#include <stdio.h>

#include "attend/attend.h"

enum { kTokens = 4, kDim = 8, kHeads = 2 };

/* Every call gives a status; the text of the last error belongs to the thread. */
static int check(attend_status status, const char* what) {
  if (status == ATTEND_OK) return 1;
  fprintf(stderr, "%s: %s\n", what, attend_last_error());
  return 0;
}

int main(void) {
  float q[kHeads * kTokens * kDim], k[kTokens * kDim], v[kTokens * kDim], out[kHeads * kTokens * kDim];
  const int64_t query_shape[4] = {1, kHeads, kTokens, kDim}, key_shape[4] = {1, 1, kTokens, kDim};
  attend_tensor tq, tk, tv, tout;
  attend_mask* mask = NULL;
  attend_attention_options options;
  int n, ok;

  for (n = 0; n < kHeads * kTokens * kDim; ++n) q[n] = (float)(n % 5) - 2.0f;
  for (n = 0; n < kTokens * kDim; ++n) {
    k[n] = (float)(n % 7) - 3.0f;
    v[n] = (float)(n / kDim); /* the value of token t is t, t, ... */
  }

  attend_attention_options_init(&options);
  ok = check(attend_tensor_contiguous(ATTEND_F32, q, query_shape, &tq), "q") &&
       check(attend_tensor_contiguous(ATTEND_F32, k, key_shape, &tk), "k") &&
       check(attend_tensor_contiguous(ATTEND_F32, v, key_shape, &tv), "v") &&
       check(attend_tensor_contiguous(ATTEND_F32, out, query_shape, &tout), "out") &&
       check(attend_mask_causal(ATTEND_LAST_KEY, &mask), "causal mask");
  options.mask = mask;
  ok = ok && check(attend_attention(&tq, &tk, &tv, &tout, &options, NULL, NULL), "attention");
  attend_mask_free(mask);
  if (!ok) return 1;

  printf("attend %s from C, kernel %s\n", attend_version(), attend_kernel_name());
  for (n = 0; n < kTokens; ++n)
    printf("token %d: head 0 sees on average token %.3f, head 1 token %.3f\n", n, out[n * kDim],
           out[(kTokens + n) * kDim]);
  /* Token 0 sees itself alone; no token sees a later one. */
  for (n = 0; n < kTokens; ++n)
    if (out[n * kDim] < 0.0f || out[n * kDim] > (float)n) return 1;
  return out[0] == 0.0f && out[kTokens * kDim] == 0.0f ? 0 : 1;
}
