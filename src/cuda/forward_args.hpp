// What a launch of the forward kernels is given, as plain data.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/device_mask.hpp"
#include "cuda/small_tanh.hpp"

namespace attend::cuda {

// A view of device memory: element strides; 0 repeats.
struct DeviceOperand {
  const void* data = nullptr;  // null: off
  int dtype = 0;               // DType
  std::int64_t batch_stride = 0, head_stride = 0, row_stride = 0, dim_stride = 0;
  int pairs = 0;  // 1: half types whose neighbours can be written together
};

// How a score becomes a logit, beside the scale.
struct ScoreTerms {
  float softcap = 0;  // 0: off
  DeviceOperand bias, alibi;
  PerBatch alibi_offsets;
  int alibi_last_key = 0;
  std::uint64_t dropout_seed = 0;
  std::uint32_t dropout_threshold = 0;  // 0: off
  float dropout_scale = 1;
};

// The statistics of rows that are wanted beside the output.
constexpr int kStatisticColumns = 13;  // in the order of RowStatistic
struct StatisticsArgs {
  DeviceOperand rows;  // [B, H, M, kStatisticColumns], f32, written; null: not wanted
  PerBatch offsets;    // where queries stand among the keys
  int last_key = 0;
  int sink_tokens = 0, sinks_apart = 0, local_width = 0, recent_width = 0;
  const float* tokens = nullptr;        // [B, token_row]: a number for each key's, NaN: nobody's; null: not known
  const float* query_tokens = nullptr;  // [B, M]
  std::int64_t token_row = 0;
  std::int64_t to_before = 0;  // from a key's token to that of the key before it
};

// The results of several parts of the keys, and what they are joined to.
struct KeyParts {
  int count = 1;
  int has_rest = 0;             // 1: behind all LSEs, for each what of a large one f32 does not hold
  float* out = nullptr;         // [count][B][H][M][row_floats]
  float* lse = nullptr;         // [count][B][H][M]
  float* statistics = nullptr;  // [count][B][H][M][kStatisticColumns], where they are wanted
  int B = 0, H = 0, G = 1, M = 0, E = 0, row_floats = 0;
  // Parts of KV heads that a block has, one after another, the first `more` blocks one more: it folds the heads of
  // which it has all. 0: nobody does.
  int each = 0, more = 0;
  DeviceOperand sinks;
  DeviceOperand joined, joined_statistics;  // written
  float* joined_lse = nullptr;
  std::int64_t lse_batch_stride = 0, lse_head_stride = 0, lse_row_stride = 0;

  ATTEND_HOST_DEVICE std::int64_t rows() const { return static_cast<std::int64_t>(B) * H * M; }
  ATTEND_HOST_DEVICE float* rest() const { return lse + count * rows(); }
};

struct ForwardArgs {
  CUtensorMap q, k, v, out;  // q and out: dim, packed head, token, head, batch; k and v: dim, key, head, batch
  DeviceMask mask;
  ScoreTerms terms;
  StatisticsArgs statistics;
  DeviceOperand sinks;
  float* lse = nullptr;  // null: not wanted
  std::int64_t lse_batch_stride = 0, lse_head_stride = 0, lse_row_stride = 0;
  float scale = 1;   // a score's factor
  float scale2 = 1;  // what makes a score, or a logit where there are terms, an exponent of 2
  int B = 0, H = 0;  // H: heads of q as the map has them, H / packed where heads are packed into rows
  int group = 1;     // of those heads to a KV head
  int packed = 1;    // query heads that lie in consecutive rows of a tile
  int M = 0, N = 0, D = 0, E = 0;
  int row_tiles = 0;  // for each head
  int section = 1;    // heads that are worked on side by side: their keys and values fit the L2
  int splits = 1;     // of the keys; each of split_keys
  int split_keys = 0;
  KeyParts parts;                                  // where there are splits
  int* counter = nullptr;                          // zero before the launch and after it
  DeviceOperand q_rows, k_rows, v_rows, out_rows;  // for the plain kernels, which use no maps
  SmallTanh cap;                                   // where there is a soft-cap
};

}  // namespace attend::cuda
