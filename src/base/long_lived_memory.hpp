// Memory that is kept and read over and over: weights and caches. In large pages where the system has them, so that
// finding an address does not cost more than reading what is there.
#pragma once

#include <cstdint>
#include <memory>

namespace attend {

// 64-byte-aligned, not initialised; freed with the last copy of the pointer. Small pieces lie side by side in one
// stretch, which goes back to the system when all of them are gone. Throws bad_alloc.
std::shared_ptr<char> long_lived_memory(std::int64_t bytes);

}  // namespace attend
