// The demo's check: sampled rows of the output against the double-precision reference.
#include "check.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "attend/attention.hpp"
#include "attend/runtime.hpp"

namespace attend::cli {
namespace {

constexpr std::int64_t kRowsPerHead = 8;

double element(const View& x, std::int64_t i) {
  switch (x.dtype) {
    case DType::f32:
      return static_cast<const float*>(x.data)[i];
    case DType::f16:
      return to_float(static_cast<const Float16*>(x.data)[i]);
    case DType::bf16:
      return to_float(static_cast<const BFloat16*>(x.data)[i]);
    case DType::f64:
      break;
  }
  return static_cast<const double*>(x.data)[i];
}

std::vector<double> doubles(const View& rows) {
  std::vector<double> out(static_cast<std::size_t>(rows.length() * rows.dim()));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = element(rows, static_cast<std::int64_t>(i));
  return out;
}

// Half the distance between neighbouring numbers of the dtype, relative: what rounding a result to it may cost.
double rounding(DType dtype) {
  return dtype == DType::bf16 ? std::ldexp(1.0, -8) : dtype == DType::f16 ? std::ldexp(1.0, -11) : 0;
}

// Kernels that multiply bf16 round each weight to it too, from 32 dimensions on (docs/numerics.md).
bool weights_are_rounded(const Problem& problem) {
  const std::string kernel = kernel_name();
  return problem.dtype == DType::bf16 && problem.dim >= 32 && (kernel == "avx512_bf16" || kernel.starts_with("amx"));
}

// The first, the last, and others spread over the length by the golden ratio.
std::set<std::int64_t> sampled(std::int64_t length, std::int64_t head) {
  std::set<std::int64_t> rows = {0, length - 1};
  for (std::int64_t n = 0; n < kRowsPerHead - 2; ++n) {
    const double place = std::fmod(0.6180339887 * static_cast<double>(head * kRowsPerHead + n + 1), 1.0);
    rows.insert(std::min(length - 1, static_cast<std::int64_t>(place * static_cast<double>(length))));
  }
  return rows;
}

// One KV head in double; values stand beside their absolute values, so that one call gives both sums.
struct DoubleHead {
  DoubleHead(const Problem& problem, const Inputs& inputs, std::int64_t kv_head)
      : dim(problem.dim), keys(doubles(rows_of(inputs.k, kv_head, 0, problem.length))), values(keys.size() * 2) {
    const std::vector<double> v = doubles(rows_of(inputs.v, kv_head, 0, problem.length));
    for (std::size_t i = 0; i < v.size(); ++i) {
      const std::size_t d = i % static_cast<std::size_t>(dim);
      values[2 * (i - d) + d] = v[i];
      values[2 * (i - d) + static_cast<std::size_t>(dim) + d] = std::abs(v[i]);
    }
  }
  std::int64_t dim;
  std::vector<double> keys, values;
};

double largest_score(const Problem& problem, const DoubleHead& head, const std::vector<double>& q, std::int64_t i) {
  double largest = 0;
  for (std::int64_t j = first_visible(problem, i); j <= i; ++j) {
    double dot = 0;
    for (std::int64_t d = 0; d < head.dim; ++d) {
      dot += q[static_cast<std::size_t>(d)] * head.keys[static_cast<std::size_t>(j * head.dim + d)];
    }
    largest = std::max(largest, std::abs(dot));
  }
  return largest / std::sqrt(static_cast<double>(head.dim));
}

void check_row(const Problem& problem, const DoubleHead& head, const View& q_row, const View& out_row, std::int64_t i,
               CheckResult& result) {
  const std::int64_t D = problem.dim;
  const std::vector<double> q = doubles(q_row);
  std::vector<double> exact(static_cast<std::size_t>(2 * D));
  AttentionOptions options;
  options.mask = mask_of(problem, i);
  attention(view_of(q.data(), {1, 1, 1, D}), view_of(head.keys.data(), {1, 1, problem.length, D}),
            view_of(head.values.data(), {1, 1, problem.length, 2 * D}), view_of(exact.data(), {1, 1, 1, 2 * D}),
            options);

  const double eps = 8 * std::ldexp(1.0, -23) * (1 + largest_score(problem, head, q, i));
  for (std::int64_t d = 0; d < D; ++d) {
    const double expected = exact[static_cast<std::size_t>(d)];
    const double weights = weights_are_rounded(problem) ? rounding(DType::bf16) : 0;
    const double sum_bound = (eps + weights) * exact[static_cast<std::size_t>(D + d)];
    const double allowed = sum_bound + rounding(problem.dtype) * (std::abs(expected) + sum_bound);
    const double error = std::abs(element(out_row, d) - expected);
    const double ratio = error == 0 ? 0 : error / allowed;
    if (!(ratio <= 1)) result.passed = false;  // also for NaN
    if (!(error <= result.error)) result.error = error;
    if (!(ratio <= result.ratio)) {
      result.ratio = ratio;
      result.allowed = allowed;
    }
  }
  ++result.rows;
}

}  // namespace

CheckResult check_rows(const Problem& problem, const Inputs& inputs, const Tensor& out) {
  CheckResult result;
  const std::int64_t group = problem.heads / problem.kv_heads;
  for (std::int64_t kv = 0; kv < problem.kv_heads; ++kv) {
    const DoubleHead head(problem, inputs, kv);
    for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) {
      for (const std::int64_t i : sampled(problem.length, h)) {
        check_row(problem, head, rows_of(inputs.q, h, i, 1), rows_of(out, h, i, 1), i, result);
      }
    }
  }
  return result;
}

}  // namespace attend::cli
