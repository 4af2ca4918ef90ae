// Weights laid out for the kernels, and projections with several of them at once.
#include "attend/weight.hpp"

#include <algorithm>
#include <new>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "base/checked.hpp"
#include "base/elements.hpp"
#include "base/long_lived_memory.hpp"
#include "base/threads.hpp"
#include "cpu/dispatch.hpp"
#include "ops/scratch.hpp"
#include "ops/weight_pack.hpp"

namespace attend {
namespace {

constexpr std::int64_t kRowsPerItem = 96, kFewestPerItem = 24;  // any number gives the same bits
constexpr std::int64_t kItemsPerWorker = 8;  // wanted at least, so that all end at about the same time
constexpr std::int64_t kRowsRoundedPerItem = 8;
constexpr std::int64_t kFewRows = 4;                  // which the calling thread rounds by itself
constexpr std::int64_t kMostRoundedBytes = 16 << 20;  // rows of x rounded at a time

bool quantised(WeightFormat format) {
  return layout_of(format).scales != WeightScales::floats;
}

void check_size(const char* op, WeightFormat format, std::int64_t out, std::int64_t in) {
  if (layout_of(format).bits == 0)
    fail(op, "format is " + std::to_string(static_cast<int>(format)) + ", expected one of WeightFormat");
  if (out < 0 || in < 0)
    fail(op, "shape is [" + std::to_string(out) + ", " + std::to_string(in) + "], expected sizes >= 0");
  if (const std::int64_t numbers = block_of(format).numbers; in % numbers != 0)
    fail(op, "in is " + std::to_string(in) + ", expected a multiple of " + std::to_string(numbers) + " (a block of " +
                 name(format) + ")");
}

std::int64_t pieces(std::int64_t count, std::int64_t of) {
  return count / of + (count % of != 0 ? 1 : 0);
}
std::int64_t tiles_of(std::int64_t out) {
  return pieces(out, kKeyTile);
}

}  // namespace

const char* name(WeightFormat format) {
  switch (format) {
    case WeightFormat::f32:
      return "f32";
    case WeightFormat::f16:
      return "f16";
    case WeightFormat::bf16:
      return "bf16";
    case WeightFormat::q4_0:
      return "q4_0";
    case WeightFormat::q4_1:
      return "q4_1";
    case WeightFormat::q5_0:
      return "q5_0";
    case WeightFormat::q5_1:
      return "q5_1";
    case WeightFormat::q8_0:
      return "q8_0";
    case WeightFormat::q4_k:
      return "q4_k";
    case WeightFormat::q5_k:
      return "q5_k";
    case WeightFormat::q6_k:
      return "q6_k";
  }
  return "unknown";
}

WeightBlock block_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::f32:
      return {1, 4};
    case WeightFormat::f16:
    case WeightFormat::bf16:
      return {1, 2};
    case WeightFormat::q4_0:
      return {32, 18};
    case WeightFormat::q4_1:
      return {32, 20};
    case WeightFormat::q5_0:
      return {32, 22};
    case WeightFormat::q5_1:
      return {32, 24};
    case WeightFormat::q8_0:
      return {32, 34};
    case WeightFormat::q4_k:
      return {256, 144};
    case WeightFormat::q5_k:
      return {256, 176};
    case WeightFormat::q6_k:
      return {256, 210};
  }
  return {1, 0};
}

struct Weight::State {
  WeightFormat format;
  std::int64_t out, in, tile_bytes;
  std::shared_ptr<char> tiles;

  // Zeros each tile, and has `pack` fill it with the 64 rows from `first_row` on.
  template <typename Pack>
  void fill_tiles(const Pack& pack) {
    parallel_for(tiles_of(out), [&](std::int64_t n, int) {
      char* tile = tiles.get() + n * tile_bytes;
      std::fill_n(tile, tile_bytes, char{0});
      pack(n * kKeyTile, tile);
    });
  }
};

Weight::Weight() = default;
Weight::~Weight() = default;
Weight::Weight(Weight&&) noexcept = default;
Weight& Weight::operator=(Weight&&) noexcept = default;

Weight::Weight(WeightFormat format, std::int64_t out, std::int64_t in, std::span<const std::byte> data) {
  constexpr const char* kOp = "Weight";
  const std::int64_t bytes = weight_bytes(format, out, in);
  const auto [numbers, block_bytes] = block_of(format);
  const std::int64_t expected = checked_product("Weight: data", {out, in / numbers, block_bytes});
  check_equal(kOp, "data bytes", static_cast<std::int64_t>(data.size()), expected, name(format));
  state_.reset(new State{format, out, in, weight_tile_bytes(format, in), nullptr});
  if (bytes == 0) return;
  state_->tiles = long_lived_memory(bytes);
  state_->fill_tiles(
      [&](std::int64_t first_row, char* tile) { pack_weight_tile(format, data.data(), out, in, first_row, tile); });
}

