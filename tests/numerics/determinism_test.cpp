// The same bits: for every repeat, thread count, batch around a row, slice of the queries, and caller.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "attend/runtime.hpp"
#include "support/check.hpp"
#include "support/tensors.hpp"

namespace attend::test {
namespace {

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};

// Two splits of keys, tiles with tails, grouped heads, all score rules.
Case busy_case() {
  Case c;
  c.B = 2;
  c.H = 4;
  c.Hk = 2;
  c.M = 37;
  c.N = 700;
  c.D = 40;
  c.E = 24;
  c.mask = MaskKind::causal_last;
  c.softcap = 5;
  c.bias = BiasKind::by_head;
  c.sinks = true;
  c.dropout = 0.1;
  c.backward = true;
  return c;
}

Case decode_case() {
  Case c;
  c.H = 8;
  c.Hk = 2;
  c.N = 1500;
  c.D = c.E = 64;
  c.backward = true;
  return c;
}

Case long_case() {
  Case c;
  c.H = 2;
  c.M = 300;
  c.N = 300;
  c.D = c.E = 64;
  c.mask = MaskKind::causal_last;
  c.backward = true;
  return c;
}

class KeepThreads {
 public:
  ~KeepThreads() { set_threads(before_); }

 private:
  int before_ = threads();
};

TEST(Determinism, ThousandRepeats) {
  const KeepThreads keep;
  set_threads(3);
  for (const DType dtype : kDTypes) {
    Case c = busy_case();
    c.M = 9;
    c.B = 1;
    const Problem problem(c);
    Tensors first(problem, dtype);
    first.run(problem.options(dtype));
    Tensors again(problem, dtype);
    const int repeats = sweep_mode() == "quick" ? 50 : 1000;
    for (int n = 0; n < repeats; ++n) {
      again.run(problem.options(dtype));
      ASSERT_EQ(again.difference(first), "") << name(dtype) << ", repeat " << n;
    }
  }
}

TEST(Determinism, AnyThreadCount) {
  const KeepThreads keep;
  for (const Case& c : {busy_case(), decode_case(), long_case()}) {
    const Problem problem(c);
    for (const DType dtype : kDTypes) {
      set_threads(1);
      Tensors alone(problem, dtype);
      alone.run(problem.options(dtype));
      for (const int count : {2, 3, 7, 16}) {
        set_threads(count);
        for (int repeat = 0; repeat < 5; ++repeat) {
          Tensors many(problem, dtype);
          many.run(problem.options(dtype));
          ASSERT_EQ(many.difference(alone), "") << c.problem_name() << ", " << name(dtype) << ", threads " << count;
        }
      }
    }
  }
}

// One batch of `whole` as a problem of its own.
struct Part {
  Tensor out, lse, dq, dk, dv;

  Part(const Tensors& whole, std::int64_t b, const AttentionOptions& options)
      : out(whole.out.dtype(), one(whole.out)),
        lse(whole.lse.dtype(), one(whole.lse)),
        dq(whole.q.dtype(), one(whole.q)),
        dk(whole.k.dtype(), one(whole.k)),
        dv(whole.v.dtype(), one(whole.v)) {
    const View q = slice<View>(whole.q, 0, b, 1), k = slice<View>(whole.k, 0, b, 1), v = slice<View>(whole.v, 0, b, 1);
    attention(q, k, v, out, options, {.lse = lse.view(), .weights = {}});
    attention_backward(slice<View>(whole.dout, 0, b, 1), q, k, v, out, lse, {dq, dk, dv, {}, {}}, options);
  }

  static Shape one(const Tensor& tensor) {
    Shape shape = tensor.shape();
    shape[0] = 1;
    return shape;
  }

