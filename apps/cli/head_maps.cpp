// Where one head looks: weights by blocks of queries, summed into cells and forgotten.
#include "head_maps.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "attend/attention.hpp"

namespace attend::cli {
namespace {

draw::HeatMap empty_map(const Problem& problem, std::int64_t most_cells) {
  draw::HeatMap map;
  const std::int64_t cell = (problem.length + most_cells - 1) / most_cells, cells = (problem.length + cell - 1) / cell;
  map.values = draw::grid_of(cells, cells, draw::kMasked);
  for (draw::TokenAxis* axis : {&map.across, &map.down}) axis->per_cell = cell, axis->tokens = problem.length;
  return map;
}

// Adds the weights of query i over the keys it sees.
void add_query(draw::HeatMap& map, std::int64_t i, const float* weights, std::int64_t first, std::int64_t last) {
  const std::int64_t cell = map.down.per_cell, row = i / cell;
  const std::int64_t queries = std::min(cell, map.down.tokens - row * cell);
  for (std::int64_t col = first / cell; col <= last / cell; ++col) {
    const std::int64_t from = std::max(first, col * cell), to = std::min(last + 1, (col + 1) * cell);
    const double sum = std::accumulate(weights + from, weights + to, 0.0) / static_cast<double>(queries);
    double& share = map.values.at(row, col);
    share = std::isnan(share) ? sum : share + sum;
  }
}

}  // namespace

std::vector<draw::HeatMap> head_maps(const Problem& problem, const Inputs& inputs, std::int64_t head,
                                     const std::vector<std::int64_t>& most_cells) {
  std::vector<draw::HeatMap> maps;
  std::transform(most_cells.begin(), most_cells.end(), std::back_inserter(maps),
                 [&](std::int64_t most) { return empty_map(problem, most); });
  const std::int64_t kv = head / (problem.heads / problem.kv_heads);
  // 16 MiB of weights at a time.
  const std::int64_t block = std::clamp<std::int64_t>((std::int64_t{4} << 20) / problem.length, 1, 128);
  for (std::int64_t first = 0; first < problem.length; first += block) {
    const std::int64_t count = std::min(block, problem.length - first);
    const std::int64_t keys = first + count;  // none of these queries sees a later one
    AttentionOptions options;
    options.mask = mask_of(problem, first);
    const AttentionResult result = attention(rows_of(inputs.q, head, first, count), rows_of(inputs.k, kv, 0, keys),
                                             rows_of(inputs.v, kv, 0, keys), options, {.lse = false, .weights = true});
    for (std::int64_t r = 0; r < count; ++r) {
      const float* weights = result.weights.data<float>() + r * keys;
      for (draw::HeatMap& map : maps) add_query(map, first + r, weights, first_visible(problem, first + r), first + r);
    }
  }
  return maps;
}

}  // namespace attend::cli
