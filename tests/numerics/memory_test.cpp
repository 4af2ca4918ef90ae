// Any memory: repeated, misaligned, against unreadable pages, and far beyond 2^31 elements; always the same bits.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/buffer.hpp"
#include "support/guard.hpp"
#include "support/tensors.hpp"

namespace attend::test {
namespace {

using std::int64_t;

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};

std::size_t bytes_of(const View& x) {
  return static_cast<std::size_t>(x.shape[0] * x.shape[1] * x.shape[2] * x.shape[3] * size_of(x.dtype));
}

void copy(const View& from, const MutableView& to) {  // both contiguous
  if (bytes_of(from) > 0) std::memcpy(to.data, from.data, bytes_of(from));
}

// The views of one call, wherever their memory is.
struct Placed {
  MutableView q, k, v, dout, out, lse, dq, dk, dv;

  void run(const AttentionOptions& options) const {
    attention(q, k, v, out, options, {.lse = lse, .weights = {}});
    attention_backward(dout, q, k, v, out, lse, {dq, dk, dv, {}, {}}, options);
  }
  void load(const Tensors& from) const {
    copy(from.q, q);
    copy(from.k, k);
    copy(from.v, v);
    copy(from.dout, dout);
  }
  std::string difference(const Tensors& expected) const {
    if (!same_bits(out, expected.out)) return "out";
    if (!same_bits(lse, expected.lse)) return "lse";
    if (!same_bits(dq, expected.dq)) return "dq";
    if (!same_bits(dk, expected.dk)) return "dk";
    return same_bits(dv, expected.dv) ? "" : "dv";
  }
};

Case sized_case(int64_t M, int64_t N, int64_t D, int64_t E, MaskKind mask) {
  Case c;
  c.B = 2;
  c.H = 4;
  c.Hk = 2;
  c.M = M;
  c.N = N;
  c.D = D;
  c.E = E;
  c.mask = mask;
  c.backward = true;
  return c;
}

// A read or a write one byte outside any argument ends the process.
TEST(Memory, GuardPages) {
  constexpr std::pair<int64_t, int64_t> kDims[] = {{1, 1},   {2, 3},   {3, 2},    {5, 7},    {7, 9},    {8, 8},
                                                   {15, 17}, {16, 16}, {17, 15},  {31, 33},  {33, 31},  {63, 65},
                                                   {64, 64}, {65, 1},  {100, 96}, {127, 95}, {129, 40}, {256, 257}};
  constexpr std::pair<int64_t, int64_t> kLengths[] = {{1, 1}, {3, 67}, {65, 5}, {13, 530}};
  for (const DType dtype : kDTypes) {
    for (const auto& [D, E] : kDims) {
      for (const auto& [M, N] : kLengths) {
        const Problem p(sized_case(M, N, D, E, N > 60 ? MaskKind::causal_last : MaskKind::none));
        Tensors expected(p, dtype);
        expected.run(p.options(dtype));
        for (const Against side : {Against::front, Against::back}) {
          GuardedTensor q(dtype, p.q_shape(), side), k(dtype, p.k_shape(), side), v(dtype, p.v_shape(), side);
          GuardedTensor dout(dtype, p.out_shape(), side), out(dtype, p.out_shape(), side);
          GuardedTensor lse(DType::f32, p.lse_shape(), side), dq(dtype, p.q_shape(), side);
          GuardedTensor dk(dtype, p.k_shape(), side), dv(dtype, p.v_shape(), side);
          const Placed placed = {q.view(),   k.view(),  v.view(),  dout.view(), out.view(),
                                 lse.view(), dq.view(), dk.view(), dv.view()};
          placed.load(expected);
          placed.run(p.options(dtype));
          ASSERT_EQ(placed.difference(expected), "") << p.info.problem_name() << " " << name(dtype);
        }
      }
    }
  }
}

// The other arguments: bias, slopes, sinks, dense mask, weights.
TEST(Memory, GuardPagesAroundOptions) {
  for (const DType dtype : kDTypes) {
    for (const auto& [M, N] : {std::pair{3, 67}, std::pair{17, 31}, std::pair{5, 530}}) {
      Case c = sized_case(M, N, 24, 24, MaskKind::none);
      c.bias = BiasKind::full;
      c.slopes = SlopesKind::shared;
      c.sinks = true;
      const Problem p(c);
      for (const Against side : {Against::front, Against::back}) {
        const View bias = *p.options(dtype).bias;
        GuardedTensor guarded_bias(dtype, bias.shape, side), dbias(DType::f32, bias.shape, side);
        GuardedTensor slopes(DType::f32, {1, c.H, 1, 1}, side), sinks(DType::f32, {1, c.H, 1, 1}, side);
        GuardedTensor dsinks(DType::f32, {1, c.H, 1, 1}, side), weights(dtype, {c.B, c.H, M, N}, side);
        GuardedTensor half_mask(DType::f16, {1, 1, M, (N + 1) / 2}, side);  // two bytes of mask an element
        copy(bias, guarded_bias.view());
        copy(*p.options(dtype).alibi_slopes, slopes.view());
        copy(*p.options(dtype).sinks, sinks.view());
        auto* bits = static_cast<std::uint8_t*>(half_mask.view().data) + (side == Against::back ? M * (N % 2) : 0);
        for (int64_t n = 0; n < int64_t{M} * N; ++n) bits[n] = n % 3 != 0;

        AttentionOptions options = p.options(dtype);
        options.mask = dense(bits, {1, 1, M, N});
        Tensors expected(p, dtype);
        expected.run(options);
        const Tensor expected_weights =
            attention(expected.q, expected.k, expected.v, options, {.weights = true}).weights;

        options.bias = guarded_bias.view();
        options.alibi_slopes = slopes.view();
        options.sinks = sinks.view();
        Tensors t(p, dtype);
        attention(t.q, t.k, t.v, t.out, options, {.lse = t.lse.view(), .weights = weights.view()});
        attention_backward(t.dout, t.q, t.k, t.v, t.out, t.lse, {t.dq, t.dk, t.dv, dbias.view(), dsinks.view()},
                           options);
        copy(dbias.view(), t.dbias);
        copy(dsinks.view(), t.dsinks);
        ASSERT_EQ(t.difference(expected), "") << p.info.problem_name() << " " << name(dtype);
        if (dtype == DType::f32) {
          ASSERT_TRUE(same_bits(weights.view(), expected_weights));
        }
      }
    }
  }
}

// Every pointer one byte off.
TEST(Memory, MisalignedPointers) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const auto& [M, N, D] : {std::tuple{5, 70, 64}, std::tuple{1, 530, 17}, std::tuple{33, 9, 1}}) {
      const Problem p(sized_case(M, N, D, D, MaskKind::causal_last));
      Tensors expected(p, dtype);
      expected.run(p.options(dtype));
      std::vector<std::unique_ptr<std::byte[]>> memory;
      const auto shifted = [&](const Tensor& like) {
        memory.push_back(std::make_unique<std::byte[]>(static_cast<std::size_t>(like.bytes()) + 1));
        return MutableView{like.dtype(), memory.back().get() + 1, like.shape(), contiguous_strides(like.shape())};
      };
      const Placed placed = {shifted(expected.q),   shifted(expected.k),   shifted(expected.v),
                             shifted(expected.out), shifted(expected.out), shifted(expected.lse),
                             shifted(expected.q),   shifted(expected.k),   shifted(expected.v)};
      placed.load(expected);
      placed.run(p.options(dtype));
      ASSERT_EQ(placed.difference(expected), "") << p.info.problem_name() << " " << name(dtype);
    }
  }
}

