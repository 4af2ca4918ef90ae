// Bounds: twice the naive method's error (backward: three times), the rounding of the result, and the noise floor.
#include "support/compare.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

namespace attend::test {
namespace {

using std::int64_t;

constexpr double kForward = 2;      // times the naive error
constexpr double kBackward = 3;     // times the naive error
constexpr double kNoise = 4;        // roundings that may meet in one element when the naive method had luck
constexpr double kDelta = 2;        // the same for roundings of the output that backward reads
constexpr double kTiny = 0x1p-120;  // products below the smallest normal f32 may vanish

std::size_t at(int64_t index) {
  return static_cast<std::size_t>(index);
}

double output_roundoff(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return 0x1p-11;
    case DType::bf16:
      return 0x1p-8;
    case DType::f32:
      return 0x1p-24;
    case DType::f64:
      return 0x1p-53;
  }
  return 0;
}

// Compares one tensor. Matrices of `matrix` elements share one naive error.
struct Comparison {
  const char* what;
  Shape shape;
  const std::vector<double>& got;
  const std::vector<double>& expected;
  const std::vector<double>& naive;
  DType dtype;  // the values were rounded to
  double factor;
  int64_t matrix;

  // noise(index): what roundings alone may do; limit(index): a bound that holds besides.
  template <class Noise, class Limit>
  void run(std::vector<std::string>& failures, Noise&& noise, Limit&& limit) const {
    if (got.size() != expected.size()) {
      failures.push_back(std::string(what) + ": got " + std::to_string(got.size()) + " elements, expected " +
                         std::to_string(expected.size()));
      return;
    }
    Worst worst;
    for (int64_t first = 0; first < std::ssize(got); first += matrix) {
      double naive_error = 0;
      for (int64_t n = first; n < first + matrix; ++n) {
        naive_error = std::max(naive_error, std::abs(naive[at(n)] - expected[at(n)]));
      }
      for (int64_t n = first; n < first + matrix; ++n) {
        const double wanted = expected[at(n)];
        const double own = factor * naive_error + noise(n) + kTiny;
        const double bound = std::min(own + half_ulp(dtype, std::abs(wanted) + own), limit(n));
        worst.add(n, std::abs(got[at(n)] - wanted), bound);
      }
    }
    if (worst.failures > 0) failures.push_back(describe(worst));
  }

  struct Worst {
    int64_t index = 0;
    int64_t failures = 0;
    double ratio = 0;
    double bound = 0;

    void add(int64_t n, double error, double limit) {
      if (error <= limit) return;
      ++failures;
      // A NaN is the worst there is.
      const double times = std::isnan(error) ? std::numeric_limits<double>::infinity() : error / limit;
      if (failures > 1 && !(times > ratio)) return;
      index = n;
      ratio = times;
      bound = limit;
    }
  };

  std::string describe(const Worst& worst) const {
    const auto [B, H, L, D] = shape;
    const int64_t n = worst.index;
    char text[256];
    std::snprintf(text, sizeof text,
                  "%s[%lld, %lld, %lld, %lld] is %.9g, expected %.9g within %.3g (%.3g times the bound; %lld of %zu)",
                  what, static_cast<long long>(n / D / L / H), static_cast<long long>(n / D / L % H),
                  static_cast<long long>(n / D % L), static_cast<long long>(n % D), got[at(n)], expected[at(n)],
                  worst.bound, worst.ratio, static_cast<long long>(worst.failures), got.size());
    return text;
  }
};

double no_limit(int64_t) {
  return std::numeric_limits<double>::infinity();
}

void compare_lse(const Shape& shape, const std::vector<double>& got, const std::vector<double>& expected,
                 std::vector<std::string>& failures) {
  Comparison::Worst worst;
  for (int64_t n = 0; n < std::ssize(got); ++n) {
    const double wanted = expected[at(n)];
    if (got[at(n)] == wanted) continue;  // -inf
    worst.add(n, std::abs(got[at(n)] - wanted), std::isinf(wanted) ? 0 : 1e-5 * (1 + std::abs(wanted)));
  }
  const Comparison text{"lse", shape, got, expected, expected, DType::f32, 0, 1};
  if (worst.failures > 0) failures.push_back(text.describe(worst));
}

// Holds gradients to their bounds. u_out: the rounding of the output that delta is computed from.
struct GradientCheck {
  double u, u_out;
  std::vector<std::string>& failures;

