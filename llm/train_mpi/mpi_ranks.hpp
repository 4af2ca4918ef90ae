// The ranks of an MPI program, with a thread of its own for their messages.
#pragma once

#include <mpi.h>
#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "llm/train/ranks.hpp"

namespace attend::llm {

// Messages move only while somebody calls MPI. The thread does, with what it is given, in order, while the caller
// computes; between its calls it sleeps, so that it takes little from those who compute. It also looks whether the
// other processes are still there: nobody waits for one that is gone.
class MpiRanks : public Ranks {
 public:
  MpiRanks();  // starts MPI
  ~MpiRanks() override;
  MpiRanks(const MpiRanks&) = delete;
  MpiRanks& operator=(const MpiRanks&) = delete;

  int rank() const override { return rank_; }
  int count() const override { return count_; }
  int here() const override { return here_; }
  void add(const PieceSum& piece) override;
  void wait() override;
  void sum(std::span<double> values) override;
  std::vector<std::string> texts(const std::string& own) override;
  void set_last_words(const std::string& text) override;
  [[noreturn]] void abort(const std::string& text) override;

 private:
  using Clock = std::chrono::steady_clock;

  void meet();
  void post(std::function<void()> job);
  void work();
  // Of the thread.
  void add_now(const PieceSum& piece);
  void send(const void* data, std::int64_t bytes, int to);
  void receive(void* data, std::int64_t bytes, int from);
  void finish_messages();
  void swap_with_all(const void* own, std::int64_t bytes, void* all);
  void look_at_others();
  [[noreturn]] void end_without(int gone);
  void check(int code, const char* what);

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, count_ = 1, here_ = 1;
  std::vector<pid_t> others_;  // by rank; 0: this process, or one of another machine
  std::vector<MPI_Request> requests_;
  std::vector<float> received_;
  Clock::time_point looked_{};

  std::mutex mutex_;
  std::condition_variable posted_, done_;
  std::deque<std::function<void()>> jobs_;
  std::string last_words_;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace attend::llm