// A stride of 0 repeats: each dimension of each input, one at a time, against a copy that is written out.
TEST(Memory, RepeatedInputs) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    const Problem p(sized_case(19, 70, 24, 24, MaskKind::causal_last));
    for (int input = 0; input < 4; ++input) {
      for (std::size_t dimension = 0; dimension < 4; ++dimension) {
        Tensors t(p, dtype);
        View views[] = {t.q, t.k, t.v, t.dout};
        views[input].strides[dimension] = 0;
        AttentionGradients gradients = {t.dq, t.dk, t.dv, {}, {}};
        const auto& options = p.options(dtype);
        attention(views[0], views[1], views[2], t.out, options, {.lse = t.lse.view(), .weights = {}});
        attention_backward(views[3], views[0], views[1], views[2], t.out, t.lse, gradients, options);

        Tensors written(p, dtype);
        const std::vector<double> values = to_doubles(views[input]);
        const std::vector<float> floats(values.begin(), values.end());
        Tensor* const targets[] = {&written.q, &written.k, &written.v, &written.dout};
        *targets[input] = to_tensor(dtype, views[input].shape, floats);
        written.run(options);
        ASSERT_EQ(t.difference(written), "") << name(dtype) << " input " << input << " dimension " << dimension;
      }
    }
  }
}

