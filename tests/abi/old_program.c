/* A program compiled with an older version's headers, whose structs lack their last field, runs with today's library:
   no byte past its structs is written or read, and its results are those of a program of today. */
#include <stdio.h>
#include <string.h>

#include <structs.h>
#include "abi/calls.h"
#include "attend/attend_cuda.h"
#include "attend/attend_variants.h"

static int failures = 0;

static void check_init(const char* name, size_t struct_size, size_t size, const unsigned char* guard, size_t guards) {
  size_t n;
  if (size >= todays_size(name)) {
    printf("FAILED: attend_%s has %zu bytes, expected fewer than today's %zu\n", name, size, todays_size(name));
    failures++;
  }
  if (struct_size != size) {
    printf("FAILED: attend_%s_init wrote the size %zu, expected %zu\n", name, struct_size, size);
    failures++;
  }
  for (n = 0; n < guards; ++n) {
    if (guard[n] == 0xAB) continue;
    printf("FAILED: attend_%s_init wrote past the struct's end, at byte %zu\n", name, size + n);
    failures++;
    return;
  }
}

#define CHECK_INIT(type)                                                                        \
  {                                                                                             \
    struct {                                                                                    \
      attend_##type it;                                                                         \
      unsigned char guard[64];                                                                  \
    } box;                                                                                      \
    memset(&box, 0xAB, sizeof(box));                                                            \
    attend_##type##_init(&box.it);                                                              \
    check_init(#type, box.it.struct_size, sizeof(attend_##type), box.guard, sizeof(box.guard)); \
  }

int main(void) {
  static results old, today;
  size_t n;
  setvbuf(stdout, NULL, _IOLBF, 0); /* what was found is told even where a call then crashes */
  ATTEND_STRUCTS(CHECK_INIT)
  calls_with_todays_headers(&today);
  calls_with_old_headers(&old);
  failures += old.failures + today.failures;
  if (old.count != today.count) {
    printf("FAILED: %zu results with old headers, %zu with today's\n", old.count, today.count);
    failures++;
  }
  for (n = 0; n < old.count && n < today.count; ++n) {
    if (memcmp(&old.values[n], &today.values[n], sizeof(float)) == 0) continue;
    printf("FAILED: result %zu is %g with old headers, %g with today's\n", n, (double)old.values[n],
           (double)today.values[n]);
    failures++;
  }
  printf("%zu results, %d failures\n", old.count, failures);
  return failures == 0 ? 0 : 1;
}
