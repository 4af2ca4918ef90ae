// The ranks of an MPI program, with a thread of its own for their messages.
#pragma once

#include <mpi.h>
#include <sys/types.h>

#include <atomic>
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
class MpiRanks final : public Ranks {
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
  SpreadAttention* spread_attention() override { return &ring_; }
  void set_last_words(const std::string& text) override;
  [[noreturn]] void abort(const std::string& text) override;

 private:
  using Clock = std::chrono::steady_clock;

  // The ring, whose calls the thread makes as well: nobody else is in MPI then.
  class Ring : public SpreadAttention {
   public:
    explicit Ring(MpiRanks& ranks) : ranks_(ranks) {}
    void forward(const View& q, const View& k, const View& v, const MutableView& out, const MutableView& lse,
                 const AttentionOptions& options) override;
    void backward(const View& dout, const View& q, const View& k, const View& v, const View& out, const View& lse,
                  const AttentionGradients& gradients, const AttentionOptions& options) override;

   private:
    MpiRanks& ranks_;
  };

  void meet();
  void post(std::function<void()> job);
  void run(const std::function<void()>& job);  // to its end, on the thread; throws what it threw
  void work();
  // Of the thread.
  void add_now(const PieceSum& piece);
  void send(const void* data, std::int64_t bytes, int to);
  void receive(void* data, std::int64_t bytes, int from);
  void finish_messages();
  void swap_with_all(const void* own, std::int64_t bytes, void* all);
  void look_at_others();
  void find_missing();  // of either side
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
  std::atomic<bool> ending_ = false;
  std::thread thread_;
  Ring ring_{*this};
};

}  // namespace attend::llm
