// The lens: maps, top keys, histograms, zoom and cells against the dense truth, and always the same bits.
#include "attend/lens.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "attend/error.hpp"
#include "attend/runtime.hpp"
#include "support/compare.hpp"
#include "support/lens.hpp"
#include "support/tensors.hpp"

namespace attend::test {
namespace {

using std::int64_t;

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};

Case looked_at(MaskKind mask) {
  Case c;
  c.B = 2;
  c.H = 4;
  c.Hk = 2;
  c.M = 150;
  c.N = 700;
  c.D = c.E = 36;
  c.mask = mask;
  return c;
}

// The dense weights of one head, and how far each weight of a row may be off, as a share of it.
struct DenseHead {
  DenseHead(const Problem& problem, const Truth& truth, LensHead head) : p(problem), t(truth), at(head) {}
  int64_t row(int64_t i) const { return (at.batch * p.info.H + at.head) * p.info.M + i; }
  std::span<const double> weights(int64_t i) const {
    return {t.results.weights.data() + row(i) * p.info.N, static_cast<std::size_t>(p.info.N)};
  }
  double weight(int64_t i, int64_t j) const { return weights(i)[static_cast<std::size_t>(j)]; }
  // The LSE is an f32 too.
  double error(int64_t i) const {
    const auto n = static_cast<std::size_t>(row(i));
    const double lse = t.results.lse[n];
    return 48 * unit_roundoff(DType::f32) * (t.magnitudes.score[n] + (std::isfinite(lse) ? std::abs(lse) : 0));
  }

