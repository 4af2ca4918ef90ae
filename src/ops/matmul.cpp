// The strided matrix product: blocks of rows and columns over the threads.
#include "ops/matmul.hpp"

#include <algorithm>

#include "base/checked.hpp"
#include "base/elements.hpp"
#include "base/threads.hpp"
#include "cpu/dispatch.hpp"
#include "ops/scratch.hpp"

namespace attend {
namespace {

constexpr std::int64_t kRowsPerItem = 96;  // any number gives the same bits
constexpr std::int64_t kMaxPackedBytes = 16 << 20;
constexpr std::int64_t kItemsPerThread = 8;

void matmul_f64(const Matrix& a, const Matrix& b, const std::optional<Matrix>& bias, const MutableMatrix& c, bool add) {
  parallel_for(c.rows, [&](std::int64_t i, int) {
    for (std::int64_t j = 0; j < c.cols; ++j) {
      double sum = 0;
      for (std::int64_t k = 0; k < a.cols; ++k)
        sum += load_element(a.dtype, a.data, i * a.row_stride + k * a.col_stride) *
               load_element(b.dtype, b.data, k * b.row_stride + j * b.col_stride);
      if (bias) sum += load_element(bias->dtype, bias->data, j * bias->col_stride);
      const std::int64_t place = i * c.row_stride + j * c.col_stride;
      store_element(c.dtype, c.data, place, add ? load_element(c.dtype, c.data, place) + sum : sum);
    }
  });
}

// A dimension of one element takes no step, whatever its stride says: steps past the end must not overflow.
template <class M>
MatrixRef ref(const M& m) {
  return {m.dtype, const_cast<void*>(static_cast<const void*>(m.data)), m.rows > 1 ? m.row_stride : 0,
          m.cols > 1 ? m.col_stride : 0};
}

}  // namespace

void matmul(const Matrix& a, const Matrix& b, const std::optional<Matrix>& bias, const MutableMatrix& c, bool add) {
  if (c.rows == 0 || c.cols == 0) return;
  if (c.dtype == DType::f64) return matmul_f64(a, b, bias, c, add);
  const KernelTable& table = kernels();
  const MatrixRef bias_ref = bias ? ref(*bias) : MatrixRef{};
  const MatmulProblem p{c.rows, c.cols, a.cols, ref(a), ref(b), ref(c), bias ? &bias_ref : nullptr, add};
  const std::int64_t row_items = divide_up(c.rows, kRowsPerItem);
  const std::int64_t col_items = divide_up(c.cols, kKeyTile);
  const Scratch scratch(table.matmul_scratch_bytes(std::min(c.rows, kRowsPerItem)));
  // Columns that several items read are packed once before, as many at a time as fit.
  constexpr std::int64_t kLongestShared = std::int64_t{1} << 32;  // repeated columns (stride 0) may be any number
  const bool shared = row_items > 1 && a.cols > 0 && a.cols <= kLongestShared;
  const std::int64_t tile_bytes = shared ? table.matmul_packed_bytes(p) : 0;
  const std::int64_t at_once =
      shared ? std::clamp<std::int64_t>(kMaxPackedBytes / tile_bytes, 1, col_items) : col_items;
  const Scratch memory(shared ? checked_product("matmul", {tile_bytes, at_once}) : 0, 1);
  auto* packed = static_cast<char*>(memory.of(0));
  for (std::int64_t first = 0; first < col_items; first += at_once) {
    const std::int64_t count = std::min(at_once, col_items - first);
    if (shared)
      parallel_for(count, scratch.workers(), [&](std::int64_t item, int worker) {
        table.matmul_pack(p, (first + item) * kKeyTile, packed + item * tile_bytes, scratch.of(worker));
      });
    // As many tiles an item as leave everyone several items: rows of a are then read, or copied, once for them.
    const std::int64_t most = std::max<std::int64_t>(1, row_items * count / (kItemsPerThread * scratch.workers()));
    const std::int64_t groups = divide_up(count, most), tiles_each = divide_up(count, groups);
    parallel_for(row_items * groups, scratch.workers(), [&](std::int64_t item, int worker) {
      const std::int64_t row = item / groups * kRowsPerItem, tile = item % groups * tiles_each;
      const std::int64_t end = std::min(first + std::min(tile + tiles_each, count), col_items) * kKeyTile;
      if (tile >= count) return;
      table.matmul(p, row, std::min(kRowsPerItem, c.rows - row), (first + tile) * kKeyTile, std::min(end, c.cols),
                   shared ? packed + tile * tile_bytes : nullptr, scratch.of(worker));
    });
  }
}

std::int64_t block_product_scratch_bytes() {
  return kernels().matmul_scratch_bytes(kRowsPerItem);
}

void block_product(const FloatMatrix& a, const FloatMatrix& b, const FloatMatrix& c, bool add, void* scratch) {
  if (c.rows == 0 || c.cols == 0) return;
  const auto ref = [](const FloatMatrix& m) { return MatrixRef{DType::f32, m.data, m.row_stride, m.col_stride}; };
  const KernelTable& table = kernels();
  const MatmulProblem p{c.rows, c.cols, a.cols, ref(a), ref(b), ref(c), nullptr, add};
  for (std::int64_t row = 0; row < c.rows; row += kRowsPerItem)
    table.matmul(p, row, std::min(kRowsPerItem, c.rows - row), 0, c.cols, nullptr, scratch);
}

}  // namespace attend
