/* An outside program in C: causal attention over two tokens, with the value worked out by hand. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "attend/attend.h"

static int failures = 0;

static void expect(int holds, const char* what) {
  if (holds) return;
  printf("FAILED: %s (last error: %s)\n", what, attend_last_error());
  failures++;
}

int main(void) {
  float q[2] = {0.5f, 2.0f}, k[2] = {1.0f, -0.25f}, v[2] = {3.0f, 7.0f}, out[2] = {0, 0};
  const int64_t shape[4] = {1, 1, 2, 1};
  attend_tensor tq, tk, tv, tout;
  attend_mask* mask = NULL;
  attend_attention_options options;
  double p;

  expect(attend_tensor_contiguous(ATTEND_F32, q, shape, &tq) == ATTEND_OK, "q");
  expect(attend_tensor_contiguous(ATTEND_F32, k, shape, &tk) == ATTEND_OK, "k");
  expect(attend_tensor_contiguous(ATTEND_F32, v, shape, &tv) == ATTEND_OK, "v");
  expect(attend_tensor_contiguous(ATTEND_F32, out, shape, &tout) == ATTEND_OK, "out");
  expect(attend_mask_causal(ATTEND_LAST_KEY, &mask) == ATTEND_OK, "causal mask");
  attend_attention_options_init(&options);
  options.mask = mask;
  expect(attend_attention(&tq, &tk, &tv, &tout, &options, NULL, NULL) == ATTEND_OK, "attention");

  p = 1 / (1 + exp(2.0 * -0.25 - 2.0 * 1.0)); /* the weight of key 0 in row 1; the scale is 1/sqrt(1) */
  expect(out[0] == 3.0f, "row 0 sees key 0 alone");
  expect(fabs(out[1] - (p * 3.0 + (1 - p) * 7.0)) < 1e-5, "row 1 is the weighted mean");

  expect(attend_attention(NULL, &tk, &tv, &tout, &options, NULL, NULL) == ATTEND_INVALID_ARGUMENT, "null q");
  expect(strstr(attend_last_error(), "q is null") != NULL, "the error names q");
  attend_mask_free(mask);

  printf("attend %s from C, kernel %s: %g %g\n", attend_version(), attend_kernel_name(), out[0], out[1]);
  return failures == 0 ? 0 : 1;
}
