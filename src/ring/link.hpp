// The processes of a ring during one call: messages waited for with a limit, agreement on arguments, the end of all.
#pragma once

#include <mpi.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "attend/error.hpp"
#include "attend/ring.hpp"

namespace attend::ring {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Messages of one kind between the same ranks arrive in the order in which they were sent.
enum class Kind : int { header = 1, heartbeat = 2, keys_values = 3, gradients = 4, sums = 5, nothing = 6 };

// Messages in flight together.
struct Messages {
  std::vector<MPI_Request> requests;
  std::vector<int> peers;
};

// What all ranks must say alike; `value` may be a hash, which is then not printed.
struct Fact {
  const char* name;
  std::int64_t value;
  bool hash = false;
};
using Facts = std::vector<Fact>;

// Thrown on all ranks alike, so that nobody waits for anybody.
class Refused : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

struct Channel;  // what stays with a communicator: its duplicate, heartbeats

class Link {
 public:
  // Throws InvalidArgument, on this rank alone, if the handle is no communicator.
  Link(RingCommunicator comm, const char* op, const RingOptions& options);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  int rank() const;
  int ranks() const;
  int next() const { return (rank() + 1) % ranks(); }
  int previous() const { return (rank() + ranks() - 1) % ranks(); }

  // `local` checks this rank's arguments and says what must be the same everywhere. Throws Refused on all ranks if it
  // threw on any, or if facts differ.
  void agree(const std::function<void(Facts&)>& local);

  // Runs f. What is not known to all ranks ends all of them.
  template <class F>
  void run(F&& f) {
    try {
      f();
      stop_moving();
    } catch (const Refused&) {
      throw;
    } catch (...) {
      end_all(current_error());
    }
  }

  void send(Kind kind, const void* data, std::int64_t bytes, int to, Messages& messages);
  void receive(Kind kind, void* data, std::int64_t bytes, int from, Messages& messages);
  void wait(Messages& messages, const std::string& for_what);  // until all have arrived

  // Runs a slice of compute, timed, while transfers move in the way the options ask for.
  template <class F>
  void compute(const F& f) {
    const Clock::time_point start = Clock::now();
    Clock::time_point end;
    {
      const HandOver others_may_move(*this);
      f();
      end = Clock::now();
    }
    times.compute += std::chrono::duration<double>(end - start).count();
    if (progress_ == RingProgress::slices) move();
    times.progress += seconds_since(end);
  }
  void start_moving();  // the thread that RingProgress::thread asks for

  // values = the sum over the ranks, in rising order; the same bits on all.
  void sum(float* values, std::int64_t count);

  [[noreturn]] void end_all(const std::string& text) const;
  static std::string current_error();  // the text of the exception being handled

  RingTimes times;  // of this call

 private:
  // The moving thread has MPI to itself.
  struct HandOver {
    explicit HandOver(Link& link) : mpi(link.mover_.joinable() ? &link.mpi_ : nullptr) {
      if (mpi != nullptr) mpi->unlock();
    }
    ~HandOver() {
      if (mpi != nullptr) mpi->lock();
    }
    HandOver(const HandOver&) = delete;
    HandOver& operator=(const HandOver&) = delete;
    std::mutex* mpi;
  };

  void move();
  void stop_moving();
  bool finished(Messages& messages);
  void exchange_heartbeats();
  void check_silence(const Messages& messages, Clock::time_point start, const std::string& for_what);
  void check(int code, const char* what) const;

  Channel* channel_;
  std::string op_;
  double timeout_;
  RingProgress progress_;  // never automatic
  std::mutex mpi_;         // who holds it may call MPI: this thread, but for its compute
  std::condition_variable end_;
  std::thread mover_;
  bool ended_ = false;
};

}  // namespace attend::ring
