// The arguments of an attention call, checked and described for the kernels.
#pragma once

#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <vector>

#include "attend/attention.hpp"
#include "core/attention_problem.hpp"
#include "core/mask_plan.hpp"

namespace attend {

// The user's rule behind the plain functions that kernels call. An exception it throws is kept and thrown again by
// rethrow(), once all threads are done.
class RuleHook {
 public:
  explicit RuleHook(const ScoreRule& rule);
  const ScoreHook* hook() const { return rule_ ? &hook_ : nullptr; }
  void rethrow();

 private:
  template <class F>
  void guarded(F&& f) noexcept;

  const ScoreRule* rule_;
  ScoreHook hook_;
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::exception_ptr error_;
};

// Owns what the problem points to. Stays where it was made: `problem` holds addresses of its neighbours.
struct AttentionCall {
  AttentionCall(View q, View k, View v, const AttentionOptions& options);
  AttentionCall(const AttentionCall&) = delete;
  AttentionCall& operator=(const AttentionCall&) = delete;

  std::int64_t rows() const { return problem.M * problem.G; }  // of one KV head

  AttentionProblem problem{};
  MaskPlan mask;
  PositionPlan alibi_position;
  std::vector<float> alibi;  // [B, H]
  std::vector<float> sinks;  // [H]
  Operand bias{};
  RuleHook rule;
};

Operand operand_of(const View& view);
Operand operand_of(const MutableView& view);

// Throw InvalidArgument. The first also checks what `options` holds.
void check_attention(View q, View k, View v, const AttentionOptions& options);
void check_attention_outputs(View q, View k, View v, MutableView out, const AttentionExtras& extras);
void check_attention_backward(View dout, View q, View k, View v, View out, View lse,
                              const AttentionGradients& gradients, const AttentionOptions& options);

// The shape and dtype that an LSE, a bias gradient or the weights have beside q.
DType accumulator_dtype(DType dtype);  // f64 for f64, else f32

}  // namespace attend
