// The statistics of rows that a call of attention is asked for: checked, described for the kernels, and stored.
#pragma once

#include <cstdint>

#include "attend/row_statistics.hpp"
#include "core/attention_problem.hpp"
#include "ops/scratch.hpp"

namespace attend {

// Throws InvalidArgument. Results of f64 inputs are f64, others f32.
void check_statistics(const char* op, const View& q, const View& k, const RowStatistics& wanted);

// Owns what a StatisticsPlan points to.
class StatisticsRows {
 public:
  StatisticsRows(const RowStatistics& wanted, const AttentionProblem& p);
  const StatisticsPlan* plan() const { return &plan_; }
  void finish() const;  // stores them where they are wanted

 private:
  void number_tokens(const AttentionProblem& p);

  const RowStatistics& wanted_;
  Buffer<std::int64_t> positions_;  // [B, M]
  Buffer<float> query_tokens_;      // [B, M]
  Buffer<float> tokens_;            // [2, B, token_row]: of each key, and of the one before it
  Buffer<float> rows_;
  StatisticsPlan plan_{};
};

}  // namespace attend
