// Sums over the ranks of an MPI program.
#include "llm/train_mpi/mpi_ranks.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "attend/ring.hpp"
#include "llm/train_mpi/start_ranks.hpp"

namespace attend::llm {
namespace {

constexpr std::int64_t kMessageBytes = 64 << 20;      // MPI counts in int
constexpr std::chrono::milliseconds kLook(50);        // between two looks at the other processes
constexpr std::chrono::milliseconds kPatience(2500);  // with mpirun, which is to end all
constexpr std::chrono::microseconds kPause(100), kMoved(20);
constexpr std::size_t kTextBytes = 1024;

struct Place {
  char machine[256] = {};
  std::int64_t pid = 0;
};

void say(const std::string& text) {
  (void)std::fflush(stdout);
  (void)std::fputs(("attend train: " + text + "\n").c_str(), stderr);
  (void)std::fflush(stderr);
}

bool is_gone(pid_t pid) {
  return pid != 0 && ::kill(pid, 0) != 0 && errno == ESRCH;
}

}  // namespace

MpiRanks::MpiRanks() {
  int level = MPI_THREAD_SINGLE;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level) != MPI_SUCCESS || level < MPI_THREAD_SERIALIZED)
    throw std::runtime_error("training: this MPI lets no second thread call it, expected MPI_THREAD_SERIALIZED");
  MPI_Comm_dup(MPI_COMM_WORLD, &comm_);
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &count_);
  meet();
  thread_ = std::thread([this] { work(); });
}

MpiRanks::~MpiRanks() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  posted_.notify_one();
  thread_.join();
  MPI_Comm_free(&comm_);
  MPI_Finalize();
}

// Who is on this machine, and which process it is.
void MpiRanks::meet() {
  Place own;
  (void)::gethostname(own.machine, sizeof own.machine - 1);
  own.pid = ::getpid();
  std::vector<Place> all(static_cast<std::size_t>(count_));
  check(MPI_Allgather(&own, sizeof own, MPI_BYTE, all.data(), sizeof own, MPI_BYTE, comm_), "MPI_Allgather");
  here_ = 0;
  for (int r = 0; r < count_; ++r) {
    const Place& place = all[static_cast<std::size_t>(r)];
    const bool is_here = std::strncmp(place.machine, own.machine, sizeof own.machine) == 0;
    here_ += is_here ? 1 : 0;
    const auto pid = static_cast<pid_t>(place.pid);
    // Machines of one name may be containers that do not see each other's processes.
    others_.push_back(is_here && r != rank_ && !is_gone(pid) ? pid : 0);
  }
}

// ---- the caller's side ----

void MpiRanks::post(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  posted_.notify_one();
}

void MpiRanks::add(const PieceSum& piece) {
  if (piece.count > 0) post([this, piece] { add_now(piece); });
}

void MpiRanks::wait() {
  std::unique_lock lock(mutex_);
  // The thread may be inside the ring, which waits longer for a rank that is gone.
  while (!done_.wait_for(lock, 4 * kLook, [&] { return jobs_.empty(); })) {
    lock.unlock();
    find_missing();
    lock.lock();
  }
}

void MpiRanks::run(const std::function<void()>& job) {
  std::exception_ptr error;
  post([&] {
    try {
      job();
    } catch (...) {
      error = std::current_exception();
    }
  });
  wait();
  if (error) std::rethrow_exception(error);
}

void MpiRanks::Ring::forward(const View& q, const View& k, const View& v, const MutableView& out,
                             const MutableView& lse, const AttentionOptions& options) {
  ranks_.run([&] {
    ring_attention({MPI_Comm_c2f(ranks_.comm_)}, q, k, v, out, {.sharding = RingSharding::zigzag, .attention = options},
                   lse);
  });
}

void MpiRanks::Ring::backward(const View& dout, const View& q, const View& k, const View& v, const View& out,
                              const View& lse, const AttentionGradients& gradients, const AttentionOptions& options) {
  ranks_.run([&] {
    ring_attention_backward({MPI_Comm_c2f(ranks_.comm_)}, dout, q, k, v, out, lse,
                            {gradients.dq, gradients.dk, gradients.dv},
                            {.sharding = RingSharding::zigzag, .attention = options});
  });
}

void MpiRanks::sum(std::span<double> values) {
  if (values.empty()) return;
  std::vector<double> all(values.size() * static_cast<std::size_t>(count_));
  post([&] { swap_with_all(values.data(), static_cast<std::int64_t>(values.size_bytes()), all.data()); });
  wait();
  std::fill(values.begin(), values.end(), 0.0);
  for (std::size_t n = 0; n < all.size(); ++n) values[n % values.size()] += all[n];
}

std::vector<std::string> MpiRanks::texts(const std::string& own) {
  using Text = std::array<char, kTextBytes>;
  Text text{};
  own.copy(text.data(), kTextBytes - 1);
  std::vector<Text> all(static_cast<std::size_t>(count_));
  post([&] { swap_with_all(text.data(), kTextBytes, all.data()); });
  wait();
  std::vector<std::string> result;
  for (const Text& one : all) result.emplace_back(one.data());
  return result;
}

void MpiRanks::set_last_words(const std::string& text) {
  const std::lock_guard lock(mutex_);
  last_words_ = text;
}

void MpiRanks::abort(const std::string& text) {
  say("rank " + std::to_string(rank_) + " of " + std::to_string(count_) + ": " + text + "; this ends all ranks");
  MPI_Abort(comm_, 1);
  std::_Exit(1);
}

