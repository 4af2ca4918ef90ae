// The thread pool: fork-join over numbered items, spinning briefly before it sleeps.
#pragma once

#include "attend/threads.hpp"
#include "base/export.hpp"

namespace attend {

inline constexpr int kMaxThreads = 1024;

ATTEND_FOR_RING int thread_count();
void set_thread_count(int count);  // 1 to kMaxThreads

// One step of waiting for another thread; `spin` counts the steps so far.
void spin_wait(int spin);

// For an item that takes long: true once the call is to stop, and the item may end at any point.
bool job_stops();
// For long loops of the calling thread that are no items: throws what its InterruptScope throws. Nothing inside an
// item.
void stop_if_asked();

}  // namespace attend
