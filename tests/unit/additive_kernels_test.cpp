// The kernels of additive attention, on every instruction set that tests can run.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/random.hpp"
#include "support/kernels.hpp"

namespace attend {
namespace {

struct TileProblem {
  TileProblem(std::int64_t row_count, std::int64_t dim, float spread) : rows(row_count), D(dim) {
    stride = (D + 15) / 16 * 16;
    q.resize(static_cast<std::size_t>(rows * stride)), k.resize(static_cast<std::size_t>(kKeyTile * stride));
    columns.resize(static_cast<std::size_t>(D * kKeyTile)), w.resize(static_cast<std::size_t>(D));
    ds.resize(static_cast<std::size_t>(rows * kKeyTile));
    std::uint64_t n = 0;
    const auto next = [&](float scale) { return scale * static_cast<float>(normal(77, n++)); };
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t d = 0; d < D; ++d) at(q, r, d) = next(spread);
    for (std::int64_t j = 0; j < kKeyTile; ++j)
      for (std::int64_t d = 0; d < D; ++d) at(k, j, d) = next(spread);
    for (float& x : w) x = next(1);
    for (float& x : ds) x = next(1);
  }
  float& at(std::vector<float>& x, std::int64_t r, std::int64_t d) const {
    return x[static_cast<std::size_t>(r * stride + d)];
  }
  float at(const std::vector<float>& x, std::int64_t r, std::int64_t d) const {
    return x[static_cast<std::size_t>(r * stride + d)];
  }

  // What the kernel reads: the values, or their exponents by this very kernel.
  void prepare(const KernelTable& table, bool exponents) {
    q_read = q, k_read = k;
    if (exponents) {
      table.additive_exponents(q.data(), q_read.data(), static_cast<std::int64_t>(q.size()));
      table.additive_exponents(k.data(), k_read.data(), static_cast<std::int64_t>(k.size()));
    }
    for (std::int64_t d = 0; d < D; ++d)
      for (std::int64_t j = 0; j < kKeyTile; ++j)
        columns[static_cast<std::size_t>(d * kKeyTile + j)] = at(k_read, j, d);
  }

  std::int64_t rows, D, stride;
  std::vector<float> q, k, w, ds, q_read, k_read, columns;
};

TEST(AdditiveKernels, ExponentsWithinThreeUlp) {
  std::vector<float> x, y;
  for (double v = -42; v <= 42; v += 1.0 / 512) x.push_back(static_cast<float>(v + 1e-3 * v));
  x.resize(x.size() / 16 * 16);
  y.resize(x.size());
  for (const KernelTable* table : test::testable_kernels()) {
    table->additive_exponents(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
    double worst = 0;
    for (std::size_t n = 0; n < x.size(); ++n)
      worst = std::max(worst, std::abs(static_cast<double>(y[n]) / std::exp(2.0 * static_cast<double>(x[n])) - 1));
    EXPECT_LE(worst, 3 * 0x1p-24) << table->name;
  }
}

TEST(AdditiveKernels, ScoresAndGradientsOnEveryInstructionSet) {
  for (const KernelTable* table : test::testable_kernels()) {
    for (const auto& [rows, D] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {5, 16}, {64, 33}, {7, 64}}) {
      for (const bool exponents : {true, false}) {
        TileProblem p(rows, D, exponents ? 3.0F : 40.0F);
        p.prepare(*table, exponents);
        const std::string what = std::string(table->name) + (exponents ? " exponents" : " values");
        double half = 0, weights = 0;
        for (const float x : p.w) half += static_cast<double>(x) / 2, weights += std::abs(static_cast<double>(x));
        std::vector<float> scores(p.ds.size()), dq(p.q.size(), 0.5F), dk(p.k.size(), 0.25F),
            dw(static_cast<std::size_t>(p.stride), 0.125F);
        AdditiveTile t{exponents, rows, D, p.stride, p.q_read.data(), p.columns.data()};
        table->additive_scores(t, p.w.data(), static_cast<float>(half), 1.5F, scores.data());
        t.k = p.k_read.data();
        table->additive_gradients(t, p.ds.data(), dq.data(), dk.data(), dw.data());

        std::vector<double> want_q(dq.size(), 0.5), want_k(dk.size(), 0.25), want_w(dw.size(), 0.125);
        for (std::int64_t r = 0; r < rows; ++r)
          for (std::int64_t j = 0; j < kKeyTile; ++j) {
            double score = 0;
            const auto ds = static_cast<double>(p.ds[static_cast<std::size_t>(r * kKeyTile + j)]);
            for (std::int64_t d = 0; d < D; ++d) {
              const double tanh =
                  std::tanh(static_cast<double>(p.at(p.q, r, d)) + static_cast<double>(p.at(p.k, j, d)));
              score += static_cast<double>(p.w[static_cast<std::size_t>(d)]) * tanh;
              want_q[static_cast<std::size_t>(r * p.stride + d)] += ds * (1 - tanh * tanh) / 4;
              want_k[static_cast<std::size_t>(j * p.stride + d)] += ds * (1 - tanh * tanh) / 4;
              want_w[static_cast<std::size_t>(d)] += ds * (1 - tanh) / 2;
            }
            EXPECT_NEAR(static_cast<double>(scores[static_cast<std::size_t>(r * kKeyTile + j)]), 1.5 * score,
                        1.5 * static_cast<double>(D + 4) * 0x1p-24 * weights)
                << what;
          }
        const auto expect = [&](const std::vector<float>& got, const std::vector<double>& want, std::int64_t count,
                                std::int64_t terms) {
          for (std::int64_t n = 0; n < count; ++n)
            for (std::int64_t d = 0; d < D; ++d) {
              const auto at = static_cast<std::size_t>(n * p.stride + d);
              EXPECT_NEAR(static_cast<double>(got[at]), want[at], static_cast<double>(terms + 8) * 0x1p-22) << what;
            }
        };
        expect(dq, want_q, rows, kKeyTile);
        expect(dk, want_k, kKeyTile, rows);
        expect(dw, want_w, 1, rows * kKeyTile / 4);
      }
    }
  }
}

}  // namespace
}  // namespace attend
