// Tests of the activations and their gradients.
#include "attend/activation.hpp"

#include <limits>

#include "reference/activation.hpp"
#include "unit/error_of.hpp"
#include "unit/on_every_isa.hpp"
#include "unit/op_testing.hpp"

namespace attend::test::ops {
namespace {

constexpr Activation kKinds[] = {Activation::silu, Activation::gelu, Activation::gelu_tanh, Activation::relu};
constexpr const char* kNames[] = {"silu", "gelu", "gelu_tanh", "relu"};
constexpr float kInf = std::numeric_limits<float>::infinity();
const std::vector<Shape> kShapes = {{1, 1, 1, 1}, {2, 3, 4, 7}, {1, 2, 5, 64}, {1, 1, 3, 2500}, {2, 2, 50, 33}};

// What docs/numerics.md promises, in steps of f32 at the result; its table "Where the bounds come from" counts the
// roundings. gelu_tanh rounds the argument v of its exponential; gelu's polynomial cancels below -4.
double ulps_of(Activation kind, double x) {
  const double v = x < 0 ? std::min(90.0, 1.6 * std::abs(x) + 0.0714 * std::abs(x * x * x)) : 0;
  if (kind == Activation::gelu_tanh) return 4 + 2.5 * v;
  if (kind == Activation::gelu) return x < -4 ? 12 : 6;
  return kind == Activation::silu ? 4 : 0;
}
// The largest summand that the slope is made of: where they cancel, its error is measured against that.
double slope_size(Activation kind, double x) {
  if (kind == Activation::relu || std::isinf(x)) return 1;
  const double value = reference::activation(kind, x), share = x == 0 ? 0.5 : value / x;
  return std::max(share, std::abs(reference::activation_slope(kind, x) - share));
}
double step_at(double value) {  // of f32
  const int exponent = std::max(-126, std::ilogb(std::max(std::abs(value), 0x1p-149)));
  return std::ldexp(1.0, exponent - 23);
}

// Floats of every size, and all the neighbours of 0 that a step of 401 meets.
std::vector<float> dense_floats() {
  std::vector<float> x = {0.0F, -0.0F};
  for (std::uint32_t bits = 1; bits < 0x43000000U; bits += bits < 0x38000000U ? 400'009 : 401) {  // up to 128
    x.push_back(std::bit_cast<float>(bits));
    x.push_back(-std::bit_cast<float>(bits));
  }
  return x;
}

TEST(Activation, ValuesWithinTheirStepsOnEveryInstructionSet) {
  const std::vector<float> x = dense_floats();
  std::vector<float> y(x.size());
  for (std::size_t k = 0; k < 4; ++k) {
    std::vector<double> expected;
    for (const float value : x) expected.push_back(reference::activation(kKinds[k], static_cast<double>(value)));
    for (const KernelTable* table : test::testable_kernels()) {
      table->rows.activation(kKinds[k], DType::f32, x.data(), nullptr, std::ssize(x), y.data());
      double worst = 0;
      std::size_t at = 0;
      for (std::size_t n = 0; n < x.size(); ++n) {
        const double steps = std::abs(static_cast<double>(y[n]) - expected[n]) / step_at(expected[n]);
        const double share = steps / std::max(0.5, ulps_of(kKinds[k], static_cast<double>(x[n])));
        if (!(share <= worst)) worst = share, at = n;
      }
      EXPECT_LE(worst, 1.0) << kNames[k] << " of " << x[at] << " is " << y[at] << ", expected " << expected[at] << ", "
                            << table->name;
      RecordProperty(std::string(kNames[k]) + "_" + table->name, std::to_string(worst));
    }
  }
}

TEST(Activation, SlopesWithinTheirStepsOnEveryInstructionSet) {
  const std::vector<float> x = dense_floats(), ones(x.size(), 1.0F);
  std::vector<float> y(x.size());
  for (std::size_t k = 0; k < 4; ++k) {
    std::vector<double> expected, sizes;
    for (const float value : x) {
      expected.push_back(reference::activation_slope(kKinds[k], static_cast<double>(value)));
      sizes.push_back(slope_size(kKinds[k], static_cast<double>(value)));
    }
    for (const KernelTable* table : test::testable_kernels()) {
      table->rows.activation_backward(kKinds[k], DType::f32, ones.data(), x.data(), nullptr, std::ssize(x), y.data(),
                                      nullptr, nullptr);
      double worst = 0;
      std::size_t at = 0;
      for (std::size_t n = 0; n < x.size(); ++n) {
        const double steps = std::abs(static_cast<double>(y[n]) - expected[n]) / step_at(sizes[n]);
        const double share = steps / std::max(0.5, 1 + ulps_of(kKinds[k], static_cast<double>(x[n])));
        if (!(share <= worst)) worst = share, at = n;
      }
      EXPECT_LE(worst, 1.0) << kNames[k] << "' of " << x[at] << " is " << y[at] << ", expected " << expected[at] << ", "
                            << table->name;
      RecordProperty(std::string(kNames[k]) + "_" + table->name, std::to_string(worst));
    }
  }
}

TEST(Activation, EndsOfTheRange) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), most = std::numeric_limits<float>::max();
  const std::vector<float> x = {kInf, -kInf, nan, most, -most, -1e3F, 0.0F}, ones(x.size(), 1.0F);
  std::vector<float> y(x.size()), dx(x.size());
  for (std::size_t k = 0; k < 4; ++k) {
    for (const KernelTable* table : test::testable_kernels()) {
      const std::string what = std::string(kNames[k]) + " on " + table->name;
      table->rows.activation(kKinds[k], DType::f32, x.data(), nullptr, std::ssize(x), y.data());
      table->rows.activation_backward(kKinds[k], DType::f32, ones.data(), x.data(), nullptr, std::ssize(x), dx.data(),
                                      nullptr, nullptr);
      EXPECT_EQ(y[0], kInf) << what;
      EXPECT_EQ(dx[0], 1.0F) << what;
      EXPECT_TRUE(std::isnan(y[2])) << what;
      EXPECT_TRUE(std::isnan(dx[2]) || kKinds[k] == Activation::relu) << what;
      EXPECT_EQ(y[3], most) << what;
      EXPECT_EQ(dx[3], 1.0F) << what;
      for (const std::size_t n : {1U, 4U, 5U, 6U}) EXPECT_EQ(y[n], 0.0F) << what << " at " << x[n];
      for (const std::size_t n : {1U, 4U, 5U}) EXPECT_EQ(dx[n], 0.0F) << what << " at " << x[n];
      EXPECT_EQ(dx[6], kKinds[k] == Activation::relu ? 0.0F : 0.5F) << what;
    }
  }
}

