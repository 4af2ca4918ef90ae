// Large scores by the emulated plain kernels: additive masks of -1e4 to -inf on all, some or none of a row, scales from
// 1e-6 to 1e20; forward, LSE, gradients and maps. The truth is in double, over scores as f32 holds them: q.k is exact
// here, and is rounded after the scale and after the bias (docs/numerics.md, "Large scores").
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "attend/cuda.hpp"

namespace {

using namespace attend;
using namespace emulated;

std::string wanted;

struct Case {
  std::string name;
  std::int64_t H, Hk, M, N, D;
  DType dtype = DType::bf16;
  double mask = 0;  // added to some scores
  enum { none, some, last, whole } on = none;
  double scale = 0.125;
  bool sinks = false;
};

// Whether the mask lies on a score: `last` on those that are visited first.
bool is_masked(const Case& c, std::int64_t i, std::int64_t j) {
  if (c.on == Case::whole) return i % 3 != 1;  // of most rows all
  return (c.on == Case::some && (i + j) % 3 == 0) || (c.on == Case::last && j >= c.N / 3);
}

// Quarters up to 1: their products are exact in any order.
void draw_quarters(Array& x) {
  for (std::size_t n = 0; n < x.wide.size(); ++n) x.set(n, static_cast<float>(static_cast<int>(numbers() % 9) - 4) / 4);
}

struct Truth {
  std::vector<double> weights, sink_weights, lse;  // [H, M, N], [H, M] twice
};

Truth truth_of(const Case& c, const Array& q, const Array& k, const Array& bias, const Array& sinks) {
  Truth t;
  for (std::int64_t h = 0; h < c.H; ++h)
    for (std::int64_t i = 0; i < c.M; ++i) {
      std::vector<double> s;
      const std::int64_t row = h * c.M + i, keys = h / (c.H / c.Hk) * c.N;
      for (std::int64_t j = 0; j < c.N; ++j) {
        double x = 0;
        for (std::int64_t d = 0; d < c.D; ++d)
          x += q.wide[static_cast<std::size_t>(row * c.D + d)] * k.wide[static_cast<std::size_t>((keys + j) * c.D + d)];
        const float held = static_cast<float>(static_cast<double>(static_cast<float>(c.scale)) * x);
        s.push_back(held + bias.floats[static_cast<std::size_t>(row * c.N + j)]);  // in f32
      }
      const double sink = c.sinks ? sinks.wide[static_cast<std::size_t>(h)] : -INFINITY;
      const double top = std::max(sink, *std::max_element(s.begin(), s.end()));
      double sum = 0;
      for (const double x : s) sum += std::exp(x - top);
      if (c.sinks) sum += std::exp(sink - top);
      const bool nothing = top == -INFINITY;
      t.lse.push_back(nothing ? -INFINITY : top + std::log(sum));
      t.sink_weights.push_back(c.sinks ? std::exp(sink - top) / sum : 0);
      for (const double x : s) t.weights.push_back(nothing ? 0 : std::exp(x - top) / sum);
    }
  return t;
}

double relative_error(const Array& got, const std::vector<double>& expected) {
  double error = 0, norm = 0;
  for (std::size_t n = 0; n < expected.size(); ++n) {
    const double x = got.get(n) - expected[n];
    error += x * x, norm += expected[n] * expected[n];
  }
  return std::sqrt(norm > 0 ? error / norm : error);
}

void check_forward(const Case& c, const Truth& t, const Array& v, const Array& out, const Array& lse) {
  const double unit = c.dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
  double worst = 0, worst_lse = 0;
  for (std::int64_t row = 0; row < c.H * c.M; ++row) {
    const std::int64_t keys = row / c.M / (c.H / c.Hk) * c.N;
    const double right = t.lse[static_cast<std::size_t>(row)], got = lse.get(static_cast<std::size_t>(row));
    if (got != right) worst_lse = std::max(worst_lse, std::abs(got - right) / (1e-4 + 0x1p-22 * std::abs(right)));
    if (std::isnan(got)) worst_lse = 1e9;
    for (std::int64_t e = 0; e < c.D; ++e) {
      double x = 0, spread = 0;
      for (std::int64_t j = 0; j < c.N; ++j) {
        const double y =
            t.weights[static_cast<std::size_t>(row * c.N + j)] * v.wide[static_cast<std::size_t>((keys + j) * c.D + e)];
        x += y, spread += std::abs(y);
      }
      const double off = std::abs(out.get(static_cast<std::size_t>(row * c.D + e)) - x);
      worst = std::max(worst, std::isfinite(off) ? off / (unit * (std::abs(x) + spread) + 1e-5) : 1e9);
    }
  }
  check(c.name + ", of the bound", worst <= 1, worst);
  check(c.name + ": lse", worst_lse <= 1, worst_lse);
}

void check_gradients(const Case& c, const Truth& t, const AttentionOptions& options, const Array& q, const Array& k,
                     const Array& v, const Array& out, const Array& lse) {
  Array dout(c.dtype, out.shape, 1), dq(c.dtype, q.shape, 0), dk(c.dtype, k.shape, 0), dv(c.dtype, v.shape, 0);
  Array dbias(DType::f32, {1, c.H, c.M, c.N}, 0), dsinks(DType::f32, {1, c.H, 1, 1}, 0);
  AttentionGradients got{dq.view(), dk.view(), dv.view()};
  got.dbias = dbias.view();
  if (c.sinks) got.dsinks = dsinks.view();
  cuda::attention_backward(dout.view(), q.view(), k.view(), v.view(), out.view(), lse.view(), got, options);
  std::vector<double> right_q(q.wide.size()), right_k(k.wide.size()), right_v(v.wide.size());
  std::vector<double> right_bias(dbias.wide.size()), right_sinks(static_cast<std::size_t>(c.H));
  for (std::int64_t row = 0; row < c.H * c.M; ++row) {
    const std::int64_t keys = row / c.M / (c.H / c.Hk) * c.N;
    std::vector<double> dw(static_cast<std::size_t>(c.N));
    double delta = 0;  // of the rounded output, as backward reads it
    for (std::int64_t e = row * c.D; e < (row + 1) * c.D; ++e)
      delta += dout.wide[static_cast<std::size_t>(e)] * out.get(static_cast<std::size_t>(e));
    for (std::int64_t j = 0; j < c.N; ++j) {
      const double w = t.weights[static_cast<std::size_t>(row * c.N + j)];
      for (std::int64_t e = 0; e < c.D; ++e) {
        const auto at = static_cast<std::size_t>((keys + j) * c.D + e);
        const double g = dout.wide[static_cast<std::size_t>(row * c.D + e)];
        dw[static_cast<std::size_t>(j)] += g * v.wide[at];
        right_v[at] += w * g;
      }
    }
    right_sinks[static_cast<std::size_t>(row / c.M)] -= t.sink_weights[static_cast<std::size_t>(row)] * delta;
    for (std::int64_t j = 0; j < c.N; ++j) {
      const auto n = static_cast<std::size_t>(row * c.N + j);
      const double ds = t.weights[n] * (dw[static_cast<std::size_t>(j)] - delta);
      right_bias[n] = ds;
      for (std::int64_t d = 0; d < c.D; ++d) {
        const auto of_q = static_cast<std::size_t>(row * c.D + d),
                   of_k = static_cast<std::size_t>((keys + j) * c.D + d);
        right_q[of_q] += c.scale * ds * k.wide[of_k], right_k[of_k] += c.scale * ds * q.wide[of_q];
      }
    }
  }
  const double bound = c.dtype == DType::bf16 ? 1e-2 : 2e-3;
  const auto near = [&](const char* what, const Array& x, const std::vector<double>& y, double most) {
    const double error = relative_error(x, y);
    check(c.name + ": " + what, error < most, error);
  };
  near("dbias", dbias, right_bias, bound), near("dv", dv, right_v, bound);
  // Else they are beyond what f16 holds, or subnormal.
  if (c.scale >= 1e-3 && c.scale <= 1e3) near("dq", dq, right_q, bound), near("dk", dk, right_k, bound);
  if (c.sinks) near("dsinks", dsinks, right_sinks, 5 * bound);
}

// A cell to each query and key of the last head: the weights.
void check_map(const Case& c, const Truth& t, const AttentionOptions& options, const Array& q, const Array& k,
               const Array& lse) {
  Array mass(DType::f32, {1, 1, c.M, c.N}, 0);
  cuda::map(q.view(), k.view(), lse.view(), {0, c.H - 1}, {{}, mass.view()}, options);
  double worst = 0;
  for (std::size_t n = 0; n < mass.wide.size(); ++n) {
    const double right = t.weights[t.weights.size() - mass.wide.size() + n];
    const double off = std::abs(mass.get(n) - right) / (1e-4 * right + 1e-7);
    worst = std::max(worst, std::isfinite(off) ? off : 1e9);
  }
  check(c.name + ": map, of the bound", worst <= 1, worst);
}

void run(const Case& c) {
  if (c.name.find(wanted) == std::string::npos) return;
  Array q(c.dtype, {1, c.H, c.M, c.D}, 1), k(c.dtype, {1, c.Hk, c.N, c.D}, 1), v = k;
  Array bias(DType::f32, {1, c.H, c.M, c.N}, 1), sinks(DType::f32, {1, c.H, 1, 1}, 1);
  draw_quarters(q), draw_quarters(k), draw_quarters(v);
  for (std::int64_t n = 0; n < c.H * c.M * c.N; ++n)
    bias.set(static_cast<std::size_t>(n), is_masked(c, n / c.N % c.M, n % c.N) ? static_cast<float>(c.mask) : 0.0F);
  AttentionOptions options;
  options.scale = c.scale;
  if (c.on != Case::none) options.bias = bias.view();
  if (c.sinks) options.sinks = sinks.view();
  Array out(c.dtype, q.shape, 0), lse(DType::f32, {1, c.H, c.M, 1}, 0);
  cuda::attention(q.view(), k.view(), v.view(), out.view(), options, {.lse = lse.view()});
  const Truth t = truth_of(c, q, k, bias, sinks);
  check_forward(c, t, v, out, lse);
  if (c.M < 8) return;
  check_map(c, t, options, q, k, lse);
  options.bias = bias.view();
  check_gradients(c, t, options, q, k, v, out, lse);
}

void each_case(DType dtype) {
  const std::string type = dtype == DType::bf16 ? "bf16 " : "f16 ";
  const float least = std::numeric_limits<float>::lowest();
  const std::pair<const char*, double> masks[] = {{"-1e4", -1e4},   {"-65504", -65504},   {"-1e9", -1e9},
                                                  {"-1e30", -1e30}, {"finfo.min", least}, {"-inf", -INFINITY}};
  for (const auto& [text, mask] : masks) {
    const std::string name = type + text;
    Case c{name + " on whole rows", 2, 1, 40, 150, 64, dtype, mask, Case::whole};
    run(c);
    c.name = name + " on some keys", c.on = Case::some, c.sinks = true, run(c);
    c.name = name + " on the last keys", c.on = Case::last, c.sinks = false, c.scale = 20, run(c);
    // Parts of the keys, of which the last is short.
    c.M = 2, c.N = 700, c.name = name + " on whole rows, few queries", c.on = Case::whole, c.scale = 0.125, run(c);
    c.name = name + " on the last keys, few queries", c.on = Case::last, run(c);
  }
  for (const double scale : {1e-6, 100.0, 1e4, 1e9, 1e20}) {
    char text[32];
    std::snprintf(text, sizeof(text), "scale %.0e", scale);
    Case c{type + text, 2, 1, 40, 150, 128, dtype, 0, Case::none, scale};
    run(c);
    c.name += ", few queries", c.M = 2, c.N = 700, run(c);
    c.name = type + text + " and a mask", c.M = 40, c.N = 150, c.D = 256, c.mask = -1e9, c.on = Case::whole, run(c);
  }
}

}  // namespace

int main(int count, char** words) {
  wanted = count > 1 ? words[1] : "";
  for (const DType dtype : {DType::bf16, DType::f16}) each_case(dtype);
  std::printf("%d checks, %d failed\n", checks, failed);
  return failed == 0 ? 0 : 1;
}