// ---- the thread's side ----

void MpiRanks::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    const bool woken = posted_.wait_for(lock, kLook, [&] { return ended_ || !jobs_.empty(); });
    if (woken && jobs_.empty()) return;
    // A job stays in the queue until it is done; others are only put behind it.
    const std::function<void()>* job = woken ? &jobs_.front() : nullptr;
    lock.unlock();
    if (job != nullptr)
      (*job)();
    else
      look_at_others();
    lock.lock();
    if (job != nullptr) jobs_.pop_front();
    if (jobs_.empty()) done_.notify_all();
  }
}

void MpiRanks::check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  looked_ = {};
  look_at_others();  // most often the reason
  abort(std::string(what) + " failed");
}

void MpiRanks::send(const void* data, std::int64_t bytes, int to) {
  for (std::int64_t at = 0; at < bytes; at += kMessageBytes)
    check(MPI_Isend(static_cast<const char*>(data) + at, static_cast<int>(std::min(kMessageBytes, bytes - at)),
                    MPI_BYTE, to, 0, comm_, &requests_.emplace_back(MPI_REQUEST_NULL)),
          "MPI_Isend");
}

void MpiRanks::receive(void* data, std::int64_t bytes, int from) {
  for (std::int64_t at = 0; at < bytes; at += kMessageBytes)
    check(MPI_Irecv(static_cast<char*>(data) + at, static_cast<int>(std::min(kMessageBytes, bytes - at)), MPI_BYTE,
                    from, 0, comm_, &requests_.emplace_back(MPI_REQUEST_NULL)),
          "MPI_Irecv");
}

void MpiRanks::finish_messages() {
  for (int done = 0;;) {
    const Clock::time_point start = Clock::now();
    check(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE), "MPI_Testall");
    if (done != 0) break;
    look_at_others();
    // What moved takes time to do so, and there may be more; else the compute is not to be disturbed.
    if (Clock::now() - start < kMoved) std::this_thread::sleep_for(kPause);
  }
  requests_.clear();
}

// all[r] = what rank r holds.
void MpiRanks::swap_with_all(const void* own, std::int64_t bytes, void* all) {
  for (int r = 0; r < count_; ++r) {
    char* to = static_cast<char*>(all) + r * bytes;
    if (r == rank_) {
      std::memcpy(to, own, static_cast<std::size_t>(bytes));
      continue;
    }
    receive(to, bytes, r);
    send(own, bytes, r);
  }
  finish_messages();
}

// Each rank adds a share of the piece for all: the parts come to it, and the sums go from it.
void MpiRanks::add_now(const PieceSum& piece) {
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(float));
  const auto first = [&](int r) { return piece.count * r / count_; };
  const auto share = [&](int r) { return first(r + 1) - first(r); };
  const std::int64_t own = share(rank_);
  if (std::ssize(received_) < piece.parts * own) received_.resize(static_cast<std::size_t>(piece.parts * own));
  std::vector<const float*> parts;
  for (int r = 0; r < piece.parts; ++r) {
    float* part = r == rank_ ? piece.values + first(r) : received_.data() + r * own;
    parts.push_back(part);
    if (r != rank_) receive(part, own * kSize, r);
  }
  for (int r = 0; r < count_ && rank_ < piece.parts; ++r)
    if (r != rank_) send(piece.values + first(r), share(r) * kSize, r);
  finish_messages();
  const float* before = piece.first ? nullptr : piece.sums + first(rank_);
  add_parts(before, parts, own, (piece.last ? piece.values : piece.sums) + first(rank_));
  if (!piece.last) return;
  for (int r = 0; r < count_; ++r) {
    if (r == rank_) continue;
    receive(piece.values + first(r), share(r) * kSize, r);
    send(piece.values + first(rank_), own * kSize, r);
  }
  finish_messages();
}

void MpiRanks::look_at_others() {
  const Clock::time_point now = Clock::now();
  if (now - looked_ < kLook) return;
  looked_ = now;
  find_missing();
}

void MpiRanks::find_missing() {
  for (int r = 0; r < count_; ++r)
    if (is_gone(others_[static_cast<std::size_t>(r)])) end_without(r);
}

// mpirun ends the others too; the first that is left says why. None goes by itself before that: another, late to look,
// would take it for the one that died.
void MpiRanks::end_without(int gone) {
  if (ending_.exchange(true)) std::this_thread::sleep_for(2 * kPatience);  // the other thread was first
  std::this_thread::sleep_for(kLook);                                      // several may have ended at once
  bool is_speaker = true;
  for (int r = 0; r < rank_; ++r)
    if (!is_gone(others_[static_cast<std::size_t>(r)])) is_speaker = false;
  if (is_speaker) {
    const std::lock_guard lock(mutex_);
    say("rank " + std::to_string(gone) + " of " + std::to_string(count_) + " died" +
        (last_words_.empty() ? "" : "; " + last_words_));
  }
  std::this_thread::sleep_for(kPatience);
  std::_Exit(1);
}

std::unique_ptr<Ranks> start_ranks() {
  const char* size = std::getenv("OMPI_COMM_WORLD_SIZE");
  if (size == nullptr || std::strtol(size, nullptr, 10) <= 1) return one_process();
  return std::make_unique<MpiRanks>();
}

}  // namespace attend::llm