  void run(const char* what, const Shape& shape, const std::vector<double>& got, const std::vector<double>& wanted,
           const std::vector<double>& naive_values, DType stored, const std::vector<double>& noise,
           const std::vector<double>& delta, int64_t matrix) const {
    if (got.empty()) return;
    const int64_t row = std::max<int64_t>(1, std::ssize(got) / std::max<int64_t>(1, std::ssize(noise)));
    Comparison{what, shape, got, wanted, naive_values, stored, kBackward, matrix}.run(
        failures,
        [&](int64_t n) {
          const double by_delta = delta.empty() ? 0 : kDelta * u_out * delta[at(n / row)];
          return kNoise * u * (noise[at(n / row)] + std::abs(wanted[at(n)])) + by_delta;
        },
        no_limit);
  }

  // Those that are stored in f32, whatever the inputs are.
  void run_wide(const Problem& problem, const Truth& truth, const Results& naive, const Computed& computed) const {
    const DType wide = computed.dtype == DType::f64 ? DType::f64 : DType::f32;
    const Results& expected = truth.results;
    const Magnitudes& size = truth.magnitudes;
    run("dbias", problem.bias_shape, computed.dbias, expected.dbias, naive.dbias, wide, size.dbias, size.dbias_delta,
        std::ssize(expected.dbias));
    run("dsinks", {1, problem.info.H, 1, 1}, computed.dsinks, expected.dsinks, naive.dsinks, wide, size.dsinks,
        size.dsinks_delta, problem.info.H);
  }
};

}  // namespace

double unit_roundoff(DType dtype) {
  return dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
}

double half_ulp(DType dtype, double value) {
  if (value == 0) return 0;
  constexpr int kMinExponent[] = {-126, -14, -126, -1022};  // f32, f16, bf16, f64
  const int exponent = std::max(std::ilogb(value), kMinExponent[static_cast<int>(dtype)]);
  return std::ldexp(output_roundoff(dtype), exponent);
}

std::vector<std::string> compare(const Problem& problem, const Truth& truth, const Results& naive,
                                 const Computed& computed) {
  const Case& c = problem.info;
  const Results& expected = truth.results;
  const Magnitudes& size = truth.magnitudes;
  const DType dtype = computed.dtype;
  const double u = unit_roundoff(dtype);
  const double u_out = output_roundoff(dtype);
  std::vector<std::string> failures;

  const bool is_f32 = dtype == DType::f32;
  Comparison{"out", problem.out_shape(), computed.out, expected.out, naive.out, dtype, kForward, c.M * c.E}.run(
      failures, [&](int64_t n) { return kNoise * u * size.out[at(n)]; },
      [&](int64_t n) {
        // 8 eps (1 + max|s|) sum p|v|, with eps = 2 u.
        return is_f32 ? 16 * u * size.score[at(n / c.E)] * size.weighted[at(n)] + kTiny : no_limit(n);
      });
  if (!computed.lse.empty()) compare_lse(problem.lse_shape(), computed.lse, expected.lse, failures);

  const GradientCheck gradient{u, u_out, failures};
  gradient.run("dq", problem.q_shape(), computed.dq, expected.dq, naive.dq, dtype, size.dq, size.dq_delta, c.M * c.D);
  gradient.run("dk", problem.k_shape(), computed.dk, expected.dk, naive.dk, dtype, size.dk, size.dk_delta, c.N * c.D);
  gradient.run("dv", problem.v_shape(), computed.dv, expected.dv, naive.dv, dtype, size.dv, {}, c.N * c.E);
  gradient.run_wide(problem, truth, naive, computed);
  return failures;
}

std::vector<std::string> compare_wide_gradients(const Problem& problem, const Truth& truth, const Results& naive_f32,
                                                const Computed& computed) {
  std::vector<std::string> failures;
  GradientCheck{unit_roundoff(DType::f32), output_roundoff(DType::f32), failures}.run_wide(problem, truth, naive_f32,
                                                                                           computed);
  return failures;
}

}  // namespace attend::test
