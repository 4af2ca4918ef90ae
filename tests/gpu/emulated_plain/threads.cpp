// The fibers of a block, on one thread of the CPU.
#include "threads.hpp"

#include <ucontext.h>

#include <csetjmp>
#include <cstdio>
#include <memory>
#include <random>

namespace attend::cuda {
alignas(1024) char raw[100 * 1024];  // the kernels' shared memory
}

namespace emulated {

uint3 thread, block, threads, blocks;

namespace {

constexpr std::size_t kStack = 256 << 10;

struct Fiber {
  ucontext_t context{};
  std::jmp_buf at{};  // once it has begun: a switch by these asks nothing of the system
  std::unique_ptr<char[]> stack = std::make_unique<char[]>(kStack);
  bool begun = false, done = false;
  Copies copies;
};
struct Warp {
  void* given[32];
  int here = 0;
  unsigned round = 0;
};
struct Meeting {
  int here = 0;
  unsigned round = 0;
  bool votes = false, result = false;
};

std::vector<Fiber> fibers;
std::vector<Warp> warps;
Meeting meetings[16], voting;
int alive = 0, shared_limit = 0;
unsigned idle = 0;
void (*body)(const void*);
const void* args;
Fiber* current;
std::jmp_buf scheduler;
std::mt19937 numbers(7);

[[noreturn]] void stop(const char* what) {
  std::fprintf(stderr, "FAILED block %u thread %u: %s\n", block.x, thread.x, what);
  std::abort();
}
void yield() {
  if (_setjmp(current->at) == 0) _longjmp(scheduler, 1);
}
void begin() {
  body(args);
  current->done = true, --alive, idle = 0;
  _longjmp(scheduler, 1);
}
void resume(Fiber& fiber, unsigned n) {
  current = &fiber, thread.x = n;
  if (_setjmp(scheduler) != 0) return;
  if (fiber.begun) _longjmp(fiber.at, 1);
  fiber.begun = true;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get(), fiber.context.uc_stack.ss_size = kStack;
  makecontext(&fiber.context, begin, 0);
  setcontext(&fiber.context);
}
template <class M>
void wait_for(const M& meeting, unsigned round) {
  while (meeting.round == round) yield();
}

void run_block() {
  std::memset(attend::cuda::raw, 0xFF, sizeof(attend::cuda::raw));
  for (Fiber& fiber : fibers) fiber.begun = fiber.done = false, fiber.copies = {};
  warps.assign((fibers.size() + 31) / 32, {});
  for (Meeting& meeting : meetings) meeting = {};
  voting = {};
  alive = static_cast<int>(fibers.size()), idle = 0;
  std::vector<unsigned> order(warps.size());
  for (unsigned n = 0; n < order.size(); ++n) order[n] = n;
  while (alive > 0) {
    std::shuffle(order.begin(), order.end(), numbers);
    for (const unsigned warp : order)
      // Some far ahead of the others.
      for (unsigned turns = 1 + numbers() % (numbers() % 4 == 0 ? 64 : 4); turns > 0; --turns)
        for (unsigned n = 32 * warp; n < 32 * (warp + 1); ++n)
          if (!fibers[n].done) resume(fibers[n], n);
    if (++idle > 10000) stop("all threads wait for something that does not come");
  }
  for (unsigned n = 0; n < fibers.size(); ++n) {
    thread.x = n;
    if (!fibers[n].copies.groups.empty() || !fibers[n].copies.open.empty()) stop("copies were not waited for");
  }
  for (const Meeting& meeting : meetings)
    if (meeting.here != 0) stop("a barrier was left half way");
}

}  // namespace

Copies& copies() {
  return current->copies;
}
void linger() {
  for (unsigned n = numbers() % 8; n > 0; --n) yield();
}

void run(unsigned grid, unsigned block_threads, int shared_bytes, void (*f)(const void*), const void* given) {
  if (block_threads % 32 != 0) stop("threads in parts of a warp");
  body = f, args = given, shared_limit = shared_bytes;
  blocks = {grid, 1, 1}, threads = {block_threads, 1, 1}, block = thread = {0, 0, 0};
  fibers.resize(block_threads);
  std::vector<unsigned> order(grid);
  for (unsigned n = 0; n < grid; ++n) order[n] = n;
  std::shuffle(order.begin(), order.end(), numbers);
  for (const unsigned n : order) block.x = n, run_block();
}

void check_shared(std::uint32_t at, int bytes) {
  if (at % static_cast<unsigned>(bytes) != 0) stop("shared memory at a place that is not aligned");
  if (static_cast<int>(at) + bytes > shared_limit) stop("shared memory past the end");
}

void meet_warp(void* mine, void (*f)(void** all)) {
  Warp& warp = warps[thread.x / 32];
  warp.given[thread.x % 32] = mine;
  const unsigned round = warp.round;
  if (++warp.here < 32) return wait_for(warp, round);
  f(warp.given);
  warp.here = 0, ++warp.round, idle = 0;
}

void meet(int id, int count, bool wait) {
  Meeting& meeting = meetings[id];
  const unsigned round = meeting.round;
  if (++meeting.here < (id == 0 ? alive : count)) {
    if (wait) wait_for(meeting, round);
    return;
  }
  meeting.here = 0, ++meeting.round, idle = 0;
}

bool vote(bool mine, bool any) {
  if (voting.here == 0) voting.votes = !any;
  voting.votes = any ? voting.votes || mine : voting.votes && mine;
  const unsigned round = voting.round;
  if (++voting.here < alive) {
    wait_for(voting, round);
  } else {
    voting.result = voting.votes;
    voting.here = 0, ++voting.round, idle = 0;
  }
  return voting.result;
}

}  // namespace emulated
