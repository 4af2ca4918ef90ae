// The thread pool: fork-join over numbered items, spinning briefly before it sleeps.
#pragma once

#include <cstdint>
#include <type_traits>

namespace attend {

inline constexpr int kMaxThreads = 1024;

int thread_count();
void set_thread_count(int count);  // 1 to kMaxThreads

// One turn of waiting for another thread; `spin` counts the turns so far.
void spin_wait(int spin);

// Calls run(context, item, worker) for every item in [0, items), items handed out in rising order, worker in
// [0, max_workers). The caller works too. A call from inside a worker, or while another thread uses the pool, or when
// thread_count() has grown past max_workers, runs all items on the calling thread as worker 0. `run` must not throw.
// Between items the calling thread looks at its InterruptScope: what that throws is thrown once no item runs any more.
void parallel_items(std::int64_t items, int max_workers, void (*run)(void* context, std::int64_t item, int worker),
                    void* context);

// For an item that takes long: true once the call is to stop, and the item may end at any point.
bool job_stops();
// For long loops of the calling thread that are no items: throws what its InterruptScope throws. Nothing inside an
// item.
void stop_if_asked();

template <class F>
void parallel_for(std::int64_t items, int max_workers, F&& f) {  // f(item, worker)
  using Function = std::remove_reference_t<F>;
  parallel_items(
      items, max_workers,
      [](void* context, std::int64_t item, int worker) { (*static_cast<Function*>(context))(item, worker); },
      const_cast<void*>(static_cast<const void*>(&f)));
}
template <class F>
void parallel_for(std::int64_t items, F&& f) {
  parallel_for(items, thread_count(), f);
}

}  // namespace attend
