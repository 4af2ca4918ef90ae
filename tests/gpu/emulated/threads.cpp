// The fibers of a block, on one thread of the CPU.
#include "threads.hpp"

#include <ucontext.h>

#include <csetjmp>
#include <cstdio>
#include <memory>
#include <random>

namespace attend::cuda {
alignas(1024) char raw[emulated::kSharedBytes];  // the kernels' shared memory
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
  const unsigned* waits_for = nullptr;  // until it is another one than `round`
  unsigned round = 0;
  Copies copies;

  bool may_run() const { return !done && (waits_for == nullptr || *waits_for != round); }
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
std::map<const void*, SharedBarrier> shared_barriers;
Meeting meetings[16], voting;
int alive = 0, shared_limit = 0;
unsigned idle = 0;
void (*body)(const void*);
const void* args;
Fiber* current;
std::jmp_buf scheduler;
std::mt19937 numbers(7);

void let_go(Meeting& meeting) {
  meeting.here = 0, ++meeting.round, idle = 0;
}
void begin() {
  while (true) {  // once for each block
    body(args);
    current->done = true, --alive, idle = 0;
    if (meetings[0].here > 0 && meetings[0].here == alive) let_go(meetings[0]);
    yield();
  }
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
  current->waits_for = &meeting.round, current->round = round;
  yield();
  current->waits_for = nullptr;
}

void run_block() {
  std::memset(attend::cuda::raw, 0xFF, static_cast<std::size_t>(shared_limit));
  for (Fiber& fiber : fibers) fiber.done = false, fiber.copies = {};
  warps.assign(threads.x / 32, {});
  for (Meeting& meeting : meetings) meeting = {};
  voting = {}, shared_barriers.clear();
  alive = static_cast<int>(threads.x), idle = 0;
  std::vector<unsigned> order(warps.size());
  for (unsigned n = 0; n < order.size(); ++n) order[n] = n;
  while (alive > 0) {
    std::shuffle(order.begin(), order.end(), numbers);
    for (const unsigned warp : order)
      // Some far ahead of the others.
      for (unsigned turns = 1 + numbers() % (numbers() % 4 == 0 ? 64 : 4); turns > 0; --turns)
        for (unsigned n = 32 * warp; n < 32 * (warp + 1); ++n)
          if (fibers[n].may_run()) resume(fibers[n], n);
    if (++idle > 10000) stop("all threads wait for something that does not come");
  }
  for (unsigned n = 0; n < threads.x; ++n) {
    thread.x = n;
    if (!fibers[n].copies.groups.empty() || !fibers[n].copies.open.empty()) stop("copies were not waited for");
  }
  for (const auto& [place, barrier] : shared_barriers)
    if (!barrier.copies.empty()) stop("copies that a barrier counts were not waited for");
  for (const Meeting& meeting : meetings)
    if (meeting.here != 0) stop("a barrier was left half way");
}

}  // namespace

Copies& copies() {
  return current->copies;
}
std::map<const void*, SharedBarrier>& barriers() {
  return shared_barriers;
}
void ask(const Copy& copy, std::vector<Copy>& under) {
  check_shared(copy.to, copy.bytes);
  std::memset(attend::cuda::raw + copy.to, 0xFF, static_cast<std::size_t>(copy.bytes));
  under.push_back(copy);
}
void land(std::vector<Copy>& under) {
  for (const Copy& copy : under) {
    std::memset(attend::cuda::raw + copy.to, 0, static_cast<std::size_t>(copy.bytes));
    if (copy.there > 0) std::memcpy(attend::cuda::raw + copy.to, copy.from, static_cast<std::size_t>(copy.there));
  }
  under.clear();
}
void stop(const char* what) {
  std::fprintf(stderr, "FAILED block %u thread %u: %s\n", block.x, thread.x, what);
  std::abort();
}
void move() {
  idle = 0;
}
void yield() {
  if (_setjmp(current->at) == 0) _longjmp(scheduler, 1);
}
void linger() {
  for (unsigned n = numbers() % 8; n > 0; --n) yield();
}

void run(unsigned grid, unsigned block_threads, int shared_bytes, void (*f)(const void*), const void* given) {
  if (block_threads % 32 != 0) stop("threads in parts of a warp");
  body = f, args = given, shared_limit = shared_bytes;
  blocks = {grid, 1, 1}, threads = {block_threads, 1, 1}, block = thread = {0, 0, 0};
  if (fibers.size() < block_threads) fibers.resize(block_threads);
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
  let_go(meeting);
}

bool vote(bool mine, bool any) {
  if (voting.here == 0) voting.votes = !any;
  voting.votes = any ? voting.votes || mine : voting.votes && mine;
  const unsigned round = voting.round;
  if (++voting.here < alive) {
    wait_for(voting, round);
  } else {
    voting.result = voting.votes;
    let_go(voting);
  }
  return voting.result;
}

}  // namespace emulated
