// The arguments of an attention call, checked and described for the kernels.
#pragma once

#include <atomic>
#include <exception>
#include <initializer_list>
#include <mutex>
#include <optional>
#include <vector>

#include "attend/attention.hpp"
#include "base/check.hpp"
#include "base/export.hpp"
#include "core/attention_problem.hpp"
#include "core/mask_plan.hpp"

namespace attend {

// Runs a user's function inside a kernel. An exception it throws is kept and thrown again by rethrow(), once all
// threads are done; after one, nothing is called any more.
class CallGuard {
 public:
  template <class F>
  void run(F&& f) noexcept {
    if (failed_.load(std::memory_order_relaxed)) return;
    try {
      f();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
      failed_.store(true, std::memory_order_relaxed);
    }
  }
  void rethrow() {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::exception_ptr error_;
};

// The user's rule behind the plain functions that kernels call.
class RuleHook {
 public:
  explicit RuleHook(const ScoreRule& rule);
  const ScoreHook* hook() const { return rule_ ? &hook_ : nullptr; }
  void rethrow() { guard_.rethrow(); }

 private:
  const ScoreRule* rule_;
  ScoreHook hook_;
  CallGuard guard_;
};

// Owns what the problem points to. Stays where it was made: `problem` holds addresses of its neighbours.
struct ATTEND_FOR_RING AttentionCall {
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

// The forward pass of a checked call.
void run_attention(AttentionCall& call, const MutableView& out, const AttentionExtras& extras);
// The backward pass of a checked call that has queries and keys. Where these are a part of the row's keys, `whole`
// gives the softmax of all of them, [B, H, M], for rows whose LSE does not suffice.
void run_attention_backward(AttentionCall& call, const View& dout, const View& out, const View& lse,
                            const AttentionGradients& gradients, const RowState* whole = nullptr);

// The calls once their arguments have been checked; not for f64.
void attention_checked(const View& q, const View& k, const View& v, const MutableView& out,
                       const AttentionOptions& options, const AttentionExtras& extras);
ATTEND_FOR_RING void attention_backward_checked(const View& dout, const View& q, const View& k, const View& v,
                                                const View& out, const View& lse, const AttentionGradients& gradients,
                                                const AttentionOptions& options, const RowState* whole = nullptr);

Operand operand_of(const View& view);
Operand operand_of(const MutableView& view);

// Throw InvalidArgument. The first also checks what `options` holds.
ATTEND_FOR_RING void check_attention(View q, View k, View v, const AttentionOptions& options);
ATTEND_FOR_RING void check_attention_outputs(View q, View k, View v, MutableView out, const AttentionOptions& options,
                                             const AttentionExtras& extras);
// A dense mask is read where it lies: nothing may be written there.
void check_apart_from_mask(const char* op, const Mask& mask, std::initializer_list<Written> written);
void check_visit_weights(View q, View k, View lse, const WeightVisitor& visitor, const AttentionOptions& options);
ATTEND_FOR_RING void check_attention_backward(View dout, View q, View k, View v, View out, View lse,
                                              const AttentionGradients& gradients, const AttentionOptions& options);

// The shape and dtype that an LSE, a bias gradient or the weights have beside q.
DType accumulator_dtype(DType dtype);  // f64 for f64, else f32

}  // namespace attend