Weight Weight::dequantised() const {
  Weight floats;
  if (!state_) return floats;
  const std::int64_t out = state_->out, in = state_->in, bytes = weight_bytes(WeightFormat::f32, out, in);
  floats.state_.reset(new State{WeightFormat::f32, out, in, weight_tile_bytes(WeightFormat::f32, in), nullptr});
  if (bytes == 0) return floats;
  floats.state_->tiles = long_lived_memory(bytes);
  floats.state_->fill_tiles([&](std::int64_t first_row, char* tile) {
    const std::int64_t rows = std::min(kKeyTile, out - first_row);
    std::vector<float> numbers(static_cast<std::size_t>(rows * in));
    for (std::int64_t r = 0; r < rows; ++r) row(first_row + r, numbers.data() + r * in);
    pack_weight_tile(WeightFormat::f32, std::as_bytes(std::span(numbers)).data(), rows, in, 0, tile);
  });
  return floats;
}

WeightFormat Weight::format() const {
  return state_ ? state_->format : WeightFormat::f32;
}
std::int64_t Weight::out() const {
  return state_ ? state_->out : 0;
}
std::int64_t Weight::in() const {
  return state_ ? state_->in : 0;
}
std::int64_t Weight::bytes() const {
  return state_ ? tiles_of(state_->out) * state_->tile_bytes : 0;
}

void Weight::row(std::int64_t r, float* y) const {
  constexpr const char* kOp = "Weight::row";
  if (r < 0 || r >= out()) fail(kOp, "there is no row " + std::to_string(r) + " of " + std::to_string(out()));
  if (in() == 0) return;
  if (y == nullptr) fail(kOp, "y is null, expected room for " + std::to_string(in()) + " floats");
  unpack_weight_row(state_->format, state_->tiles.get() + r / kKeyTile * state_->tile_bytes, state_->in, r % kKeyTile,
                    y);
}

std::int64_t weight_bytes(WeightFormat format, std::int64_t out, std::int64_t in) {
  check_size("Weight", format, out, in);
  return checked_product("Weight: tiles", {tiles_of(out), weight_tile_bytes(format, in)});
}

struct WeightAccess {
  static const char* tiles(const Weight& weight) { return weight.state_ ? weight.state_->tiles.get() : nullptr; }
  static std::int64_t tile_bytes(const Weight& weight) { return weight.state_ ? weight.state_->tile_bytes : 0; }
};

