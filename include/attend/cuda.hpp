// The same attention on an NVIDIA GPU: views of device memory, and a stream that the work is put on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "attend/attention.hpp"
#include "attend/export.h"
#include "attend/lens.hpp"

namespace attend::cuda {

// Whether attention() below can run in this process: the library was built with nvcc, and there is a driver and a GPU
// that it has kernels for: Hopper's own for compute capability 9.0 (H100, H200), plain ones for 8.0 and all later.
// ATTEND_CUDA_KERNELS=plain, read at the first call, chooses these on Hopper as well.
ATTEND_API bool available();
// Why not, in a sentence; empty where available() is true.
ATTEND_API std::string why_not();

// A CUstream or cudaStream_t; null: the default stream. Its context is the calling thread's current one, or, where
// there is none, the first device's own.
using Stream = void*;

// The caller's source of temporary device memory for one call, in the order of the call's stream: `free` may be
// followed by an `allocate` that returns the same memory while kernels launched before still use it. Blocks are aligned
// to 256 bytes. Without one, a call allocates from attend's own pool on the stream.
class ATTEND_API Allocator {
 public:
  virtual void* allocate(std::int64_t bytes) = 0;  // throws when out of memory
  virtual void free(void* memory) = 0;

 protected:
  ~Allocator() = default;
};

// As attend::attention, for views of device memory: bf16 and f16, D and E up to 256. So are the views in the options
// and extras, and the data of a dense mask. Returns once the work is on the stream. It takes temporary memory from
// `allocator` or a pool on the stream, waits for nothing and can be captured in a graph. What it cannot do throws
// InvalidArgument with its name: score rules, weights, row sums, f32 and f64, unions of masks, statistics together with
// dropout; the plain kernels also statistics, and D and E that are no multiples of 8. The bits of a row do not depend
// on the batch and the heads around it.
ATTEND_API void attention(View q, View k, View v, MutableView out, const AttentionOptions& options = {},
                          const AttentionExtras& extras = {}, Stream stream = nullptr, Allocator* allocator = nullptr);

// In which order the parts of dq are added: that of the keys, the same bits every time; or as they come. The plain
// kernels have one order.
enum class Order { fixed, free };

// As attend::attention_backward. Memory beyond the arguments is linear in M, fixed order included. The gradient
// of a bias where each score has an element of its own, in f32.
ATTEND_API void attention_backward(View dout, View q, View k, View v, View out, View lse,
                                   const AttentionGradients& gradients, const AttentionOptions& options = {},
                                   Order order = Order::fixed, Stream stream = nullptr, Allocator* allocator = nullptr);

// ---- The lens ----

// Cells of the weights over an area, as PooledMap has them: as many as `mass` has rows and columns. One row of cells
// over all queries is the attention that each key receives; with a cell to each query and key it is the weights.
struct MapView {
  LensArea area{};
  MutableView mass;                   // [1, 1, rows, cols], f32: sum of the weights in the cell
  std::optional<MutableView> peak{};  // the same: the largest of them
};

// As Lens::map, for one head of views of device memory: a second sweep over QK^T with the LSE known, [B, H, M, 1], f32,
// as attention() gave it for the same options. Masks and scores are attention()'s, on all cards, D a multiple of 8;
// dropout is left out. Memory beyond the arguments: 8 bytes for each piece of a row of cells (as many as it has cells,
// and one for every 32 keys), cut to 256 MB or what one row of cells needs; 20 bytes for each query; and with blocks()
// or dense() a bit for each query and key of the head. Sums have one order: the same bits every time.
ATTEND_API void map(View q, View k, View lse, LensHead head, const MapView& map, const AttentionOptions& options = {},
                    Stream stream = nullptr);

// ---- Caches of keys and values, for decoding: compute capability 9.0 alone ----

// The numbers of a cache: of the queries' dtype, or of 8 bits, each times the scale of its row.
enum class CacheFormat { plain, int8, fp8 };  // fp8: e4m3, PyTorch's float8_e4m3fn

// The keys, or the values, of a cache. With tables of several pages the tokens of a page are a multiple of 16.
struct CachePages {
  void* data = nullptr;  // written by append() alone
  Shape shape{};         // [pages, KV heads, tokens of a page, dim]
  // In elements; the last is 1, the others are multiples of 16 bytes.
  Strides strides = default_strides(shape);
  // f32 [1|pages, 1|KV heads, 1|tokens of a page, 1], a dimension of size 1 is repeated. int8 has one for each row, as
  // PagedKvCache has: the largest of the row / 127; fp8 may have one for each row, for each head, or none: 1.
  std::optional<MutableView> scales{};
};

// Running sequences in a cache. The table and the lengths lie in device memory and are read by the kernels: a captured
// graph sees what stands there when it runs; nothing may write to them meanwhile. A length is cut to 0 .. what the
// sequence's pages hold; a page that does not exist is never read, and counts as zeros.
struct CacheView {
  CacheFormat format = CacheFormat::plain;
  CachePages k, v;
  const std::int32_t* lengths = nullptr;  // [batch]: tokens of each; null: as many as its pages hold
  // [batch, table_pages], rows `table_stride` numbers apart: the pages of each sequence. Null: sequence b is page b.
  const std::int32_t* table = nullptr;
  std::int64_t table_pages = 0, table_stride = 0;
};

// Memory of the caller's for one call, from 256 bytes' alignment on; without it a call takes its own from the pool.
struct WorkingMemory {
  void* data = nullptr;
  std::int64_t bytes = 0;
};
// How many bytes a call over this cache needs at most: by the shapes alone, whatever the lengths.
ATTEND_API std::int64_t working_bytes(View q, const CacheView& cache);

// Attention over cached keys: q [B, H, M, D], batch b reading sequence b, out [B, H, M, E]. The last query of each
// stands at its last key; masks are causal() and window(), counted from there. Scale, soft-cap, ALiBi, sinks and LSE;
// the rest is refused by name. Nothing is copied from or to the host, nothing waits; with memory of the caller's
// nothing is allocated. The bits of a row follow from its queries, keys, values and length alone: over bf16 and f16, up
// to 8 rows of a KV head, more than 128 keys, no soft-cap, no ALiBi and a scale up to 64 they are attention()'s over as
// many. Every 8 rows of a KV head (M times the query heads that share it) read the keys once more: for few queries.
ATTEND_API void attention(View q, const CacheView& cache, MutableView out, const AttentionOptions& options = {},
                          const AttentionExtras& extras = {}, Stream stream = nullptr, WorkingMemory memory = {});

// Writes keys [B, Hk, T, D] and values [B, Hk, T, E], of the dtype that queries will have, behind the tokens that
// `cache.lengths` says there are, which stay as they are: the caller moves them on. Where int8 and fp8 have a scale for
// each row, it is made here, unless `own_scales` is false; other scales are taken as they are, and what is too large
// for them becomes the largest. Tokens past the last page, and those of a page that does not exist, are not written.
ATTEND_API void append(View k, View v, const CacheView& cache, bool own_scales = true, Stream stream = nullptr);

}  // namespace attend::cuda