// The kernels' error in f32, and one rounding to the dtype.
double bound_of(DType dtype, Activation kind, double x, double size, double result, double roundings) {
  return 1.01 * ((ulps_of(kind, x) + roundings) * step_at(size) + rounding(dtype, result));
}

TEST(Activation, MatchesTheReferencePerElement) {
  on_every_isa([] {
    for (const Activation kind : kKinds) {
      for (const DType dtype : kFloats) {
        for (const Shape& shape : kShapes) {
          const Tensor x = random_tensor(dtype, shape, 1, 3.0), up = random_tensor(dtype, shape, 2);
          Tensor expected(DType::f64, shape), gated(DType::f64, shape);
          reference::activation(kind, x, std::nullopt, expected);
          reference::activation(kind, x, up, gated);
          const auto bound = [&](auto b, auto h, auto i, auto j) {
            const double y = load(expected, b, h, i, j);
            return bound_of(dtype, kind, load(x, b, h, i, j), y, y, 0);
          };
          const auto gated_bound = [&](auto b, auto h, auto i, auto j) {
            const double y = load(gated, b, h, i, j);
            return bound_of(dtype, kind, load(x, b, h, i, j), 2 * y, y, 1);
          };
          for (const MemoryLayout layout : kMemoryLayouts) {
            const Strided from(x, layout), with(up, layout);
            Strided to(dtype, shape, layout), in_place(x, layout), over_up(up, layout);
            activation(kind, from.view, to.view);
            activation(kind, in_place.view, in_place.view);
            gated_activation(kind, from.view, over_up.view, over_up.view);
            expect_within(to.view, expected, bound, name(dtype));
            expect_within(in_place.view, expected, bound, std::string("in place ") + name(dtype));
            expect_within(over_up.view, gated, gated_bound, std::string("gated ") + name(dtype));
            EXPECT_EQ(to.damaged() + in_place.damaged() + over_up.damaged(), 0);
          }
        }
      }
    }
  });
}

