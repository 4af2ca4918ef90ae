/* How large today's structs are. */
#include <string.h>

#include <structs.h>
#include "abi/calls.h"
#include "attend/attend_cuda.h"
#include "attend/attend_variants.h"

size_t todays_size(const char* name) {
#define ATTEND_SIZE(type) \
  if (strcmp(name, #type) == 0) return sizeof(attend_##type);
  ATTEND_STRUCTS(ATTEND_SIZE)
  return 0;
}
