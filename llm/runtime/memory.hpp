// How much memory this process has, had at most, and may still get.
#pragma once

#include <cstdint>
#include <optional>

namespace attend::llm {

// Bytes that the process held at most since the watch began, beyond what it held then.
class MemoryWatch {
 public:
  MemoryWatch();
  std::optional<std::int64_t> growth() const;  // nothing where the system does not tell

 private:
  std::int64_t start_ = -1;
};

// For servers, before threads are started: few of them allocate much at once, and in each of many arenas the allocator
// would keep what one large request took.
void keep_few_arenas();

// What was freed goes back to the system.
void give_back_memory();

// What the process holds now; 0 where the system does not tell.
std::int64_t held_memory();

// What the machine, and the container this may run in, still have to give.
std::optional<std::int64_t> available_memory();

}  // namespace attend::llm
