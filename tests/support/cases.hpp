// The list of cases that tests and benchmarks share: what is computed, on which sizes, in which memory layout.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "attend/tensor.hpp"

namespace attend::test {

enum class MaskKind {
  // The seven of the sweep.
  none,
  causal_first,
  causal_last,
  causal_window,
  padding,
  segments_causal,
  blocks,
  // Beyond the sweep.
  dense,
  dense_row,     // one row for all queries, heads and batches
  window,        // both sides limited, aligned to the first key
  window_right,  // unlimited on the left
  prefix,
  left_padding,
  segments,  // equal cumulative lengths on both sides, cut at min(M, N)
  blocks_by_head,
  causal_at,    // a diagonal of its own for each batch
  hidden_rows,  // some queries see nothing
  hidden_all,   // no query sees anything
  padding_causal,
  blocks_causal,
  dense_window,
  segments_window_blocks,
  // Unions and patterns.
  chunks,
  dilated,
  streaming,
  strided,
  fixed,
  longformer,
  bigbird,         // by head
  segments_union,  // a global token in each document
  union_except,    // unions within unions, and what another mask hides
};
inline constexpr MaskKind kLastMask = MaskKind::union_except;
enum class Layout { bhld, blhd, odd };  // odd: gaps, an element stride of 2, negative strides
enum class BiasKind { none, full, by_batch, by_head, by_row, by_key, one };
enum class RuleKind { none, place, curve, hide };  // depends on the place; is not linear; hides keys with -inf
enum class SlopesKind { none, shared, by_batch };

const char* name(MaskKind mask);

struct Case {
  DType dtype = DType::f32;
  std::int64_t B = 1, H = 1, Hk = 1, M = 1, N = 1, D = 1, E = 1;
  MaskKind mask = MaskKind::none;
  double softcap = 0;
  Layout layout = Layout::bhld;
  bool backward = false;

  std::optional<double> scale{};
  BiasKind bias = BiasKind::none;
  bool f32_bias = false;  // whatever the dtype
  RuleKind rule = RuleKind::none;
  SlopesKind slopes = SlopesKind::none;
  bool sinks = false;
  double dropout = 0;

  std::string problem_name() const;  // without dtype and layout: cases that share it share inputs and truth
  std::string name() const;
};

// The parameters of the sweep and how many values each has: dtype, dim, lengths, heads, mask, soft-cap, layout.
inline constexpr std::size_t kSweepParameters = 7;
using SweepIndex = std::array<int, kSweepParameters>;
inline constexpr SweepIndex kSweepCounts = {3, 15, 16, 3, 7, 2, 3};

Case sweep_case(const SweepIndex& index);
std::vector<SweepIndex> whole_sweep();  // all 90,720
std::vector<SweepIndex> cover_sweep();  // at least 4,000 that hold every triple of parameter values
std::vector<Case> to_cases(const std::vector<SweepIndex>& indices);

std::vector<Case> extra_cases();      // what the sweep does not cross: value dims, score rules, other masks
std::vector<Case> benchmark_cases();  // the shapes that speed is measured on

// Cases of one problem side by side, problems in order of first appearance.
std::vector<std::vector<Case>> group_by_problem(const std::vector<Case>& cases);

}  // namespace attend::test