  const Problem& p;
  const Truth& t;
  LensHead at;
};

// Cells by their definition: (r, c) holds queries [first + r * queries / rows, first + (r + 1) * queries / rows) and
// keys likewise.
void expect_map(const DenseHead& dense, const PooledMap& map, const LensArea& area, const std::string& where) {
  ASSERT_TRUE(map.finished);
  ASSERT_EQ(map.area.first_query, area.first_query) << where;
  ASSERT_EQ(map.area.queries, area.queries) << where;
  ASSERT_EQ(map.area.first_key, area.first_key) << where;
  ASSERT_EQ(map.area.keys, area.keys) << where;
  for (int64_t r = 0; r < map.rows; ++r) {
    const int64_t first = area.first_query + r * area.queries / map.rows,
                  last = area.first_query + (r + 1) * area.queries / map.rows;
    ASSERT_EQ(map.query_of(r), first) << where;
    double worst = 0;
    for (int64_t i = first; i < last; ++i) worst = std::max(worst, dense.error(i));
    const double sums = 64 * unit_roundoff(DType::f32);  // rows of a block, columns of a tile
    for (int64_t c = 0; c < map.cols; ++c) {
      const int64_t from = area.first_key + c * area.keys / map.cols,
                    to = area.first_key + (c + 1) * area.keys / map.cols;
      ASSERT_EQ(map.key_of(c), from) << where;
      double mass = 0, peak = 0;
      for (int64_t i = first; i < last; ++i)
        for (int64_t j = from; j < to; ++j) {
          mass += dense.weight(i, j);
          peak = std::max(peak, dense.weight(i, j));
        }
      ASSERT_NEAR(static_cast<double>(map.mass.data<float>()[r * map.cols + c]), mass, (worst + sums) * mass + 1e-36)
          << where << " mass of cell " << r << ", " << c;
      ASSERT_NEAR(static_cast<double>(map.peak.data<float>()[r * map.cols + c]), peak, worst * peak + 1e-36)
          << where << " peak of cell " << r << ", " << c;
    }
  }
}

void expect_zoom(const DenseHead& dense, const Tensor& zoom, const LensArea& area, const std::string& where) {
  for (int64_t i = 0; i < area.queries; ++i)
    for (int64_t j = 0; j < area.keys; ++j) {
      const double want = dense.weight(area.first_query + i, area.first_key + j);
      ASSERT_NEAR(static_cast<double>(zoom.data<float>()[i * area.keys + j]), want,
                  dense.error(area.first_query + i) * want + 1e-36)
          << where << " weight " << area.first_query + i << ", " << area.first_key + j;
    }
}

// The largest weights of the truth: none that was left out is larger than one that was taken, by more than the error of
// both; of equal ones the lower key comes first, and the list ends where the row does.
void expect_top(const DenseHead& dense, const TopKeys& top, int64_t count, const LensArea& area,
                const std::string& where) {
  constexpr double kVisible = 1e-30;  // of an f32, whatever its error
  ASSERT_EQ(std::ssize(top.keys), area.queries * count);
  for (int64_t i = 0; i < area.queries; ++i) {
    const int64_t query = area.first_query + i;
    const auto row =
        dense.weights(query).subspan(static_cast<std::size_t>(area.first_key), static_cast<std::size_t>(area.keys));
    const double error = dense.error(query);
    const std::string at = where + " row " + std::to_string(query);
    std::vector<char> taken(row.size());
    double least = 1;
    int64_t found = 0;
    for (int64_t n = 0; n < count; ++n) {
      const int64_t key = top.keys[static_cast<std::size_t>(i * count + n)];
      const float* weight = top.weights.data<float>() + i * count + n;
      if (key == -1) {
        ASSERT_EQ(*weight, 0.0F) << at;
        continue;
      }
      ASSERT_EQ(found++, n) << at << ": a key comes after the end of the list";
      ASSERT_TRUE(key >= area.first_key && key < area.first_key + area.keys) << at;
      const auto k = static_cast<std::size_t>(key - area.first_key);
      ASSERT_FALSE(taken[k]) << at << ": key " << key << " twice";
      taken[k] = 1;
      least = std::min(least, row[k]);
      ASSERT_NEAR(static_cast<double>(*weight), row[k], error * row[k] + 1e-36) << at;
      if (n > 0) {
        ASSERT_TRUE(weight[-1] > weight[0] ||
                    (weight[-1] == weight[0] && top.keys[static_cast<std::size_t>(i * count + n - 1)] < key))
            << at << ", place " << n;
      }
    }
    if (found < count) least = 0;
    for (std::size_t k = 0; k < row.size(); ++k)
      if (!taken[k]) {
        ASSERT_LE(row[k] * (1 - error), std::max(least * (1 + error), kVisible)) << at << ", key " << k;
      }
  }
}

// The counts of the truth's weights; one whose error reaches into another bin may be in either.
void expect_histogram(const DenseHead& dense, const WeightHistogram& histogram, const LensArea& area,
                      const std::string& where) {
  const int64_t bins = std::ssize(histogram.counts);
  const auto bin_of = [&](double w) {
    int64_t bin = 0;
    for (double edge = 0.5; bin < bins && w < edge; edge /= 2) ++bin;
    return bin;
  };
  std::vector<int64_t> fewest(static_cast<std::size_t>(bins + 1)), most(fewest.size());
  int64_t visible = 0, counted = histogram.below;
  for (int64_t i = area.first_query; i < area.first_query + area.queries; ++i)
    for (int64_t j = area.first_key; j < area.first_key + area.keys; ++j) {
      if (!dense.p.visible_row(dense.at.batch, dense.at.head, i)[j]) continue;
      ++visible;
      const double w = dense.weight(i, j), error = dense.error(i) * w;
      const int64_t low = bin_of(w + error), high = bin_of(w - error);
      if (low == high) ++fewest[static_cast<std::size_t>(low)];
      for (int64_t bin = low; bin <= high; ++bin) ++most[static_cast<std::size_t>(bin)];
    }
  std::vector<int64_t> counts = histogram.counts;
  counts.push_back(histogram.below);
  for (std::size_t n = 0; n < counts.size(); ++n) {
    EXPECT_GE(counts[n], fewest[n]) << where << " bin " << n;
    EXPECT_LE(counts[n], most[n]) << where << " bin " << n;
  }
  for (const int64_t count : histogram.counts) counted += count;
  EXPECT_EQ(counted, visible) << where;
}

constexpr LensArea kPart{17, 101, 33, 600};

void expect_all(const Problem& p, DType dtype, bool rule_hides) {
  const Case& c = p.info;
  const std::string where = c.problem_name() + " " + name(dtype);
  const Truth truth = true_attention(p, true);
  Tensors t(p, dtype);
  t.forward(p.options(dtype));
  const LensHead head{c.B - 1, c.H - 1};
  const DenseHead dense(p, truth, head);
  const Lens lens(t.q, t.k, p.options(dtype), {.lse = View(t.lse), .v = View(t.v)});
  const Lens without(t.q, t.k, p.options(dtype));  // sweeps for the LSE itself
  const LensArea everything{0, c.M, 0, c.N};
  expect_map(dense, lens.map(head, {.rows = 7, .cols = 13}), everything, where);
  expect_map(dense, without.map(head, {.rows = 1, .cols = 1}), everything, where);
  const LensArea part = c.M >= kPart.first_query + kPart.queries && c.N >= kPart.first_key + kPart.keys
                            ? kPart
                            : LensArea{0, c.M, c.N / 3, c.N - c.N / 3};
  if (part.keys == 0) return;
  for (const int64_t rows : {int64_t{10'000}, int64_t{9}, int64_t{1}})
    for (const int64_t cols : {int64_t{10'000}, int64_t{20}, int64_t{1}})
      expect_map(dense, lens.map(head, {.area = part, .rows = rows, .cols = cols}), part, where);
  expect_zoom(dense, without.zoom(head, part), part, where);
  expect_zoom(dense, lens.row(head, c.M / 2), {c.M / 2, 1, 0, c.N}, where);
  expect_zoom(dense, lens.column(head, c.N / 2), {0, c.M, c.N / 2, 1}, where);
  expect_top(dense, lens.top_keys(head, 5, part), 5, part, where);
  expect_top(dense, lens.top_keys(head, part.keys + 3, part), part.keys + 3, part, where);
  if (!rule_hides) expect_histogram(dense, lens.histogram(head, 20, part), part, where);
  const Tensor received = lens.received(head, part);
  for (int64_t j = 0; j < part.keys; j += 7) {
    double sum = 0, error = 64 * unit_roundoff(DType::f32);
    for (int64_t i = part.first_query; i < part.first_query + part.queries; ++i) {
      sum += dense.weight(i, part.first_key + j);
      error = std::max(error, dense.error(i));
    }
    ASSERT_NEAR(static_cast<double>(received.data<float>()[j]), sum, 2 * error * sum + 1e-36) << where << " key " << j;
  }
  for (int64_t n = 0; n < 12; ++n) {
    const int64_t i = n * 31 % c.M, j = n * 97 % c.N;
    const CellArithmetic cell = lens.cell(head, i, j);
    const double want = dense.weight(i, j);
    ASSERT_NEAR(cell.weight, want, dense.error(i) * want + 1e-300) << where << " cell " << i << ", " << j;
    ASSERT_EQ(cell.weighted.size(), static_cast<std::size_t>(c.E));
    ASSERT_EQ(cell.weighted[0], cell.weight * cell.v[0]);
  }
}

TEST(Lens, OfEveryMask) {
  for (int mask = 0; mask <= static_cast<int>(kLastMask); ++mask) {
    Case c = looked_at(static_cast<MaskKind>(mask));
    c.sinks = mask % 2 == 0;
    c.dropout = mask % 3 == 0 ? 0.3 : 0;  // weights are those before dropout
    const Problem p(c);
    expect_all(p, kDTypes[mask % 3], false);
  }
}

TEST(Lens, OfEveryOption) {
  int n = 0;
  for (const Case& given : extra_cases()) {
    if (given.dtype != DType::f32 || given.layout != Layout::bhld || given.M == 0 || given.N == 0 || given.B == 0)
      continue;
    if (++n % 7 != 0) continue;
    Case c = given;
    c.backward = false;
    const Problem p(c);
    const bool may_hide = c.rule == RuleKind::hide || c.bias != BiasKind::none;
    for (const DType dtype : {DType::f32, DType::bf16}) expect_all(p, dtype, may_hide);
  }
}

TEST(Lens, InDoubleIsTheReference) {
  Case c = looked_at(MaskKind::causal_last);
  c.M = 30;
  c.N = 60;
  c.sinks = true;
  const Problem p(c);
  const Truth truth = true_attention(p, true);
  Tensors t(p, DType::f64);
  const Lens lens(t.q, t.k, p.options(DType::f64));
  const LensHead head{1, 2};
  const DenseHead dense(p, truth, head);
  expect_map(dense, lens.map(head, {.rows = 4, .cols = 9}), {0, c.M, 0, c.N}, "f64");
  const LensArea part{7, 19, 11, 40};
  for (const int64_t rows : {19, 5})
    for (const int64_t cols : {40, 7})
      expect_map(dense, lens.map(head, {.area = part, .rows = rows, .cols = cols}), part, "f64");
  expect_top(dense, lens.top_keys(head, 4, part), 4, part, "f64");
  expect_histogram(dense, lens.histogram(head, 6, part), part, "f64");
  const Tensor row = lens.row(head, 11);
  for (int64_t j = 0; j < c.N; ++j) ASSERT_NEAR(row.data<double>()[j], dense.weight(11, j), 1e-12);
  const TopKeys top = lens.top_keys(head, 3);
  EXPECT_EQ(top.keys.size(), 90U);
  int64_t counted = lens.histogram(head).below;
  for (const int64_t count : lens.histogram(head).counts) counted += count;
  int64_t visible = 0;
  for (int64_t i = 0; i < c.M; ++i)
    for (int64_t j = 0; j < c.N; ++j) visible += p.visible_row(1, 2, i)[j];
  EXPECT_EQ(counted, visible);
  EXPECT_NEAR(lens.cell(head, 11, 3).weight, dense.weight(11, 3), 1e-12);
  EXPECT_EQ(lens.statistics().shape(), (Shape{c.B, c.H, c.M, kRowStatistics}));
}

// One lens, asked for one head after the other: the LSE that it keeps of a head is of no other.
TEST(Lens, EachHeadHasItsOwnLse) {
  for (const DType dtype : kDTypes) {
    const Problem p(looked_at(MaskKind::causal_last));
    const Truth truth = true_attention(p, true);
    const Tensors t(p, dtype);
    const Lens lens(t.q, t.k, p.options(dtype));
    const LensArea part{100, 9, 500, 90};
    for (const LensHead head : {LensHead{0, 0}, {0, 3}, {1, 0}, {0, 1}, {1, 3}, {0, 0}, {1, 2}}) {
      const std::string where =
          std::string(name(dtype)) + " head " + std::to_string(head.batch) + "." + std::to_string(head.head);
      const DenseHead dense(p, truth, head);
      expect_zoom(dense, lens.zoom(head, part), part, where);
      expect_map(dense, lens.map(head, {.area = part, .rows = 3, .cols = 7}), part, where);
      const double want = dense.weight(120, 333);
      EXPECT_NEAR(lens.cell(head, 120, 333).weight, want, dense.error(120) * want) << where;
    }
    const View all = lens.lse();
    const int64_t rows = p.info.B * p.info.H * p.info.M;
    for (int64_t n = 0; n < rows; ++n)
      ASSERT_NEAR(static_cast<double>(static_cast<const float*>(all.data)[n]),
                  truth.results.lse[static_cast<std::size_t>(n)], 1e-4)
          << name(dtype) << " row " << n;
  }
}

// Cells of more rows than one item has: their parts add up, and the largest weight of all parts is the peak.
TEST(Lens, OfTallCells) {
  for (const MaskKind mask : {MaskKind::none, MaskKind::causal_last}) {
    Case c = looked_at(mask);
    c.B = c.H = c.Hk = 1;
    c.M = c.N = 700;
    const Problem p(c);
    const Truth truth = true_attention(p, true);
    const Tensors t(p, DType::f32);
    const DenseHead dense(p, truth, {});
    const Lens lens(t.q, t.k, p.options(DType::f32));
    for (const LensArea& area : {LensArea{0, 700, 0, 700}, LensArea{35, 660, 3, 690}})
      for (const int64_t rows : {1, 2})
        for (const int64_t cols : {1, 90, 10'000})
          expect_map(dense, lens.map({}, {.area = area, .rows = rows, .cols = cols}), area, c.problem_name());
  }
}

// A row whose query is NaN: every cell with one of its visible keys is NaN in mass and peak, wherever the row is in a
// cell and the cell in the area; all cells of other rows are as they were.
TEST(Lens, ANanShowsInItsCells) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    Case c = looked_at(MaskKind::causal_last);
    c.B = c.H = c.Hk = 1;
    c.M = c.N = 700;  // cells of more rows than one item has
    const Problem p(c);
    for (const int64_t nan_row : {40, 520}) {
      Tensors clean(p, dtype), dirty(p, dtype);
      if (dtype == DType::f32) dirty.q.data<float>()[nan_row * c.D] = std::numeric_limits<float>::quiet_NaN();
      if (dtype == DType::f64) dirty.q.data<double>()[nan_row * c.D] = std::numeric_limits<double>::quiet_NaN();
      const Lens before(clean.q, clean.k, p.options(dtype)), after(dirty.q, dirty.k, p.options(dtype));
      for (const LensArea& area : {LensArea{0, 700, 0, 700}, LensArea{35, 660, 3, 690}})
        for (const int64_t rows : {1, 9})
          for (const int64_t cols : {5, 10'000}) {
            const PooledMap a = before.map({}, {.area = area, .rows = rows, .cols = cols}),
                            b = after.map({}, {.area = area, .rows = rows, .cols = cols});
            for (int64_t r = 0; r < a.rows; ++r)
              for (int64_t col = 0; col < a.cols; ++col) {
                const int64_t n = r * a.cols + col;
                const bool in_row = nan_row >= area.first_query + r * area.queries / a.rows &&
                                    nan_row < area.first_query + (r + 1) * area.queries / a.rows;
                const bool nan = in_row && area.first_key + col * area.keys / a.cols <= nan_row;
                if (in_row && !nan) continue;
                const float mass = b.mass.data<float>()[n], peak = b.peak.data<float>()[n];
                ASSERT_EQ(std::isnan(mass), nan) << "row " << nan_row << ", cell " << r << ", " << col;
                ASSERT_EQ(std::isnan(peak), nan) << "row " << nan_row << ", cell " << r << ", " << col;
                if (nan) continue;
                ASSERT_EQ(mass, a.mass.data<float>()[n]);
                ASSERT_EQ(peak, a.peak.data<float>()[n]);
              }
          }
    }
  }
}

// Equal keys have equal weights: the lower one comes first, and the list ends where the row does.
TEST(Lens, TopKeysOfTies) {
  Tensor q(DType::f32, {1, 1, 3, 16}), k(DType::f32, {1, 1, 200, 16});
  for (int64_t n = 0; n < q.size(); ++n) q.data<float>()[n] = 0.5F;
  for (int64_t n = 0; n < k.size(); ++n) k.data<float>()[n] = static_cast<float>(n / 16 % 3);
  const Lens lens(q, k, {.mask = causal(Diagonal::at({1}))});
  const TopKeys top = lens.top_keys({}, 4);
  EXPECT_EQ(top.keys, (std::vector<int64_t>{1, 0, -1, -1, 2, 1, 0, -1, 2, 1, 0, 3}));
  EXPECT_EQ(top.weights.data<float>()[2], 0.0F);
  EXPECT_EQ(Lens(q, k).top_keys({}, 3, {0, 1, 0, 200}).keys, (std::vector<int64_t>{2, 5, 8}));
}

TEST(Lens, OverACacheIsTheSame) {
  for (const DType dtype : kDTypes) {
    Case c = looked_at(MaskKind::causal_last);
    c.B = 1;
    c.D = c.E = 64;
    const Problem p(c);
    Tensors t(p, dtype);
    PagedKvCache cache({dtype, c.Hk, c.D, c.E, PagedKvCache::pages_for(c.N)});
    const std::vector sequences = {cache.add()};
    cache.append(sequences[0], t.k, t.v);
    const Lens plain(t.q, t.k, p.options(dtype), {.v = View(t.v)}), cached(t.q, cache, sequences, p.options(dtype));
    const LensHead head{0, 3};
    EXPECT_TRUE(same_bits(plain.lse(), cached.lse())) << name(dtype);
    EXPECT_TRUE(
        same_bits(plain.map(head, {.rows = 9, .cols = 11}).mass, cached.map(head, {.rows = 9, .cols = 11}).mass));
    EXPECT_TRUE(same_bits(plain.zoom(head, kPart), cached.zoom(head, kPart))) << name(dtype);
    EXPECT_TRUE(same_bits(plain.statistics(), cached.statistics())) << name(dtype);
    const CellArithmetic a = plain.cell(head, 100, 77), b = cached.cell(head, 100, 77);
    EXPECT_EQ(a.k, b.k);
    EXPECT_EQ(a.weighted, b.weighted);
    EXPECT_TRUE(b.visible);
  }
}

// Sequences of their own lengths; int8 keys are what they were rounded to.
TEST(Lens, OverSequencesOfSeveralLengths) {
  Case c = looked_at(MaskKind::causal_last);
  c.D = c.E = 32;
  const Problem p(c);
  Tensors t(p, DType::f32);
  PagedKvCache cache({DType::f32, c.Hk, c.D, c.E, 40, true});
  const std::vector sequences = {cache.add(), cache.add()};
  cache.append(sequences[0], slice(View(t.k), 0, 0, 1), slice(View(t.v), 0, 0, 1));
  cache.append(sequences[1], slice(slice(View(t.k), 0, 1, 1), 2, 0, 333), slice(slice(View(t.v), 0, 1, 1), 2, 0, 333));
  const Lens lens(t.q, cache, sequences, p.options(DType::f32));
  EXPECT_EQ(lens.keys(), c.N);
  const int64_t i = 140;
  const Tensor row = lens.row({1, 1}, i);
  double sum = 0;
  for (int64_t j = 0; j < c.N; ++j) sum += static_cast<double>(row.data<float>()[j]);
  EXPECT_NEAR(sum, 1, 1e-5);
  for (const int64_t j : {0, 100, 323, 324, 400}) {
    const CellArithmetic cell = lens.cell({1, 1}, i, j);
    EXPECT_EQ(cell.visible, j <= 333 - c.M + i);
    EXPECT_NEAR(cell.weight, static_cast<double>(row.data<float>()[j]), 1e-5 * cell.weight);
  }
}

// Scores beyond what an LSE in f32 can tell: weights are made from the row's maximum and sum.
TEST(Lens, OfLargeScores) {
  Case c = looked_at(MaskKind::causal_last);
  c.scale = 4000.0;
  const Problem p(c);
  Tensors t(p, DType::f32);
  const Lens lens(t.q, t.k, p.options(DType::f32));
  const Tensor zoom = lens.zoom({0, 1}, {});
  for (int64_t i = 0; i < c.M; ++i) {
    double sum = 0;
    for (int64_t j = 0; j < c.N; ++j) sum += static_cast<double>(zoom.data<float>()[i * c.N + j]);
    ASSERT_NEAR(sum, 1, 1e-4) << "row " << i;
  }
  EXPECT_NEAR(lens.cell({0, 1}, 20, 7).weight, static_cast<double>(zoom.data<float>()[20 * c.N + 7]), 1e-9);
}

class Threads {
 public:
  explicit Threads(int count) : before_(threads()) { set_threads(count); }
  ~Threads() { set_threads(before_); }

 private:
  int before_;
};

TEST(Lens, SameBitsForAnyThreads) {
  Case c = looked_at(MaskKind::causal_last);
  c.M = c.N = 1400;  // bands of several pieces
  c.B = c.H = c.Hk = 1;
  const Problem p(c);
  Tensors t(p, DType::f32);
  const auto look = [&](int count) {
    const Threads with(count);
    const Lens lens(t.q, t.k, p.options(DType::f32));
    std::vector<Tensor> seen;
    seen.push_back(lens.received({}));
    seen.push_back(lens.map({}, {.rows = 2, .cols = 30}).mass);
    seen.push_back(lens.map({}, {.rows = 100, .cols = 100}).mass);
    seen.push_back(lens.top_keys({}, 3).weights);
    seen.push_back(lens.row({}, 1300));
    return seen;
  };
  const std::vector<Tensor> first = look(1);
  for (const int count : {2, 5}) {
    const std::vector<Tensor> other = look(count);
    for (std::size_t n = 0; n < first.size(); ++n) EXPECT_TRUE(same_bits(first[n], other[n])) << count << ", " << n;
  }
}

TEST(Lens, PyramidIsWhatASweepGives) {
  const Problem p(looked_at(MaskKind::causal_last));
  Tensors t(p, DType::f32);
  const Lens lens(t.q, t.k, p.options(DType::f32));
  const auto levels = pyramid(lens.map({}, {.rows = 16, .cols = 24}));
  ASSERT_EQ(levels.size(), 4U);
  EXPECT_EQ(levels[3].rows, 2);
  EXPECT_EQ(levels[3].cols, 3);
  for (const PooledMap& level : levels) {
    const PooledMap swept = lens.map({}, {.rows = level.rows, .cols = level.cols});
    EXPECT_TRUE(same_bits(level.peak, swept.peak));
    for (int64_t n = 0; n < swept.mass.size(); ++n)
      ASSERT_NEAR(level.mass.data<float>()[n], swept.mass.data<float>()[n], 1e-5F * swept.mass.data<float>()[n]);
  }
}

TEST(Lens, BandsComeOnceAndCanEndTheSweep) {
  const Problem p(looked_at(MaskKind::none));
  Tensors t(p, DType::f32);
  const Lens lens(t.q, t.k, p.options(DType::f32));
  const PooledMap whole = lens.map({}, {.rows = 150, .cols = 50});
  std::vector<int> times(150, 0);
  int64_t done = 0;
  MapOptions options;
  options.rows = 150;
  options.cols = 50;
  options.progress = [&](const MapBand& band) {
    for (int64_t r = 0; r < band.rows; ++r) {
      ++times[static_cast<std::size_t>(band.first_row + r)];
      EXPECT_EQ(band.mass[r * band.cols + 3], whole.mass.data<float>()[(band.first_row + r) * 50 + 3]);
    }
    done = band.done;
    EXPECT_EQ(band.total, 150);
    return true;
  };
  EXPECT_TRUE(lens.map({}, options).finished);
  EXPECT_EQ(times, std::vector<int>(150, 1));
  EXPECT_EQ(done, 150);
  options.rows = 1;  // several pieces to a band
  options.progress = [](const MapBand&) { return false; };
  EXPECT_TRUE(lens.map({}, options).finished);  // it was the last
  options.rows = 150;
  options.progress = [](const MapBand&) -> bool { throw std::runtime_error("from the user"); };
  EXPECT_THROW(lens.map({}, options), std::runtime_error);
}

TEST(Lens, EndsWhenToldTo) {
  Case c = looked_at(MaskKind::none);
  c.M = 3000;
  c.B = c.H = c.Hk = 1;
  const Problem p(c);
  Tensors t(p, DType::f32);
  const Threads one(1);
  MapOptions options{.rows = 10, .cols = 10};
  int bands = 0;
  options.progress = [&](const MapBand&) { return ++bands < 3; };
  const PooledMap map = Lens(t.q, t.k, p.options(DType::f32)).map({}, options);
  EXPECT_FALSE(map.finished);
  EXPECT_EQ(bands, 3);
}

TEST(Lens, BadArguments) {
  const Problem p(looked_at(MaskKind::none));
  Tensors t(p, DType::f32);
  Tensor wrong(DType::f32, {2, 4, 149, 1});
  const AttentionOptions& options = p.options(DType::f32);
  EXPECT_THROW(Lens(t.q, t.k, options, {.lse = View(wrong)}), InvalidArgument);
  EXPECT_THROW(Lens(t.q, t.k, options, {.v = View(wrong)}), InvalidArgument);
  EXPECT_THROW(Lens(t.q, wrong, options), InvalidArgument);
  const Lens lens(t.q, t.k, options);
  EXPECT_THROW(lens.map({2, 0}), InvalidArgument);
  EXPECT_THROW(lens.map({0, -1}), InvalidArgument);
  EXPECT_THROW(lens.map({}, {.rows = 0}), InvalidArgument);
  EXPECT_THROW(lens.map({}, {.area = {0, 0, 0, 5}}), InvalidArgument);
  EXPECT_THROW(lens.zoom({}, {0, 151, 0, 5}), InvalidArgument);
  EXPECT_THROW(lens.zoom({}, {-1, 1, 0, 5}), InvalidArgument);
  EXPECT_THROW(lens.zoom({}, {0, 1, 1LL << 62, 1LL << 62}), InvalidArgument);
  EXPECT_THROW(lens.row({}, 150), InvalidArgument);
  EXPECT_THROW(lens.column({}, 700), InvalidArgument);
  EXPECT_THROW(lens.top_keys({}, 0), InvalidArgument);
  EXPECT_THROW(lens.histogram({}, 0), InvalidArgument);
  EXPECT_THROW(lens.cell({}, 0, 700), InvalidArgument);
  EXPECT_THROW(lens.statistics({.tokens = {1}}), InvalidArgument);
  EXPECT_EQ(lens.zoom({}, {5, 0, 5, 0}).size(), 0);
  EXPECT_EQ(lens.map({}, {.rows = 1LL << 60, .cols = 1LL << 60}).cols, 700);
}

}  // namespace
}  // namespace attend::test
