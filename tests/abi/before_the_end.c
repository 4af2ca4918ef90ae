/* Memory in front of a page that nobody may touch. */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "abi/calls.h"

void* before_the_end(size_t size) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (size + page - 1) / page * page;
  char* memory = mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory + room, page, PROT_NONE) != 0) {
    perror("before_the_end");
    exit(1);
  }
  return memory + room - size;
}
