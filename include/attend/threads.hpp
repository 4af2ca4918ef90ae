// The library's threads, for work of one's own beside its calls.
#pragma once

#include <cstdint>
#include <type_traits>

#include "attend/export.h"
#include "attend/runtime.hpp"

namespace attend {

// Calls run(context, item, worker) for every item in [0, items), items handed out in rising order, worker in
// [0, max_workers). The caller works too. A call from inside a worker, or while another thread uses the pool, or when
// threads() has grown past max_workers, runs all items on the calling thread as worker 0. Where `run` throws, no
// further items are handed out and the call throws the exception of the first item that threw, once no item runs any
// more. Between items the calling thread checks its InterruptScope, whose exception ends the call in the same way.
ATTEND_API void parallel_items(std::int64_t items, int max_workers,
                               void (*run)(void* context, std::int64_t item, int worker), void* context);

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
  parallel_for(items, threads(), f);
}

}  // namespace attend
