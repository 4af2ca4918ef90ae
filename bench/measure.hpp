// Timing: interleaved repetitions, medians with spread.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

namespace attend::bench {

inline double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Sample {
  double median, low, high;  // the quartiles stand for the spread
};

inline Sample summary(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return {x[x.size() / 2], x[x.size() / 4], x[x.size() - 1 - x.size() / 4]};
}

// Runs all candidates once per round, round after round, so that noise of the machine meets every one of them.
// The first round warms up and is not counted.
inline std::vector<Sample> interleave(const std::vector<std::function<double()>>& candidates, int rounds) {
  std::vector<std::vector<double>> values(candidates.size());
  for (int round = -1; round < rounds; ++round)
    for (std::size_t c = 0; c < candidates.size(); ++c) {
      const double value = candidates[c]();
      if (round >= 0) values[c].push_back(value);
    }
  std::vector<Sample> result;
  for (auto& v : values) result.push_back(summary(std::move(v)));
  return result;
}

}  // namespace attend::bench
