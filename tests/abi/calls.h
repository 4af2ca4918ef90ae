/* One set of calls, compiled twice: with an older version's headers and with today's. */
#ifndef ATTEND_TESTS_ABI_CALLS_H
#define ATTEND_TESTS_ABI_CALLS_H

#include <stddef.h>

enum { kMostResults = 4096 };

typedef struct results {
  float values[kMostResults];
  size_t count;
  int failures; /* each printed */
} results;

void calls_with_old_headers(results* to);
void calls_with_todays_headers(results* to);

size_t todays_size(const char* name); /* of attend_<name> */

/* Zeroed, in front of memory that can be neither read nor written. */
void* before_the_end(size_t size);

#endif
