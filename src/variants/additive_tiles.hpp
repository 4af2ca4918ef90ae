// Tiles of additive attention: what forward and backward share.
#pragma once

#include <cstdint>
#include <limits>

#include "attend/additive_attention.hpp"
#include "base/checked.hpp"
#include "core/mask_plan.hpp"
#include "cpu/kernel_table.hpp"
#include "ops/matmul.hpp"
#include "ops/scratch.hpp"

namespace attend::additive {

inline constexpr std::int64_t kBlock = 64;  // rows worked on at once
inline constexpr double kLog2e = 1.4426950408889634;
inline constexpr float kHidden = -std::numeric_limits<float>::infinity();  // the score of a key that is not seen

// Row i of a head as floats; the rest up to `padded` is 0. The largest magnitude, NaN if there is one.
float load_floats(const View& x, std::int64_t b, std::int64_t h, std::int64_t i, float* to, std::int64_t padded);
void store_floats(const MutableView& x, std::int64_t b, std::int64_t h, std::int64_t i, const float* from);

// sum += p . x over 64 keys or rows at most. `finite`: x holds numbers alone; else a weight of 0, which a hidden key
// has, takes nothing from it.
void weighted_sum(const FloatMatrix& p, const FloatMatrix& x, const FloatMatrix& sum, bool finite, void* scratch);

struct Problem {
  Problem(const View& queries, const View& keys, const View& weights, const View& values, const MaskPlan& lowered,
          double scale);

  std::int64_t B, H, Hk, M, N, D, E;
  std::int64_t stride;  // D rounded up to whole vectors
  std::int64_t tiles;   // of keys
  double scale;
  View a, b, v;
  const MaskPlan& mask;
  Buffer<float> w;          // [H][stride]
  Buffer<float> half_sums;  // [H]: half the sum of w
};

// The exponents of every key, once for all rows: along the keys for scores, along the dimensions for gradients.
class Keys {
 public:
  Keys(const Problem& p, bool backward);

  std::int64_t index(std::int64_t b, std::int64_t h, std::int64_t tile) const {
    return (b * p_.Hk + h / (p_.H / p_.Hk)) * p_.tiles + tile;
  }
  const float* columns(std::int64_t index) const { return columns_.data() + index * p_.D * kKeyTile; }
  const float* rows(std::int64_t index) const { return rows_.data() + index * kKeyTile * p_.stride; }
  float largest(std::int64_t index) const { return largest_[index]; }  // magnitude, NaN if there is one

  // The keys themselves: [kKeyTile][stride]. Returns largest().
  float load_tile(std::int64_t index, float* to) const;
  void transpose(const float* rows, float* columns) const;

 private:
  const Problem& p_;
  Buffer<float> columns_, rows_, largest_;
};

// What a worker needs for a block of rows.
struct Work {
  static std::int64_t bytes(const Problem& p);
  Work(const Problem& p, void* memory);

  void* product;
  float *q, *q_exponents;         // [kBlock][stride]
  float *key_rows, *key_columns;  // a tile of keys outside the range of exponents
  float *scores, *dp, *ds;        // [kBlock][kKeyTile]
  float* v;                       // [kKeyTile][E]
  float *out, *dout;              // [kBlock][E]
  float *dq, *dw;                 // [kBlock][stride], [stride]
  float *largest, *max, *sum, *delta;
  std::int64_t *lo, *hi;  // the keys each row sees
  bool v_finite = true;
};

// Rows [i, i + rows) of a head.
struct Block {
  std::int64_t b, h, i, rows;
};

// The range of tiles that the intervals of a block touch.
struct TileRange {
  TileRange(const Block& block, const Work& work);
  std::int64_t begin, end;
};

void load_queries(const Problem& p, const Block& block, Work& work);
void load_values(const Problem& p, const Block& block, std::int64_t tile, Work& work);

// The tile's scores in units of ln 2, hidden ones -inf. False when nothing of it is visible.
bool make_scores(const Problem& p, const Keys& keys, const Block& block, std::int64_t tile, Work& work);

// With work.ds for the tile that make_scores saw last: adds to work.dq, and to dk [kKeyTile][stride]; sets work.dw.
// What they lack is a factor: 4 w for dq and dk, -2 for dw.
void add_gradients(const Problem& p, const Keys& keys, const Block& block, std::int64_t tile, float* dk, Work& work);

}  // namespace attend::additive