  std::string difference(const Tensors& whole, std::int64_t b) const {
    if (!same_bits(out, slice<View>(whole.out, 0, b, 1))) return "out";
    if (!same_bits(lse, slice<View>(whole.lse, 0, b, 1))) return "lse";
    if (!same_bits(dq, slice<View>(whole.dq, 0, b, 1))) return "dq";
    if (!same_bits(dk, slice<View>(whole.dk, 0, b, 1))) return "dk";
    if (!same_bits(dv, slice<View>(whole.dv, 0, b, 1))) return "dv";
    return "";
  }
};

// The same sequence alone and in every place of batches of 1 to 64.
TEST(Determinism, AnyBatchAndPlace) {
  for (const DType dtype : kDTypes) {
    for (const auto& [M, N, mask] : {std::tuple{5, 70, MaskKind::causal_last}, std::tuple{1, 530, MaskKind::none}}) {
      for (std::int64_t B = 1; B <= 64; B += sweep_mode() == "quick" ? 9 : 1) {
        Case c;
        c.B = B;
        c.H = 4;
        c.Hk = 2;
        c.M = M;
        c.N = N;
        c.D = c.E = 24;
        c.mask = mask;
        c.backward = true;
        const Problem problem(c);
        Tensors whole(problem, dtype);
        whole.run(problem.options(dtype));
        for (std::int64_t b = 0; b < B; b += B < 9 ? 1 : 7) {
          const Part part(whole, b, problem.options(dtype));
          ASSERT_EQ(part.difference(whole, b), "") << name(dtype) << ", place " << b << " of " << B << ", M " << M;
        }
      }
    }
  }
}

// Row i alone, its diagonal given outright, is row i of the whole call: what a KV cache relies on.
TEST(Determinism, QueryAloneIsTheRowOfTheWhole) {
  for (const DType dtype : kDTypes) {
    for (const auto& [M, N, D] : {std::tuple{75, 75, 64}, std::tuple{20, 1100, 33}, std::tuple{130, 66, 8}}) {
      Case c;
      c.H = 4;
      c.Hk = 2;
      c.M = M;
      c.N = N;
      c.D = c.E = D;
      c.mask = MaskKind::causal_last;
      const Problem problem(c);
      Tensors whole(problem, dtype);
      whole.forward(problem.options(dtype));
      for (std::int64_t i = 0; i < M; ++i) {
        for (const std::int64_t count : {1, 3}) {
          if (i + count > M) continue;
          Tensor out(dtype, {1, 4, count, D});
          Tensor lse(DType::f32, {1, 4, count, 1});
          attention(slice<View>(whole.q, 2, i, count), whole.k, whole.v, out,
                    {.mask = causal(Diagonal::at({i + N - M}))}, {.lse = lse.view(), .weights = {}});
          ASSERT_TRUE(same_bits(out, slice<View>(whole.out, 2, i, count))) << name(dtype) << ", row " << i;
          ASSERT_TRUE(same_bits(lse, slice<View>(whole.lse, 2, i, count))) << name(dtype) << ", row " << i;
        }
      }
    }
  }
}

// A cache that grows: keys behind the diagonal change nothing.
TEST(Determinism, KeysBehindTheDiagonalChangeNothing) {
  for (const DType dtype : kDTypes) {
    Case c;
    c.H = 2;
    c.M = 70;
    c.N = 600;
    c.D = c.E = 32;
    c.mask = MaskKind::causal_first;
    const Problem problem(c);
    Tensors whole(problem, dtype);
    whole.forward(problem.options(dtype));
    for (const std::int64_t keys : {70, 71, 127, 128, 512, 513}) {
      Tensor out(dtype, whole.out.shape());
      attention(whole.q, slice<View>(whole.k, 2, 0, keys), slice<View>(whole.v, 2, 0, keys), out,
                {.mask = causal(Align::first_key)});
      ASSERT_TRUE(same_bits(out, whole.out)) << name(dtype) << ", keys " << keys;
    }
  }
}

TEST(Determinism, ManyCallersAtOnce) {
  const KeepThreads keep;
  set_threads(3);
  const Problem problem(busy_case());
  for (const DType dtype : kDTypes) {
    Tensors expected(problem, dtype);
    expected.run(problem.options(dtype));
    std::vector<std::thread> callers;
    std::vector<std::string> differences(4);
    for (std::size_t n = 0; n < differences.size(); ++n) {
      callers.emplace_back([&, n] {
        for (int repeat = 0; repeat < 5 && differences[n].empty(); ++repeat) {
          Tensors mine(problem, dtype);
          mine.run(problem.options(dtype));
          differences[n] = mine.difference(expected);
        }
      });
    }
    for (std::thread& caller : callers) caller.join();
    for (const std::string& difference : differences) EXPECT_EQ(difference, "") << name(dtype);
  }
}

}  // namespace
}  // namespace attend::test
