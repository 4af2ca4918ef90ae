// For fuzzers of kernels: bounds that do not fall to nothing where the naive method was exact by luck.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <vector>

#include "support/compare.hpp"

namespace attend::test {

// As compare(). Its bound rests on the naive method's largest error in a matrix, and a fuzzer that looks long enough
// finds a matrix of one element where that is 0. What is beyond its bound is therefore judged once more, by the largest
// error of that element in problems with the same scores and the same values, given to other keys.
inline std::vector<std::string> compare_without_luck(const Problem& problem, const Mask& mask, const Truth& truth,
                                                     Results naive, const Computed& computed) {
  std::vector<std::string> failures = compare(problem, truth, naive, computed);
  if (failures.empty() || computed.dtype == DType::f64) return failures;
  constexpr std::ptrdiff_t kOthers = 8;
  for (std::ptrdiff_t turn = 1; turn <= kOthers; ++turn) {
    Problem other(problem.info);
    other.set_mask(mask);
    for (auto* values : {&other.v, &other.dout}) {
      if (values->empty()) continue;
      std::rotate(values->begin(), values->begin() + turn * 7 % std::ssize(*values), values->end());
    }
    const Results exact = true_attention(other).results;
    const Results rounded = naive_attention(other, computed.dtype);
    for (auto tensor : {&Results::out, &Results::dq, &Results::dk, &Results::dv, &Results::dbias, &Results::dsinks}) {
      for (std::size_t n = 0; n < (naive.*tensor).size(); ++n) {
        const double wanted = (truth.results.*tensor)[n];
        const double error = std::abs((rounded.*tensor)[n] - (exact.*tensor)[n]);
        if (error > std::abs((naive.*tensor)[n] - wanted)) (naive.*tensor)[n] = wanted + error;
      }
    }
  }
  return compare(problem, truth, naive, computed);
}

}  // namespace attend::test
