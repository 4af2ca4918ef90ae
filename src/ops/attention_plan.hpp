// How rows are cut into items of work: any cut gives the same bits, so it may follow the machine.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/checked.hpp"
#include "core/attention_problem.hpp"

namespace attend {

// The rows of every KV head in pieces of rows_each, numbered from the end: with a causal mask the longest come first.
struct RowTiles {
  static constexpr std::int64_t kMostRows = 192;

  RowTiles(const AttentionProblem& p, std::int64_t block_rows, int threads) : B(p.B), Hk(p.Hk), rows(p.M * p.G) {
    constexpr std::int64_t kCacheBytes = 512 << 10;  // what a worker's rows may take of its L2
    const std::int64_t row_bytes = (p.D + 2 * p.E) * std::int64_t{sizeof(float)};
    rows_each = std::clamp(kCacheBytes / row_bytes / block_rows * block_rows, block_rows, kMostRows);
    while (rows_each > 2 * block_rows && count() < std::int64_t{4} * threads) rows_each /= 2;
    rows_each = std::min(rows_each, std::max<std::int64_t>(rows, 1));
  }

  std::int64_t per_head() const { return divide_up(rows, rows_each); }
  std::int64_t count() const { return B * Hk * per_head(); }
  RowRange range(std::int64_t head, std::int64_t nth) const {  // nth from the end
    const std::int64_t tile = per_head() - 1 - nth;
    return {head / Hk, head % Hk, tile * rows_each, std::min(rows, (tile + 1) * rows_each)};
  }

  std::int64_t B, Hk, rows, rows_each;
};

}  // namespace attend