TEST(Activation, BackwardMatchesTheReferencePerElement) {
  on_every_isa([] {
    for (const Activation kind : kKinds) {
      for (const DType dtype : kFloats) {
        for (const Shape& shape : kShapes) {
          const Tensor x = random_tensor(dtype, shape, 3, 3.0), up = random_tensor(dtype, shape, 4),
                       dy = random_tensor(dtype, shape, 5);
          Tensor dx(DType::f64, shape), dgate(DType::f64, shape), dup(DType::f64, shape);
          reference::activation_backward(kind, dy, x, std::nullopt, dx, std::nullopt);
          reference::activation_backward(kind, dy, x, up, dgate, dup);
          const auto bound = [&](const Tensor& of, bool gate, bool slope) {
            return [&, gate, slope](auto b, auto h, auto i, auto j) {
              const double at = load(x, b, h, i, j), factor = load(dy, b, h, i, j) * (gate ? load(up, b, h, i, j) : 1);
              const double size = slope ? slope_size(kind, at) : std::abs(reference::activation(kind, at));
              return bound_of(dtype, kind, at, 2 * size * factor, load(of, b, h, i, j), 2);
            };
          };
          for (const MemoryLayout layout : kMemoryLayouts) {
            const Strided from(x, layout), with(up, layout);
            Strided plain(dy, layout), over_dy(dy, layout), to_gate(dtype, shape, layout);
            activation_backward(kind, plain.view, from.view, plain.view);
            gated_activation_backward(kind, over_dy.view, from.view, with.view, to_gate.view, over_dy.view);
            expect_within(plain.view, dx, bound(dx, false, true), std::string("dx ") + name(dtype));
            expect_within(to_gate.view, dgate, bound(dgate, true, true), std::string("dgate ") + name(dtype));
            expect_within(over_dy.view, dup, bound(dup, false, false), std::string("dup ") + name(dtype));
            EXPECT_EQ(plain.damaged() + over_dy.damaged() + to_gate.damaged(), 0);
          }
        }
      }
    }
  });
}

TEST(Activation, GradientsByCentralDifferences) {
  const Shape shape{1, 2, 3, 5};
  for (const Activation kind : kKinds) {
    Tensor gate = random_tensor(DType::f64, shape, 6, 2.0), up = random_tensor(DType::f64, shape, 7);
    const Tensor dy = random_tensor(DType::f64, shape, 8);
    Tensor y(DType::f64, shape), dx(DType::f64, shape), dgate(DType::f64, shape), dup(DType::f64, shape);
    activation_backward(kind, dy, gate, dx);
    gated_activation_backward(kind, dy, gate, up, dgate, dup);
    const auto plain_loss = [&] {
      activation(kind, gate, y);
      return dot(y, dy);
    };
    const auto gated_loss = [&] {
      gated_activation(kind, gate, up, y);
      return dot(y, dy);
    };
    expect_gradient(dx, gate, plain_loss, "x");
    expect_gradient(dgate, gate, gated_loss, "gate");
    expect_gradient(dup, up, gated_loss, "up");
  }
}

