// The lens: exact maps, sums, rows and single cells of attention weights at any length, without storing the matrix.
//
// The statistics of rows come out of attention() itself (AttentionExtras::statistics). All else here is a second sweep
// over QK^T for the heads one looks at, with the LSE of each row known.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "attend/attention.hpp"
#include "attend/export.h"
#include "attend/paged_kv_cache.hpp"
#include "attend/row_statistics.hpp"
#include "attend/state_pointer.hpp"
#include "attend/tensor.hpp"

namespace attend {

// One matrix of weights: what query head `head` of sequence `batch` looks at.
struct LensHead {
  std::int64_t batch = 0, head = 0;
};

// Queries [first_query, first_query + queries) against keys [first_key, first_key + keys). kToTheEnd: to the last one.
inline constexpr std::int64_t kToTheEnd = -1;
struct LensArea {
  std::int64_t first_query = 0, queries = kToTheEnd;
  std::int64_t first_key = 0, keys = kToTheEnd;
};

// Some finished rows of cells of a map, as they come.
struct MapBand {
  LensHead head;
  std::int64_t first_row, rows;  // of cells; every band holds whole ones, each comes once, in no order
  const float* mass;             // [rows, cols]
  const float* peak;             // [rows, cols]
  std::int64_t cols;
  std::int64_t done, total;  // rows of cells finished so far, this band with them, and of all that was asked for
};
// False ends the sweep: the map is then not finished. Called by one thread at a time; an exception comes out of map().
using MapProgress = std::function<bool(const MapBand&)>;

// A map of `rows` x `cols` cells over an area: cell (r, c) holds queries [first + r * queries / rows, first + (r + 1) *
// queries / rows), rounded down, and keys likewise. With a cell to each query and key it is the weights themselves.
struct MapOptions {
  LensArea area{};
  std::int64_t rows = 512, cols = 512;  // at most the area's queries and keys: more are cut to those
  MapProgress progress{};
};
struct PooledMap {
  LensArea area;            // as it was taken, no kToTheEnd left
  std::int64_t rows, cols;  // cells
  bool finished = true;     // false: `progress` ended it, and cells of bands that did not come are 0
  Tensor mass;              // [1, 1, rows, cols], f32: sum of the weights in the cell
  Tensor peak;              // [1, 1, rows, cols], f32: the largest of them
  std::int64_t query_of(std::int64_t row) const {  // the first query of a row of cells; that of `rows` is the end
    return area.first_query + row * area.queries / rows;
  }
  std::int64_t key_of(std::int64_t col) const { return area.first_key + col * area.keys / cols; }
};
// The map and what becomes of it when rows and columns are halved for as long as both are even: exactly what a sweep at
// that resolution gives, up to the rounding of sums. Level 0 is the map.
ATTEND_API std::vector<PooledMap> pyramid(PooledMap map);

// The `count` largest weights of each row, the largest first, of equal ones the lower key first. A row that has fewer
// weights above 0 ends with key -1 and weight 0.
struct TopKeys {
  std::int64_t first_query, queries, count;
  std::vector<std::int64_t> keys;  // [queries, count]
  Tensor weights;                  // [1, 1, queries, count], f32
};

// How many weights are how large: bin n counts those in [2^-(n + 1), 2^-n), weight 1 in bin 0 and all below 2^-bins in
// `below`; keys that the mask hides in none.
struct WeightHistogram {
  std::vector<std::int64_t> counts;  // [bins]
  std::int64_t below;                // visible keys whose weight is smaller, or 0
};

// The whole arithmetic of one weight, in double:
//   dot = sum of products;  scaled = scale * dot;  capped = softcap * tanh(scaled / softcap), or scaled;
//   ruled = rule(capped), or capped;  score = ruled + bias - alibi;  weight = visible ? exp(score - lse) : 0
struct CellArithmetic {
  std::vector<double> q, k, products;  // [D]
  double dot, scale, scaled;
  double softcap, capped;  // softcap 0: off
  double ruled;
  double bias;                                // 0 where there is none; -inf hides the key
  double alibi_slope, alibi_distance, alibi;  // alibi = slope * |distance|
  double score;
  bool visible;                     // what mask and bias say
  double lse;                       // of the row, the learned sink included; -inf: it sees nothing
  std::optional<double> sink;       // the head's learned sink, as a logit
  double sink_weight;               // what it takes of the row
  double weight;                    // before dropout
  std::vector<double> v, weighted;  // [E]; weighted = weight * v. Empty without values
};

struct LensOptions {
  std::optional<View> lse{};  // [B, H, M, 1] as attention() gave it for the same options; else swept for when needed
  std::optional<View> v{};    // [B, Hk, N, E]: for cells alone
};

// Looks at the weights of one call of attention. Holds views and options, and copies nothing: q, k, the cache and all
// that the options point to must live as long, unchanged. f64 is computed by the reference. One thread uses a lens at a
// time; the work inside is spread over all.
class ATTEND_API Lens {
 public:
  Lens(View q, View k, const AttentionOptions& options = {}, const LensOptions& lens = {});
  // Over cached keys, as attention() over a cache takes them: batch b reads sequences[b], N is the longest of them.
  Lens(View q, const PagedKvCache& cache, std::span<const std::int64_t> sequences, const AttentionOptions& options = {},
       const LensOptions& lens = {});
  ~Lens();
  Lens(Lens&&) noexcept;
  Lens& operator=(Lens&&) noexcept;

  std::int64_t batches() const;
  std::int64_t heads() const;    // H, of the queries
  std::int64_t queries() const;  // M
  std::int64_t keys() const;     // N

  // The statistics of all rows, [B, H, M, kRowStatistics]: one forward sweep without values. Where attention() is run
  // anyway, ask it for them.
  Tensor statistics(const RowStatisticsOptions& options = {}) const;
  // [B, H, M, 1]: given, or swept for at the first need and kept.
  View lse() const;

  PooledMap map(LensHead head, const MapOptions& options = {}) const;
  // The attention each key receives: [1, 1, 1, keys of the area], f32, the sum over the area's queries.
  Tensor received(LensHead head, const LensArea& area = {}) const;
  TopKeys top_keys(LensHead head, std::int64_t count, const LensArea& area = {}) const;
  WeightHistogram histogram(LensHead head, std::int64_t bins = 32, const LensArea& area = {}) const;

  // The weights themselves, f32 (f64 for f64 inputs): of an area [1, 1, queries, keys], of a row [1, 1, 1, N], of a
  // column [1, 1, M, 1].
  Tensor zoom(LensHead head, const LensArea& area) const;
  Tensor row(LensHead head, std::int64_t query) const;
  Tensor column(LensHead head, std::int64_t key) const;
  CellArithmetic cell(LensHead head, std::int64_t query, std::int64_t key) const;

 private:
  struct State;
  StatePointer<std::unique_ptr<State>> state_;
};

}  // namespace attend
