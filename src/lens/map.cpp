// Pooled maps: bands of cells made side by side, shown as they come, and the pyramid above them.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <mutex>

#include "base/check.hpp"
#include "base/checked.hpp"
#include "base/threads.hpp"
#include "lens/state.hpp"
#include "ops/lens_area.hpp"
#include "ops/scratch.hpp"
#include "reference/lens.hpp"

namespace attend {
namespace {

constexpr std::int64_t kMostRows = 256;           // queries of an item
constexpr std::int64_t kMostCellBytes = 4 << 20;  // what a worker's cells may take
constexpr std::int64_t kCellBytes = sizeof(double) + sizeof(float);

// How the rows of cells are cut into items: some whole rows of cells, or pieces of one, never by the thread count.
struct MapItems {
  explicit MapItems(const CellAxis& queries, std::int64_t cols) : axis(queries) {
    const std::int64_t tallest = divide_up(axis.length, axis.cells);
    pieces = divide_up(tallest, kMostRows);
    const std::int64_t fit = std::max<std::int64_t>(1, kMostCellBytes / kCellBytes / cols);
    rows_each = pieces > 1 ? 1 : std::clamp<std::int64_t>(kMostRows / tallest, 1, std::min(fit, axis.cells));
  }
  std::int64_t bands() const { return divide_up(axis.cells, rows_each); }
  std::int64_t count() const { return bands() * pieces; }
  std::int64_t first_row(std::int64_t band) const { return band * rows_each; }
  std::int64_t end_row(std::int64_t band) const { return std::min(axis.cells, (band + 1) * rows_each); }
  // Where piece n of a band begins; that of `pieces` is its end.
  std::int64_t begin(std::int64_t band, std::int64_t piece) const {
    const std::int64_t first = axis.begin(first_row(band)), end = axis.begin(end_row(band));
    return first + (end - first) * piece / pieces;
  }

  CellAxis axis;
  std::int64_t pieces, rows_each;
};

// The kernels' maxima may lose a NaN, their sums do not: a cell with a NaN is NaN in both.
float peak_of(double mass, float peak) {
  return std::isnan(mass) ? std::numeric_limits<float>::quiet_NaN() : peak;
}

// A map on its way: takes the cells of items, in the order of a band's pieces, and shows each band that is done.
class MapBands {
 public:
  MapBands(PooledMap& map, LensHead head, const MapItems& items, const MapProgress& progress)
      : map_(map),
        head_(head),
        items_(items),
        progress_(progress),
        sums_(items.pieces > 1 ? static_cast<std::size_t>(map.rows * map.cols) : 0),
        next_(static_cast<std::size_t>(items.pieces > 1 ? items.bands() : 0)) {}

  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }
  void rethrow() const { guard_.rethrow(); }

  // The cells of one item: [rows of cells of the band, cols].
  void take(std::int64_t band, std::int64_t piece, const double* mass, const float* peak) {
    const std::int64_t first = items_.first_row(band) * map_.cols, count = items_.end_row(band) * map_.cols - first;
    float *to_mass = map_.mass.data<float>() + first, *to_peak = map_.peak.data<float>() + first;
    if (items_.pieces == 1) {
      std::transform(mass, mass + count, to_mass, [](double x) { return static_cast<float>(x); });
      std::transform(mass, mass + count, peak, to_peak, peak_of);
      return show(band);
    }
    // One after the other: sums of doubles are rounded too, and must not depend on who came first.
    std::atomic<std::int64_t>& next = next_[static_cast<std::size_t>(band)];
    for (int spin = 0; next.load(std::memory_order_acquire) != piece; ++spin) {
      if (stopped() || job_stops()) return;
      spin_wait(spin);
    }
    double* sums = sums_.data() + first;
    for (std::int64_t n = 0; n < count; ++n) {
      sums[n] += mass[n];
      if (peak[n] > to_peak[n]) to_peak[n] = peak[n];
    }
    if (piece + 1 == items_.pieces) {
      std::transform(sums, sums + count, to_mass, [](double x) { return static_cast<float>(x); });
      std::transform(sums, sums + count, to_peak, to_peak, peak_of);
      show(band);
    }
    next.store(piece + 1, std::memory_order_release);
  }

  // A band is done.
  void show(std::int64_t band) {
    const std::lock_guard lock(mutex_);
    const std::int64_t first = items_.first_row(band), rows = items_.end_row(band) - first, at = first * map_.cols;
    done_ += rows;
    if (!progress_ || stopped()) return;
    bool go_on = false;
    guard_.run([&] {
      go_on = progress_({head_, first, rows, map_.mass.data<float>() + at, map_.peak.data<float>() + at, map_.cols,
                         done_, map_.rows});
    });
    if (!go_on) stopped_.store(true, std::memory_order_relaxed);
  }
  bool finished() const { return done_ == map_.rows; }

