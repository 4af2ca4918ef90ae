// The processes that train one model together, and the order in which their gradients are added.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "llm/train/network.hpp"

namespace attend::llm {

// A piece of the gradient in one round of a step. Part n of a step's batch is computed by rank n % count() in round
// n / count(). Sums grow by one part after the other, in the order of the parts: their bits depend on the parts alone,
// not on how many processes computed them.
struct PieceSum {
  float* values = nullptr;         // of this rank's part, if it has one; behind the last round the sum, on all ranks
  float* sums = nullptr;           // between rounds; not used where the first is the last
  std::int64_t count = 0;          // of both
  int parts = 1;                   // of this round: those of ranks 0 .. parts - 1
  bool first = true, last = true;  // round of the step
};
// to = sums (none in the first round) + parts[0] + parts[1] + ..., from the left, for `count` numbers.
void add_parts(const float* sums, std::span<const float* const> parts, std::int64_t count, float* to);

// An error of another rank, told on this one.
struct RankFailed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// All ranks make the same calls in the same order.
class Ranks {
 public:
  virtual ~Ranks() = default;
  virtual int rank() const = 0;
  virtual int count() const = 0;
  virtual int here() const = 0;  // of them on this machine

  // Begins to add a piece, whose memory is not to be touched until wait() comes back.
  virtual void add(const PieceSum& piece) = 0;
  virtual void wait() = 0;
  // Adds over the ranks, in their order: where all but one hold 0, that one's values come out, to the bit.
  virtual void sum(std::span<double> values) = 0;
  virtual std::vector<std::string> texts(const std::string& own) = 0;  // of all ranks, cut to some hundred characters

  // For documents that are spread over the ranks; null where there is one.
  virtual SpreadAttention* spread_attention() = 0;

  // Whether any rank says so.
  bool any(bool own);
  // Runs `work` on every rank. Where it throws on one, it throws on all of them: there that error, elsewhere
  // RankFailed.
  void agree(const std::function<void()>& work);
  bool failed() const { return failed_; }  // agree() has thrown: all ranks know that the run is over

  // What is to be said, once, when a rank is gone.
  virtual void set_last_words(const std::string& text) = 0;
  // Ends all ranks at once, with a message.
  [[noreturn]] virtual void abort(const std::string& text) = 0;

 private:
  bool failed_ = false;
};

std::unique_ptr<Ranks> one_process();

// The gradient of a batch, computed in parts over all ranks.
class GradientSum {
 public:
  // While it lives it watches the network's gradients; both others outlive it.
  GradientSum(Network& network, Ranks& ranks, std::int64_t parts);
  ~GradientSum();
  GradientSum(const GradientSum&) = delete;
  GradientSum& operator=(const GradientSum&) = delete;

  // Calls compute(n) for this rank's parts, which overwrites the network's gradients with those of part n. Then they
  // are the sum of all parts', on all ranks. A piece is added while backward makes the next.
  void run(const std::function<void(std::int64_t part)>& compute);
  bool is_own(std::int64_t part) const { return part % ranks_.count() == ranks_.rank(); }

  // Numbers that are kept between rounds.
  static std::int64_t kept(std::int64_t parameters, std::int64_t parts, int ranks);

 private:
  void add(const GradientPiece& piece);
  std::int64_t rounds() const { return (parts_ + ranks_.count() - 1) / ranks_.count(); }

  Network& network_;
  Ranks& ranks_;
  std::int64_t parts_, round_ = 0;
  Tensor sums_;
};

}  // namespace attend::llm