namespace {

constexpr const char* kProject = "project";

void check_projections(const View& x, std::span<const Projection> projections) {
  check_readable(kProject, "x", x);
  check_dtype(kProject, "x", x.dtype, DType::f32);
  check_shape(kProject, "x", x.shape, {1, 1, x.length(), x.dim()});
  for (const Projection& p : projections) {
    if (p.weight == nullptr) fail(kProject, "weight is null, expected one");
    check_equal(kProject, "x dim", x.dim(), p.weight->in(), "in of the weight");
    check_writable(kProject, "y", p.y);
    check_dtype(kProject, "y", p.y.dtype, DType::f32);
    check_shape(kProject, "y", p.y.shape, {1, 1, x.length(), p.weight->out()});
    if (p.y.dim() > 1 && p.y.length() > 0) check_equal(kProject, "y's last stride", p.y.strides[3], 1);
    if (p.bias) {
      check_readable(kProject, "bias", *p.bias);
      check_dtype(kProject, "bias", p.bias->dtype, DType::f32);
      check_shape(kProject, "bias", p.bias->shape, {1, 1, 1, p.weight->out()});
    }
  }
  for (std::size_t n = 0; n < projections.size(); ++n) {
    const MutableView& y = projections[n].y;
    check_apart(kProject, "y", y, "x", x);
    for (std::size_t other = 0; other < projections.size(); ++other) {
      if (other < n) check_apart(kProject, "y", y, "another y", projections[other].y);
      if (projections[other].bias) check_apart(kProject, "y", y, "a bias", *projections[other].bias);
    }
  }
}

// A row of a view of [1, 1, L, n]. A dimension of one element takes no step, and rows of none lie nowhere, whatever
// their stride says.
std::int64_t row_stride(const View& x) {
  return x.length() > 1 && x.dim() > 0 ? x.strides[2] : 0;
}
const char* row_of(const View& x, std::int64_t row) {
  return static_cast<const char*>(x.data) + row * row_stride(x) * std::int64_t{sizeof(float)};
}

// Rows of x as the kernels read them: rounded for quantised weights, and as floats where they can't be read in place.
struct Rows {
  const RoundedRun* rounded;
  const float* floats;
  std::int64_t float_stride;
};

WeightProduct product_of(const Projection& p, const Rows& rows, std::int64_t row) {
  const Weight& w = *p.weight;
  const View y = p.y;
  return {.format = w.format(),
          .out = w.out(),
          .in = w.in(),
          .tiles = WeightAccess::tiles(w),
          .tile_bytes = WeightAccess::tile_bytes(w),
          .bias = p.bias ? static_cast<const char*>(p.bias->data) : nullptr,
          .bias_stride = p.bias && w.out() > 1 ? p.bias->strides[3] : 0,
          .rounded = rows.rounded,
          .x = rows.floats,
          .x_row_stride = rows.float_stride,
          .y = const_cast<char*>(row_of(y, row)),
          .y_row_stride = row_stride(y)};
}

// All projections of `count` rows that begin at row `first`.
void run_projections(const Rows& rows, std::int64_t first, std::int64_t count,
                     std::span<const Projection> projections) {
  std::int64_t tiles = 0;
  for (const Projection& p : projections) tiles += tiles_of(p.weight->out());
  const KernelTable& table = kernels();
  std::int64_t rows_per_item = kRowsPerItem;
  while (rows_per_item > kFewestPerItem && pieces(count, rows_per_item) * tiles < kItemsPerWorker * thread_count())
    rows_per_item /= 2;
  const Scratch scratch(table.weight_scratch_bytes(std::min(count, rows_per_item)));
  parallel_for(pieces(count, rows_per_item) * tiles, scratch.workers(), [&](std::int64_t item, int worker) {
    const std::int64_t row = item / tiles * rows_per_item;
    std::int64_t tile = item % tiles;
    const Projection* p = projections.data();
    for (; tile >= tiles_of(p->weight->out()); ++p) tile -= tiles_of(p->weight->out());
    table.weight_product(product_of(*p, rows, first), row, std::min(rows_per_item, count - row), tile,
                         scratch.of(worker));
  });
}

}  // namespace

void project(View x, std::span<const Projection> projections) {
  check_projections(x, projections);
  // Rows of no outputs can be as many as a number can say: none of them is looked at.
  if (x.length() == 0 || std::ranges::all_of(projections, [](const Projection& p) { return p.weight->out() == 0; }))
    return;
  const KernelTable& table = kernels();
  const bool any_quantised =
      std::ranges::any_of(projections, [](const Projection& p) { return quantised(p.weight->format()); });
  const bool any_floats =
      std::ranges::any_of(projections, [](const Projection& p) { return !quantised(p.weight->format()); });
  const std::int64_t in = x.dim(), runs = any_quantised ? in / kRun : 0, stride = in > 1 ? x.strides[3] : 0;
  const bool in_place = (stride == 1 || in <= 1) && reinterpret_cast<std::uintptr_t>(x.data) % alignof(float) == 0;
  const std::int64_t copied = any_floats && !in_place ? in : 0;  // floats of a row
  const std::int64_t row_bytes = std::max<std::int64_t>(
      1, checked_product("project: a row", {runs, std::int64_t{sizeof(RoundedRun)}}) + copied * 4);
  const std::int64_t at_once = std::clamp<std::int64_t>(kMostRoundedBytes / row_bytes, 1, x.length());
  const Buffer<RoundedRun> rounded(at_once * runs);
  const Buffer<float> floats(at_once * copied);
  for (std::int64_t first = 0; first < x.length(); first += at_once) {
    const std::int64_t count = std::min(at_once, x.length() - first);
    const auto prepare = [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t r = from; r < to; ++r) {
        const char* row = row_of(x, first + r);
        if (runs > 0) table.round_row(row, stride, runs, rounded.data() + r * runs);
        for (std::int64_t k = 0; k < copied; ++k)
          floats[r * copied + k] = static_cast<float>(load_element(DType::f32, row, k * stride));
      }
    };
    if (count <= kFewRows) {
      prepare(0, count);
    } else if (runs + copied > 0) {
      parallel_for(pieces(count, kRowsRoundedPerItem), [&](std::int64_t item, int) {
        prepare(item * kRowsRoundedPerItem, std::min(count, (item + 1) * kRowsRoundedPerItem));
      });
    }
    Rows rows{rounded.data(), floats.data(), copied};
    if (any_floats && in_place)
      rows = {rounded.data(), reinterpret_cast<const float*>(row_of(x, first)), row_stride(x)};
    run_projections(rows, first, count, projections);
  }
}

}  // namespace attend