 private:
  PooledMap& map_;
  LensHead head_;
  const MapItems& items_;
  const MapProgress& progress_;
  std::vector<double> sums_;
  std::vector<std::atomic<std::int64_t>> next_;
  std::mutex mutex_;
  std::int64_t done_ = 0;
  std::atomic<bool> stopped_{false};
  CallGuard guard_;
};

}  // namespace

PooledMap Lens::map(LensHead head, const MapOptions& options) const {
  state_->check_head(head);
  const LensArea area = state_->checked(options.area);
  const std::int64_t rows = std::min(options.rows, area.queries), cols = std::min(options.cols, area.keys);
  check_cells(kLensOp, area, rows, cols);
  PooledMap map{area, rows, cols, true, Tensor(DType::f32, {1, 1, rows, cols}), Tensor(DType::f32, {1, 1, rows, cols})};
  const CellAxis queries{area.first_query, area.queries, rows}, keys{area.first_key, area.keys, cols};
  const MapItems items(queries, cols);
  MapBands bands(map, head, items, options.progress);
  const std::int64_t cells = items.rows_each * cols;

  if (state_->in_double()) {
    std::vector<double> mass(static_cast<std::size_t>(cells)), peak(mass.size());
    std::vector<float> narrow(mass.size());
    for (std::int64_t n = 0; n < items.count() && !bands.stopped(); ++n) {
      const std::int64_t band = n / items.pieces, piece = n % items.pieces, first = items.begin(band, piece);
      std::ranges::fill(mass, 0);
      std::ranges::fill(peak, 0);
      const LensArea part{first, items.begin(band, piece + 1) - first, area.first_key, area.keys};
      state_->for_rows(head, part, [&](std::int64_t i, auto row, auto) {
        const std::int64_t at = (queries.cell(i) - items.first_row(band)) * cols;
        reference::pool_row(row, cols, mass.data() + at, peak.data() + at);
      });
      std::ranges::transform(peak, narrow.begin(), [](double x) { return static_cast<float>(x); });
      bands.take(band, piece, mass.data(), narrow.data());
    }
  } else {
    const auto sweep = state_->sweep_of(head);
    LensSweep into{};
    into.into = LensSweep::Into::cells;
    into.query_axis = queries;
    into.key_axis = keys;
    into.first_key = area.first_key;
    into.end_key = area.first_key + area.keys;
    const std::int64_t most = std::min(kMostRows, divide_up(area.queries, rows) * items.rows_each);
    const Scratch scratch(sweep->scratch_bytes(most)), held(cells * kCellBytes);
    parallel_for(items.count(), std::min(scratch.workers(), held.workers()), [&](std::int64_t item, int worker) {
      if (bands.stopped()) return;
      const std::int64_t band = item / items.pieces, piece = item % items.pieces;
      LensSweep part = into;
      part.first_row = items.first_row(band);
      part.mass = static_cast<double*>(held.of(worker));
      part.peak = reinterpret_cast<float*>(part.mass + cells);
      std::fill_n(part.mass, cells, 0.0);
      std::fill_n(part.peak, cells, 0.0F);
      const std::int64_t first = items.begin(band, piece), end = items.begin(band, piece + 1);
      if (first < end) sweep->run(part, first, end, scratch.of(worker));
      bands.take(band, piece, part.mass, part.peak);
    });
    state_->call().rule.rethrow();
  }
  bands.rethrow();
  map.finished = bands.finished();
  return map;
}

Tensor Lens::received(LensHead head, const LensArea& wanted) const {
  state_->check_head(head);
  const LensArea area = state_->checked(wanted);
  if (area.queries == 0 || area.keys == 0) return Tensor(DType::f32, {1, 1, 1, area.keys});
  MapOptions options;
  options.area = area;
  options.rows = 1;
  options.cols = area.keys;
  return map(head, options).mass;
}

std::vector<PooledMap> pyramid(PooledMap map) {
  std::vector<PooledMap> levels;
  levels.push_back(std::move(map));
  while (levels.back().rows % 2 == 0 && levels.back().cols % 2 == 0) {
    const PooledMap& fine = levels.back();
    const std::int64_t rows = fine.rows / 2, cols = fine.cols / 2;
    const Shape shape = {1, 1, rows, cols};
    PooledMap half{fine.area, rows, cols, fine.finished, Tensor(DType::f32, shape), Tensor(DType::f32, shape)};
    const float *mass = fine.mass.data<float>(), *peak = fine.peak.data<float>();
    for (std::int64_t n = 0; n < rows * cols; ++n) {
      const std::int64_t at = n / cols * 2 * fine.cols + n % cols * 2, below = at + fine.cols;
      half.mass.data<float>()[n] = (mass[at] + mass[at + 1]) + (mass[below] + mass[below + 1]);
      half.peak.data<float>()[n] = std::max({peak[at], peak[at + 1], peak[below], peak[below + 1]});
    }
    levels.push_back(std::move(half));
  }
  return levels;
}

}  // namespace attend