TEST(Activation, BitsDependOnTheElementAlone) {
  const Tensor x = random_tensor(DType::f32, {1, 1, 300, 333}, 9), up = random_tensor(DType::f32, x.shape(), 10);
  on_every_isa([&] {
    const auto gated = [&] {
      Tensor y(DType::f32, x.shape());
      gated_activation(Activation::silu, x, up, y);
      return y;
    };
    expect_same_for_any_threads(gated, "silu");
    const Tensor y = gated();
    Tensor alone(DType::f32, {1, 1, 1, 1});
    for (const std::int64_t n : {0, 331, 332, 99'899}) {
      gated_activation(Activation::silu, view_of(x.data<float>() + n, {1, 1, 1, 1}),
                       view_of(up.data<float>() + n, {1, 1, 1, 1}), alone);
      EXPECT_EQ(alone.data<float>()[0], y.data<float>()[n]) << n;
    }
  });
}

// Vectors of small numbers take a shorter way: beside a large one, which takes the long way, the bits are the same.
TEST(Activation, BitsDoNotDependOnNeighbours) {
  const std::vector<float> all = dense_floats();
  std::vector<float> x;
  for (std::size_t n = 0; n < all.size(); n += 13)
    if (std::abs(all[n]) < 90) x.push_back(all[n]);
  std::vector<float> apart(2 * x.size(), 120.0F), ones(apart.size(), 1.0F), y(x.size()), dx(x.size()), z(apart.size()),
      dz(apart.size());
  for (std::size_t n = 0; n < x.size(); ++n) apart[2 * n] = x[n];
  for (const KernelTable* table : test::testable_kernels()) {
    const auto run = [&](Activation kind, const std::vector<float>& in, std::vector<float>& out,
                         std::vector<float>& slope) {
      table->rows.activation(kind, DType::f32, in.data(), nullptr, std::ssize(in), out.data());
      table->rows.activation_backward(kind, DType::f32, ones.data(), in.data(), nullptr, std::ssize(in), slope.data(),
                                      nullptr, nullptr);
    };
    for (std::size_t k = 0; k < 4; ++k) {
      run(kKinds[k], x, y, dx);
      run(kKinds[k], apart, z, dz);
      std::size_t differ = 0;
      for (std::size_t n = 0; n < x.size(); ++n)
        if (std::memcmp(&y[n], &z[2 * n], 4) != 0 || std::memcmp(&dx[n], &dz[2 * n], 4) != 0) ++differ;
      EXPECT_EQ(differ, 0U) << kNames[k] << " on " << table->name;
    }
  }
}

// What backward makes again is what forward made; halves side by side are what halves apart are.
TEST(Activation, BackwardMakesTheValuesAgain) {
  const Shape shape{1, 2, 5, 77};
  on_every_isa([&] {
    for (const Activation kind : kKinds) {
      for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64}) {
        const Tensor gate = random_tensor(dtype, shape, 11, 3.0), up = random_tensor(dtype, shape, 12),
                     dy = random_tensor(dtype, shape, 13);
        Tensor expected(dtype, shape), dgate(dtype, shape), dup(dtype, shape);
        gated_activation(kind, gate, up, expected);
        gated_activation_backward(kind, dy, gate, up, dgate, dup);
        for (const MemoryLayout layout : kMemoryLayouts) {
          const Strided from(gate, layout), with(up, layout), given(dy, layout);
          Strided y(dtype, shape, layout), to_gate(dtype, shape, layout), to_up(dtype, shape, layout);
          gated_activation_backward(kind, given.view, from.view, with.view, to_gate.view, to_up.view, y.view);
          for_each_element(shape, [&](auto b, auto h, auto i, auto j) {
            ASSERT_EQ(load(y.view, b, h, i, j), load(expected, b, h, i, j)) << name(dtype);
            ASSERT_EQ(load(to_gate.view, b, h, i, j), load(dgate, b, h, i, j)) << name(dtype);
            ASSERT_EQ(load(to_up.view, b, h, i, j), load(dup, b, h, i, j)) << name(dtype);
          });
          EXPECT_EQ(y.damaged() + to_gate.damaged() + to_up.damaged(), 0);
        }
      }
    }
  });
}

TEST(Activation, EmptyTensorsWork) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const Shape& shape : std::vector<Shape>{{0, 2, 3, 4}, {2, 2, 0, 4}, {2, 2, 3, 0}}) {
      Tensor x(dtype, shape), y(dtype, shape), z(dtype, shape);
      activation(Activation::gelu, x, y);
      gated_activation_backward(Activation::gelu, x, x, x, y, z);
    }
  }
}

TEST(Activation, RefusesBadArguments) {
  Tensor x(DType::f32, {1, 2, 3, 4}), y(DType::f32, {1, 2, 3, 4}), small(DType::f32, {1, 2, 3, 3});
  Tensor half(DType::f16, {1, 2, 3, 4});
  const auto silu = Activation::silu;
  EXPECT_EQ(error_of([&] { activation(static_cast<Activation>(9), x, y); }),
            "activation: the activation is 9, expected silu, gelu, gelu_tanh or relu");
  EXPECT_EQ(error_of([&] { activation(silu, x, small); }),
            "activation: y shape is [1, 2, 3, 3], expected [1, 2, 3, 4]");
  EXPECT_EQ(error_of([&] { gated_activation(silu, x, half, y); }), "gated_activation: up dtype is f16, expected f32");
  EXPECT_EQ(error_of([&] { activation_backward(silu, x, y, y); }),
            "activation_backward: dx shares memory with x, expected a place of its own");
  EXPECT_EQ(error_of([&] { gated_activation_backward(silu, x, x, x, y, half); }),
            "gated_activation_backward: dup dtype is f16, expected f32");
  Tensor z(DType::f32, {1, 2, 3, 4});
  EXPECT_EQ(error_of([&] { gated_activation_backward(silu, x, x, x, y, z, y); }),
            "gated_activation_backward: y shares memory with dgate, expected a place of its own");
  EXPECT_EQ(error_of([&] { gated_activation_backward(silu, x, y, y, x, x); }),
            "gated_activation_backward: dup shares memory with dgate, expected a place of its own");
}

}  // namespace
}  // namespace attend::test::ops
