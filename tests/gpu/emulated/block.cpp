// The fibers of a block, one after another on one thread.
#include "block.hpp"

#include <ucontext.h>
#include <csetjmp>

#include <cstdio>
#include <memory>
#include <vector>

namespace attend::cuda {
alignas(1024) char raw[emulated::kSharedBytes];  // the kernels' shared memory
}

namespace emulated {

Place thread, block, threads, blocks;

namespace {

constexpr std::size_t kStack = 256 << 10;

// Where a number of threads meet: the last to come lets all of them go on.
struct Meeting {
  unsigned here = 0, round = 0;
};
struct Warp {
  Meeting meeting;
  unsigned turn = 0;
  std::vector<char> given[2];
};
struct Fiber {
  ucontext_t context{};
  std::jmp_buf at{};  // once it has begun: a switch by these asks nothing of the system
  bool begun = false;
  std::unique_ptr<char[]> stack = std::make_unique<char[]>(kStack);
  bool done = false;
  unsigned turn = 0;  // of its exchanges
};

ucontext_t scheduler;
std::jmp_buf scheduler_at;
std::vector<std::unique_ptr<Fiber>> fibers;
std::vector<Warp> warps;
Meeting everybody;
void (*kernel_body)(const void*);
const void* kernel_args;
unsigned current, alive;
bool moved;

void enter_fiber() {
  kernel_body(kernel_args);
  fibers[current]->done = true;
  --alive, moved = true;
  if (everybody.here > 0 && everybody.here == alive) ++everybody.round, everybody.here = 0;
  _longjmp(scheduler_at, 1);
}

void resume(Fiber& fiber) {
  if (_setjmp(scheduler_at) != 0) return;
  if (fiber.begun) _longjmp(fiber.at, 1);
  fiber.begun = true;
  swapcontext(&scheduler, &fiber.context);
}

void meet(Meeting& at, unsigned expected) {
  const unsigned round = at.round;
  moved = true;
  if (++at.here == expected) {
    at.here = 0, ++at.round;
    return;
  }
  while (at.round == round) yield();
}

}  // namespace

void yield() {
  if (_setjmp(fibers[current]->at) == 0) _longjmp(scheduler_at, 1);
}
void meet_warp() {
  meet(warps[thread.x / 32].meeting, 32);
}
void meet_block() {
  meet(everybody, alive);
}
const void* exchange(const void* mine, std::size_t bytes) {
  Warp& warp = warps[thread.x / 32];
  const unsigned which = fibers[current]->turn++ % 2;
  if (warp.given[which].size() < 32 * bytes) warp.given[which].resize(std::max<std::size_t>(4096, 32 * bytes));
  std::memcpy(warp.given[which].data() + lane() * bytes, mine, bytes);
  meet_warp();
  return warp.given[which].data();
}

void run(unsigned grid, unsigned block_threads, void (*body)(const void*), const void* args) {
  kernel_body = body, kernel_args = args;
  threads = {block_threads, 1, 1}, blocks = {grid, 1, 1};
  while (fibers.size() < block_threads) fibers.push_back(std::make_unique<Fiber>());
  for (unsigned b = 0; b < grid; ++b) {
    block = {b, 0, 0};
    std::memset(attend::cuda::raw, 0xFF, sizeof(attend::cuda::raw));  // nobody may count on what is there
    warps.assign((block_threads + 31) / 32, {});
    everybody = {}, alive = block_threads;
    for (unsigned t = 0; t < block_threads; ++t) {
      Fiber& fiber = *fibers[t];
      fiber.done = fiber.begun = false, fiber.turn = 0;
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.get(), fiber.context.uc_stack.ss_size = kStack;
      fiber.context.uc_link = &scheduler;
      makecontext(&fiber.context, enter_fiber, 0);
    }
    while (alive > 0) {
      moved = false;
      for (current = 0; current < block_threads; ++current) {
        if (fibers[current]->done) continue;
        thread = {current, 0, 0};
        resume(*fibers[current]);
      }
      if (!moved) {
        std::fprintf(stderr, "block %u hangs: %u of %u threads wait\n", b, alive, block_threads);
        std::abort();
      }
    }
  }
}

}  // namespace emulated
