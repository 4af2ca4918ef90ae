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
  void rethrow() const {
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
  void rethrow() const { guard_.rethrow(); }

 private:
  const ScoreRule* rule_;
  ScoreHook hook_;
  CallGuard guard_;
};

// A call whose arguments have been checked and whose mask has been lowered, described for the kernels: made once, and
// passed on. Owns what the problem points to, and stays where it was made: `problem` holds addresses of its neighbours.
struct ATTEND_FOR_RING AttentionCall {
  // Throws InvalidArgument before any memory is touched. The options must outlive the call.
  AttentionCall(const View& q, const View& k, const View& v, const AttentionOptions& options);
  AttentionCall(const View& q, const View& k, const View& v, AttentionOptions&& options) = delete;
  AttentionCall(const AttentionCall&) = delete;
  AttentionCall& operator=(const AttentionCall&) = delete;

  bool empty() const { return q.batch() == 0 || q.length() == 0; }  // no rows at all
  std::int64_t rows() const { return problem_.M * problem_.G; }     // of one KV head
  // Inputs of the same dtype and shapes in another place: those of the constructor said no more than what they are.
  void set_inputs(const View& new_q, const View& new_k, const View& new_v);
  void set_packed(const PackedTiles* packed) { problem_.packed = packed; }
  // For the kernels. Slopes and sinks are read now, once: not before everything that a call writes has been checked.
  const AttentionProblem& problem() const;
  // The same without slopes and sinks: nothing that a view points to has been read.
  const AttentionProblem& unread_problem() const { return problem_; }

  View q, k, v;
  const AttentionOptions& options;
  MaskPlan mask;
  RuleHook rule;

 private:
  mutable AttentionProblem problem_{};
  PositionPlan alibi_position_{Align::last_key, nullptr};
  mutable std::vector<float> alibi_;  // [B, H]
  mutable std::vector<float> sinks_;  // [H]
  Operand bias_{};
};

// What a call writes, and what backward reads beside its inputs: throw InvalidArgument.
ATTEND_FOR_RING void check_outputs(const AttentionCall& call, const MutableView& out, const AttentionExtras& extras);
ATTEND_FOR_RING void check_outputs(const View& q, const View& k, const View& v, const AttentionOptions& options,
                                   const MutableView& out, const AttentionExtras& extras);
ATTEND_FOR_RING void check_backward(const AttentionCall& call, const View& dout, const View& out, const View& lse,
                                    const AttentionGradients& gradients);
// That a rule has the functions that inputs of this dtype need: a missing one would only be noticed inside a kernel.
void check_rule(const char* op, const ScoreRule& rule, DType dtype, bool backward);
// A dense mask is read where it lies: nothing may be written there.
void check_apart_from_mask(const char* op, const Mask& mask, std::initializer_list<Written> written);

// Checked calls, in whichever way suits them: in double, class by class, by the kernels. Where the keys are a part of
// the row's, `whole` gives the softmax of all of them, [B, H, M], for rows whose LSE does not suffice.
ATTEND_FOR_RING void attention(const AttentionCall& call, const MutableView& out, const AttentionExtras& extras);
ATTEND_FOR_RING void attention_backward(const AttentionCall& call, const View& dout, const View& out, const View& lse,
                                        const AttentionGradients& gradients, const RowState* whole = nullptr);
// By the kernels: not for f64, nor for calls without rows (backward: without keys).
void run_attention(const AttentionCall& call, const MutableView& out, const AttentionExtras& extras);
// The extras alone, no weights among them: values are not read.
void run_extras(const AttentionCall& call, const AttentionExtras& extras);
void run_attention_backward(const AttentionCall& call, const View& dout, const View& out, const View& lse,
                            const AttentionGradients& gradients, const RowState* whole = nullptr);

Operand operand_of(const View& view);
Operand operand_of(const MutableView& view);

// What an inner attention keeps whose backward needs the LSE alone: `saved` becomes one tensor for it, where it is
// asked for.
std::optional<MutableView> saved_lse(const View& q, std::vector<Tensor>* saved);
void check_saved(const char* op, const std::vector<Tensor>& saved, std::int64_t count);  // as many as forward saves

// The dtype that an LSE, a bias gradient or the weights have beside q: f64 for f64, else f32.
DType accumulator_dtype(DType dtype);

}  // namespace attend