// A view over sparse memory whose strides in `dimension` leap far: offsets pass 2^31 elements (and 2^32 bytes).
class Spread {
 public:
  Spread(DType dtype, const Shape& shape, std::size_t dimension, bool backwards)
      : mapping_(static_cast<std::size_t>(kLeap * shape[dimension] * size_of(dtype))) {
    view_ = {dtype, mapping_.data(), shape, contiguous_strides(shape)};
    view_.strides[dimension] = backwards ? -kLeap : kLeap;
    if (backwards) view_.data = mapping_.data() + kLeap * (shape[dimension] - 1) * size_of(dtype);
  }

  MutableView view() const { return view_; }
  void fill(const View& from) const {
    for (int64_t b = 0; b < from.batch(); ++b) {
      for (int64_t h = 0; h < from.heads(); ++h) {
        for (int64_t i = 0; i < from.length(); ++i) {
          for (int64_t d = 0; d < from.dim(); ++d) std::memcpy(at(view_, b, h, i, d), at(from, b, h, i, d), size());
        }
      }
    }
  }

 private:
  static constexpr int64_t kLeap = (int64_t{1} << 30) + 64;

  std::size_t size() const { return static_cast<std::size_t>(size_of(view_.dtype)); }
  static std::byte* at(const View& x, int64_t b, int64_t h, int64_t i, int64_t d) {
    const int64_t offset = b * x.strides[0] + h * x.strides[1] + i * x.strides[2] + d * x.strides[3];
    return const_cast<std::byte*>(static_cast<const std::byte*>(x.data)) + offset * size_of(x.dtype);
  }

  Mapping mapping_;
  MutableView view_;
};

TEST(Memory, OffsetsBeyondTwoToThe31) {
  Case c = sized_case(4, 4, 4, 4, MaskKind::causal_last);
  c.B = 4;
  c.H = c.Hk = 4;  // every dimension is 4: the last offset is 3 leaps away
  const Problem p(c);
  for (const DType dtype : kDTypes) {
    Tensors expected(p, dtype);
    expected.run(p.options(dtype));
    for (std::size_t dimension = 0; dimension < 4; ++dimension) {
      for (const bool backwards : {false, true}) {
        const Spread q(dtype, p.q_shape(), dimension, backwards), k(dtype, p.k_shape(), dimension, backwards);
        const Spread v(dtype, p.v_shape(), dimension, backwards), dout(dtype, p.out_shape(), dimension, backwards);
        const Spread out(dtype, p.out_shape(), dimension, backwards), dq(dtype, p.q_shape(), dimension, backwards);
        const Spread dk(dtype, p.k_shape(), dimension, backwards), dv(dtype, p.v_shape(), dimension, backwards);
        const Spread lse(DType::f32, p.lse_shape(), dimension, backwards);
        q.fill(expected.q);
        k.fill(expected.k);
        v.fill(expected.v);
        dout.fill(expected.dout);
        const Placed placed = {q.view(),   k.view(),  v.view(),  dout.view(), out.view(),
                               lse.view(), dq.view(), dk.view(), dv.view()};
        placed.run(p.options(dtype));
        ASSERT_EQ(placed.difference(expected), "") << name(dtype) << " dimension " << dimension;
      }
    }
  }
}

}  // namespace
}  // namespace attend::test
