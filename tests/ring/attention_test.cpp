// Ring attention against the truth in double, with the bounds that one process keeps; bits; bad arguments.
#include <cctype>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "attend/runtime.hpp"
#include "ring/ring_testing.hpp"
#include "support/buffer.hpp"
#include "support/compare.hpp"
#include "support/large_scores.hpp"
#include "unit/op_testing.hpp"

namespace attend::test {
namespace {

// The rank's part of contiguous values, in the layout of the case.
Buffer part_of(const Case& c, const std::vector<float>& values, const Shape& shape, RingSharding sharding,
               int flavour) {
  const Tensor part = ring_part(view_of(values.data(), shape), sharding, world_rank(), world_size());
  Buffer buffer(c.dtype, part.shape(), c.layout, flavour);
  buffer.fill(std::vector<float>(part.data<float>(), part.data<float>() + part.size()));
  return buffer;
}

Computed compute_ring(const Problem& problem, const Case& c, RingSharding sharding, double slice_work) {
  const RingOptions options{.sharding = sharding, .attention = problem.options(c.dtype), .slice_work = slice_work};
  const Buffer q = part_of(c, problem.q, problem.q_shape(), sharding, 0);
  const Buffer k = part_of(c, problem.k, problem.k_shape(), sharding, 1);
  const Buffer v = part_of(c, problem.v, problem.v_shape(), sharding, 2);
  const Buffer dout = part_of(c, problem.dout, problem.out_shape(), sharding, 1);
  Buffer out(c.dtype, dout.view().shape, c.layout, 3);
  Shape lse_shape = dout.view().shape;
  lse_shape[3] = 1;
  Buffer lse(DType::f32, lse_shape, c.layout, 2);
  ring_attention(world(), q.view(), k.view(), v.view(), out.view(), options, lse.view());
  Buffer dq(c.dtype, q.view().shape, c.layout, 2), dk(c.dtype, k.view().shape, c.layout, 3),
      dv(c.dtype, v.view().shape, c.layout, 0);
  ring_attention_backward(world(), dout.view(), q.view(), k.view(), v.view(), out.view(), lse.view(),
                          {dq.view(), dk.view(), dv.view()}, options);
  for (const Buffer* x : {&out, &lse, &dq, &dk, &dv}) EXPECT_TRUE(x->gaps_are_whole());
  const auto all = [&](const Buffer& x) { return values(gathered(x.view(), sharding)); };
  return {.dtype = c.dtype,
          .out = all(out),
          .lse = all(lse),
          .dq = all(dq),
          .dk = all(dk),
          .dv = all(dv),
          .dbias = {},
          .dsinks = {}};
}

// All dtypes and layouts of one problem.
void check(Case c, RingSharding sharding, double slice_work = RingOptions{}.slice_work) {
  c.M = c.N;
  c.backward = true;
  const Problem problem(c);
  std::optional<Truth> truth;
  if (world_rank() == 0) truth = true_attention(problem);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    c.dtype = dtype;
    c.layout = dtype == DType::f32 ? Layout::blhd : dtype == DType::bf16 ? Layout::odd : Layout::bhld;
    const Computed computed = compute_ring(problem, c, sharding, slice_work);
    if (world_rank() != 0) continue;
    for (const std::string& text : compare(problem, *truth, naive_attention(problem, dtype), computed)) {
      ADD_FAILURE() << c.name() << ", " << name(sharding) << " over " << world_size() << " ranks: " << text;
    }
  }
}

constexpr MaskKind kMasks[] = {MaskKind::none,          MaskKind::causal_first,  MaskKind::causal_last,
                               MaskKind::causal_window, MaskKind::padding,       MaskKind::window,
                               MaskKind::window_right,  MaskKind::prefix,        MaskKind::left_padding,
                               MaskKind::causal_at,     MaskKind::padding_causal};

class RingMask : public testing::TestWithParam<MaskKind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, RingMask, testing::ValuesIn(kMasks), [](const auto& kind) {
  std::string text = name(kind.param);
  for (char& letter : text) letter = std::isalnum(static_cast<unsigned char>(letter)) != 0 ? letter : '_';
  return text;
});

TEST_P(RingMask, KeepsTheBoundsOfOneProcess) {
  const std::int64_t P = world_size();
  for (const RingSharding sharding : {RingSharding::contiguous, RingSharding::zigzag}) {
    check({.B = 2, .H = 4, .Hk = 2, .N = 2 * P * 9, .D = 16, .E = 24, .mask = GetParam()}, sharding);
    check({.B = 1, .H = 2, .Hk = 2, .N = 2 * P * 70, .D = 64, .E = 64, .mask = GetParam(), .softcap = 4}, sharding);
    check({.B = 2, .H = 3, .Hk = 1, .N = 2 * P, .D = 5, .E = 3, .mask = GetParam(), .slopes = SlopesKind::by_batch},
          sharding);
  }
  check({.B = 1, .H = 1, .Hk = 1, .N = P * 33, .D = 40, .E = 8, .mask = GetParam(), .scale = 0.3},
        RingSharding::contiguous);
}

TEST(RingAttention, HeadsShareKeysAndValues) {
  for (const auto& [H, Hk] : {std::pair{8, 8}, {8, 2}, {6, 1}}) {
    check({.B = 1, .H = H, .Hk = Hk, .N = 2 * world_size() * 17, .D = 32, .E = 32, .mask = MaskKind::causal_last},
          RingSharding::zigzag);
  }
}

// Cut by heads, and for one head by rows and keys.
TEST(RingAttention, SlicesKeepTheBounds) {
  for (const std::int64_t H : {1, 3}) {
    for (const double slice_work : {1.0, 3e5}) {
      check({.B = 1, .H = H, .Hk = H, .N = world_size() * 300, .D = 16, .E = 16, .mask = MaskKind::causal_last},
            RingSharding::zigzag, slice_work);
    }
  }
}

// Scores whose LSE cannot tell the shares of the ranks: each knows what the others saw.
TEST(RingAttention, LargeScoresKeepTheirBounds) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const float scale : {1e3F, 1e6F, 1e20F}) {
      for (const RingSharding sharding : {RingSharding::contiguous, RingSharding::zigzag}) {
        LargeScores p;
        p.dtype = dtype;
        p.scale = scale;
        p.H = 4;
        p.M = p.N = 2 * world_size() * 20;
        p.D = p.E = scale == 1e6F ? 32 : 3;  // few dimensions: many keys score alike
        p.draw(9);
        if (sharding == RingSharding::zigzag) p.mask = causal();
        p.name = std::string(name(dtype)) + " scale " + std::to_string(scale) + ", " + name(sharding);
        const auto part = [&](const std::vector<double>& x, const Shape& shape) {
          return to_tensor(dtype, shape, std::vector<float>(x.begin(), x.end()));
        };
        const auto own = [&](const Tensor& x) { return ring_part(x, sharding, world_rank(), world_size()); };
        const Tensor q = own(part(p.q, {1, p.H, p.M, p.D})), k = own(part(p.k, {1, p.Hk, p.N, p.D}));
        const Tensor v = own(part(p.v, {1, p.Hk, p.N, p.E})), dout = own(part(p.dout, {1, p.H, p.M, p.E}));
        Tensor out(dtype, dout.shape()), lse(DType::f32, {1, p.H, q.shape()[2], 1});
        Tensor dq(dtype, q.shape()), dk(dtype, k.shape()), dv(dtype, v.shape());
        RingOptions options{.sharding = sharding};
        options.attention.scale = static_cast<double>(scale);
        options.attention.mask = p.mask;
        ring_attention(world(), q, k, v, out, options, lse.view());
        ring_attention_backward(world(), dout, q, k, v, out, lse, {dq, dk, dv}, options);
        const auto all = [&](const Tensor& x) { return values(gathered(x, sharding)); };
        const LargeResults got{all(out), all(lse), {}, all(dq), all(dk), all(dv), {}, {}};
        if (world_rank() != 0) continue;
        for (const std::string& text : compare_large(p, large_truth(p), got)) ADD_FAILURE() << text;
      }
    }
  }
}

// ---- Bits ----

struct Results {
  Tensor out, lse, dq, dk, dv;
};

Results run(DType dtype, const RingOptions& options, RingCommunicator comm = world()) {
  const auto P = static_cast<std::int64_t>(world_size());
  const auto part = [&](std::int64_t heads, std::int64_t dim, std::uint64_t key) {
    return ops::to_dtype(
        ring_part(ops::random_tensor(DType::f32, {2, heads, 2 * P * 45, dim}, key), options.sharding, world_rank(), P),
        dtype);
  };
  const Tensor q = part(4, 48, 1), k = part(2, 48, 2), v = part(2, 40, 3), dout = part(4, 40, 4);
  Results r{Tensor(dtype, dout.shape()), Tensor(DType::f32, {2, 4, 90, 1}), Tensor(dtype, q.shape()),
            Tensor(dtype, k.shape()), Tensor(dtype, v.shape())};
  ring_attention(comm, q, k, v, r.out, options, r.lse);
  ring_attention_backward(comm, dout, q, k, v, r.out, r.lse, {r.dq, r.dk, r.dv}, options);
  return r;
}

bool same(const Results& a, const Results& b) {
  return ops::same_bits(a.out, b.out) && ops::same_bits(a.lse, b.lse) && ops::same_bits(a.dq, b.dq) &&
         ops::same_bits(a.dk, b.dk) && ops::same_bits(a.dv, b.dv);
}

TEST(RingAttention, TheSameBitsEveryTimeAndForAnyThreads) {
  const int before = threads();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const RingSharding sharding : {RingSharding::contiguous, RingSharding::zigzag}) {
      RingOptions options{.sharding = sharding, .attention = {.mask = causal()}};
      set_threads(1);
      const Results first = run(dtype, options);
      for (const int count : {1, 2, 3}) {
        set_threads(count);
        EXPECT_TRUE(same(run(dtype, options), first)) << count << " threads";
      }
      for (const RingProgress progress : {RingProgress::slices, RingProgress::thread, RingProgress::none}) {
        options.progress = progress;
        EXPECT_TRUE(same(run(dtype, options), first)) << "progress " << static_cast<int>(progress);
      }
      RingOptions fine = options;
      fine.slice_work = 1;
      EXPECT_TRUE(ops::same_bits(run(dtype, fine).out, first.out)) << "in small slices";
      // Ranks that are late by different times each.
      options.on_step = [&](std::int64_t step) {
        std::this_thread::sleep_for(std::chrono::milliseconds((world_rank() * 7 + step * 3) % 11));
      };
      EXPECT_TRUE(same(run(dtype, options), first)) << "with delays";
    }
  }
  set_threads(before);
}

TEST(RingAttention, OneRankWithoutAMaskIsPlainAttention) {
  const Tensor q = ops::random_tensor(DType::f32, {1, 2, 50, 16}, 5);
  Tensor out(DType::f32, q.shape()), lse(DType::f32, {1, 2, 50, 1});
  ring_attention({MPI_Comm_c2f(MPI_COMM_SELF)}, q, q, q, out, {}, lse);
  const AttentionResult plain = attention(q, q, q, {}, {.lse = true});
  EXPECT_TRUE(ops::same_bits(out, plain.out));
  EXPECT_TRUE(ops::same_bits(lse, plain.lse));
}

TEST(RingAttention, EmptySequencesAreFine) {
  Tensor q(DType::f32, {1, 2, 0, 8}), lse(DType::f32, {1, 2, 0, 1}), out(DType::f32, {1, 2, 0, 8});
  ring_attention(world(), q, q, q, out, {.sharding = RingSharding::zigzag, .attention = {.mask = causal()}}, lse);
  Tensor none(DType::f32, {0, 2, 4, 8}), result(DType::f32, {0, 2, 4, 8});
  ring_attention(world(), none, none, none, result);
}

TEST(RingAttention, TimesAreCounted) {
  RingTimes times;
  run(DType::f32, {.times = &times});
  EXPECT_GT(times.compute, 0);
  EXPECT_EQ(times.bytes_sent > 0, world_size() > 1);
  const Tensor k(DType::f32, {1, 1, 64, 8});
  EXPECT_GE(ring_transfer_seconds(world(), k, k), 0);
  EXPECT_GE(ring_transfer_seconds(world(), k, k, true), 0);
}

TEST(RingAttention, TimesAddUpAndStepsAreThoseOfTheRing) {
  const std::int64_t P = world_size();
  RingTimes times;
  std::vector<std::int64_t> steps;
  const RingOptions options{.on_step = [&](std::int64_t step) { steps.push_back(step); }, .times = &times};
  const Tensor x = ops::random_tensor(DType::f32, {1, 2, 24, 8}, 7);
  Tensor out(DType::f32, x.shape());
  std::vector<std::int64_t> once;
  for (std::int64_t step = 0; step < P; ++step) once.push_back(step);
  ring_attention(world(), x, x, x, out, options);
  EXPECT_EQ(steps, once);
  const std::int64_t bytes = times.bytes_sent;
  EXPECT_GE(bytes, (P - 1) * 2 * x.size() * std::int64_t{sizeof(float)});  // keys and values, to all but one
  ring_attention(world(), x, x, x, out, options);
  EXPECT_EQ(times.bytes_sent, 2 * bytes);
}

// Which keys a rank's queries see: one more or one less at the edge of a part changes the output.
TEST(RingAttention, MasksCountThroughTheWholeSequence) {
  const std::int64_t P = world_size(), local = 4, L = local * P;
  const Tensor q = ops::random_tensor(DType::f64, {2, 2, L, 8}, 1), k = ops::random_tensor(DType::f64, {2, 2, L, 8}, 2);
  const Tensor v = ops::random_tensor(DType::f64, {2, 2, L, 8}, 3);
  const auto f32 = [](const Tensor& x) { return ops::to_dtype(x, DType::f32); };
  std::vector<Mask> masks;
  for (std::int64_t n = 0; n <= L; ++n) {
    masks.push_back(padding({n, L - n}));
    masks.push_back(left_padding({n, L - n}));
    masks.push_back(prefix({n, L - n}));
    masks.push_back(window(n, 0));
    masks.push_back(window(0, n));
    masks.push_back(causal(Diagonal::at({n, -n})));
    masks.push_back(window(1, 1, Diagonal::at({n, -n})));
  }
  for (const RingSharding sharding : {RingSharding::contiguous, RingSharding::zigzag}) {
    const auto own = [&](const Tensor& x) { return ring_part(f32(x), sharding, world_rank(), P); };
    const Tensor mine = own(q), keys = own(k), all_values = own(v);
    for (std::size_t n = 0; n < masks.size(); ++n) {
      Tensor out(DType::f32, mine.shape()), lse(DType::f32, {2, 2, local, 1});
      ring_attention(world(), mine, keys, all_values, out, {.sharding = sharding, .attention = {.mask = masks[n]}},
                     lse);
      const AttentionResult whole = attention(q, k, v, {.mask = masks[n]}, {.lse = true});
      const std::vector<double> got = values(gathered(out, sharding)), expected = values(whole.out);
      double worst = 0;
      for (std::size_t i = 0; i < got.size(); ++i) worst = std::max(worst, std::abs(got[i] - expected[i]));
      EXPECT_LT(worst, 1e-5) << name(sharding) << " mask " << n;
    }
  }
}

// ---- Communicators ----

TEST(RingCommunicators, MayBeMadeUsedAndFreed) {
  for (int round = 0; round < 3; ++round) {
    MPI_Comm half = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, world_rank() % 2, world_rank(), &half);
    int rank = 0, ranks = 0;
    MPI_Comm_rank(half, &rank);
    MPI_Comm_size(half, &ranks);
    const Tensor q = ops::random_tensor(DType::f32, {1, 2, 12 * ranks, 8}, 6);
    const Tensor mine = ring_part(q, RingSharding::zigzag, rank, ranks);
    Tensor out(DType::f32, mine.shape());
    ring_attention({MPI_Comm_c2f(half)}, mine, mine, mine, out,
                   {.sharding = RingSharding::zigzag, .attention = {.mask = causal()}});
    const AttentionResult plain = attention(q, q, q, {.mask = causal()});
    ops::expect_within(
        out, ring_part(plain.out, RingSharding::zigzag, rank, ranks), [](auto, auto, auto, auto) { return 1e-5; },
        "half of the ranks");
    MPI_Comm_free(&half);
  }
}

TEST(RingCommunicators, AProgramsOwnMessagesAreLeftAlone) {
  const int next = (world_rank() + 1) % world_size();
  int got = -1;
  const int sent = world_rank();
  MPI_Request request = MPI_REQUEST_NULL, sending = MPI_REQUEST_NULL;
  MPI_Irecv(&got, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &request);
  run(DType::f32, {});
  MPI_Isend(&sent, 1, MPI_INT, next, 3, MPI_COMM_WORLD, &sending);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  MPI_Wait(&sending, MPI_STATUS_IGNORE);
  EXPECT_EQ(got, (world_rank() + world_size() - 1) % world_size());
}

TEST(RingCommunicators, WrongHandlesAreRefused) {
  const Tensor q(DType::f32, {1, 1, 4, 8});
  Tensor out(DType::f32, q.shape());
  EXPECT_EQ(refusal_of([&] { ring_attention({123456}, q, q, q, out); }),
            "ring_attention: communicator is 123456, expected what MPI_Comm_c2f gave for one");
  EXPECT_NE(refusal_of([&] { ring_attention({MPI_Comm_c2f(MPI_COMM_NULL)}, q, q, q, out); }), "");
  EXPECT_NE(refusal_of([&] { ring_attention({-5}, q, q, q, out); }), "");
}

// ---- Bad arguments: the same text on all ranks, and the ring works afterwards ----

// `bad` on the last rank, `good` on the others.
std::string refusal_of_last(const Tensor& good, const Tensor& bad, const RingOptions& options = {}) {
  const Tensor& x = world_rank() == world_size() - 1 ? bad : good;
  return refusal_of([&] {
    Tensor out(x.dtype(), x.shape());
    ring_attention(world(), x, x, x, out, options);
  });
}

TEST(RingArguments, ShapesThatDifferAreRefusedOnAllRanks) {
  if (world_size() == 1) GTEST_SKIP() << "a single rank has no other rank to differ from";
  const std::string last = std::to_string(world_size() - 1), P = std::to_string(world_size());
  const Tensor good(DType::f32, {1, 2, 8, 4});
  EXPECT_EQ(refusal_of_last(good, Tensor(DType::f32, {1, 2, 7, 4})),
            "ring_attention: tokens is 8 on rank 0 and 7 on rank " + last +
                ", expected the same on all ranks (equal parts of " + std::to_string(8 * world_size() - 1) +
                " tokens, which " + P + " ranks do not divide)");
  EXPECT_EQ(refusal_of_last(good, Tensor(DType::f32, {1, 3, 8, 4})),
            "ring_attention: heads is 2 on rank 0 and 3 on rank " + last + ", expected the same on all ranks");
  EXPECT_EQ(refusal_of_last(good, Tensor(DType::bf16, {1, 2, 8, 4})),
            "ring_attention: dtype is 0 on rank 0 and 2 on rank " + last + ", expected the same on all ranks");
  RingOptions options;
  if (world_rank() == world_size() - 1) options.attention.mask = causal();
  EXPECT_EQ(refusal_of_last(good, good, options), "ring_attention: options differ between rank 0 and rank " + last);
  EXPECT_EQ(refusal_of_last(good, Tensor(DType::f64, {1, 2, 8, 4})),
            "ring_attention: refused by rank " + last + ": q dtype is f64, expected f32, f16 or bf16");
  run(DType::f32, {});
}

// Every option that the result hangs on, changed on the last rank.
TEST(RingArguments, OptionsThatDifferAreRefused) {
  if (world_size() == 1) GTEST_SKIP() << "a single rank has no other rank to differ from";
  const Tensor x(DType::f32, {1, 2, 8, 4}), slopes = ops::random_tensor(DType::f32, {1, 2, 1, 1}, 1);
  const Tensor others = ops::random_tensor(DType::f32, {1, 2, 1, 1}, 2);
  const std::int64_t L = 8 * world_size();
  using Options = AttentionOptions;
  const std::pair<Options, Options> pairs[] = {
      {{}, {.scale = 0.25}},
      {{.scale = 0.25}, {.scale = 0.5}},
      {{.softcap = 3}, {.softcap = 4}},
      {{}, {.precision = Precision::split_bf16}},
      {{}, {.alibi_slopes = slopes}},
      {{.alibi_slopes = others}, {.alibi_slopes = slopes}},
      {{.alibi_slopes = slopes}, {.alibi_slopes = slopes, .alibi_diagonal = Diagonal::at({1})}},
      {{.mask = causal()}, {.mask = causal(Diagonal::at({1}))}},
      {{.mask = causal()}, {.mask = window(2, 0)}},
      {{.mask = causal()}, {.mask = window(2, 0)}},
      {{.mask = window(2, 1)}, {.mask = window(1, 1)}},
      {{.mask = window(2, 1)}, {.mask = window(2, 2)}},
      {{.mask = window(2, 1)}, {.mask = window(2, 1, Diagonal::at({1}))}},
      {{.mask = padding({L})}, {.mask = padding({L - 1})}},
      {{.mask = padding({L})}, {.mask = left_padding({L})}},
      {{.mask = left_padding({1})}, {.mask = left_padding({2})}},
      {{.mask = prefix({1})}, {.mask = prefix({2})}},
      {{.mask = prefix({1})}, {.mask = prefix({1}, Diagonal::at({1}))}},
  };
  const std::string text = "ring_attention: options differ between rank 0 and rank " + std::to_string(world_size() - 1);
  for (std::size_t n = 0; n < std::size(pairs); ++n) {
    const bool last = world_rank() == world_size() - 1;
    EXPECT_EQ(refusal_of_last(x, x, {.attention = last ? pairs[n].second : pairs[n].first}), text) << n;
    EXPECT_EQ(refusal_of_last(x, x, {.attention = pairs[n].second}), "") << n;
  }
  RingOptions options;
  if (world_rank() == world_size() - 1) options.sharding = RingSharding::zigzag;
  EXPECT_EQ(refusal_of_last(x, x, options), "ring_attention: sharding is 0 on rank 0 and 1 on rank " +
                                                std::to_string(world_size() - 1) + ", expected the same on all ranks");
}

TEST(RingArguments, CallsThatDifferAreRefused) {
  if (world_size() == 1) GTEST_SKIP() << "a single rank has no other rank to differ from";
  const Tensor x(DType::f32, {1, 2, 8, 4}), lse(DType::f32, {1, 2, 8, 1});
  Tensor out(DType::f32, x.shape()), dk(DType::f32, x.shape()), dv(DType::f32, x.shape());
  std::string text;
  try {
    if (world_rank() == 0) {
      ring_attention(world(), x, x, x, out);
    } else {
      ring_attention_backward(world(), x, x, x, x, x, lse, {out, dk, dv});
    }
  } catch (const InvalidArgument& error) {
    text = error.what();
  }
  EXPECT_NE(text.find("rank 0 calls ring_attention and rank 1 ring_attention_backward"), std::string::npos) << text;
}

// The texts of one rank's own mistakes: a ring of one says them as they are.
TEST(RingArguments, WhatARingCannotDoIsRefusedWithAReason) {
  const RingCommunicator self{MPI_Comm_c2f(MPI_COMM_SELF)};
  const Tensor x(DType::f32, {1, 2, 8, 4}), odd(DType::f32, {1, 2, 7, 4}), bias(DType::f32, {1, 1, 8, 8});
  const auto text = [&](const Tensor& q, const RingOptions& options) {
    Tensor out(q.dtype(), q.shape());
    return refusal_of([&] { ring_attention(self, q, q, q, out, options); });
  };
  EXPECT_EQ(
      text(odd, {.sharding = RingSharding::zigzag}),
      "ring_attention: a rank holds 7 tokens, expected an even number (zigzag gives each rank two chunks: the length "
      "must divide by twice the number of ranks)");
  EXPECT_NE(text(x, {.attention = {.bias = bias}}).find("a bias is not for a ring"), std::string::npos);
  EXPECT_NE(text(x, {.attention = {.dropout = {0.5, 1}}}).find("dropout is not for a ring"), std::string::npos);
  EXPECT_NE(text(x, {.attention = {.rule = ScoreRule([](auto) {})}}).find("a score rule is not for a ring"),
            std::string::npos);
  EXPECT_NE(text(x, {.attention = {.sinks = Tensor(DType::f32, {1, 2, 1, 1})}}).find("a sink is not for a ring"),
            std::string::npos);
  EXPECT_NE(text(x, {.attention = {.mask = segments({0, 8})}}).find("a mask of segments, blocks or bytes"),
            std::string::npos);
  EXPECT_NE(text(x, {.attention = {.mask = padding({1, 2, 3})}}), "");  // one length a batch, or one
  EXPECT_EQ(text(x, {.timeout_seconds = 0}), "ring_attention: timeout is 0.000000 s, expected more than 0");
  const Tensor wrong(DType::f32, {1, 3, 1, 1});
  EXPECT_NE(text(x, {.attention = {.alibi_slopes = wrong}}).find("ALiBi slopes shape is [1, 3, 1, 1]"),
            std::string::npos);
  Tensor out(DType::f32, x.shape());
  EXPECT_EQ(refusal_of([&] { ring_attention(self, x, odd, odd, out); }),
            "ring_attention: k length is 7, expected 8 (q length: queries and keys are sharded alike)");
}

TEST(RingShardings, PositionsAreThoseOfTheSplit) {
  using Positions = std::vector<std::int64_t>;
  EXPECT_EQ(ring_positions(RingSharding::contiguous, 1, 3, 6), (Positions{2, 3}));
  EXPECT_EQ(zigzag_positions(0, 2, 8), (Positions{0, 1, 6, 7}));
  EXPECT_EQ(zigzag_positions(1, 2, 8), (Positions{2, 3, 4, 5}));
  const auto text = [](RingSharding sharding, std::int64_t rank, std::int64_t ranks, std::int64_t length) {
    return refusal_of([&] { ring_positions(sharding, rank, ranks, length); });
  };
  EXPECT_EQ(text(RingSharding::contiguous, 0, 3, 10),
            "ring_positions: length is 10, expected a multiple of 3 (a part for each of 3 ranks)");
  EXPECT_EQ(text(RingSharding::zigzag, 0, 3, 9),
            "ring_positions: length is 9, expected a multiple of 6 (zigzag: two chunks for each of 3 ranks)");
  EXPECT_EQ(text(RingSharding::contiguous, 3, 3, 9), "ring_positions: rank is 3, expected 0 to 2");
  EXPECT_EQ(text(RingSharding::contiguous, 0, 0, 9), "ring_positions: ranks is 0, expected at least 1");
  EXPECT_EQ(text(RingSharding::contiguous, -1, 3, 9), "ring_positions: rank is -1, expected 0 to 2");
  EXPECT_NE(text(RingSharding::contiguous, 0, 3, -3).find("length is -3"), std::string::npos);
  EXPECT_NE(text(static_cast<RingSharding>(2), 0, 3, 9).find("sharding is 2"), std::string::npos);
  EXPECT_EQ(ring_positions(RingSharding::contiguous, 2, 3, 9), (Positions{6, 7, 8}));
  EXPECT_EQ(zigzag_positions(2, 3, 6), (Positions{2, 3}));
  EXPECT_EQ(zigzag_positions(0, 3, 0), Positions{});
}

TEST(RingShardings, PlacesFitTheWhole) {
  const Tensor part(DType::f32, {1, 2, 4, 3}), half(DType::f16, {1, 2, 4, 3});
  Tensor whole(DType::f32, {1, 2, 8, 3});
  const auto text = [&](const View& x, MutableView to) {
    return refusal_of([&] { ring_place(x, to, RingSharding::zigzag, 1, 2); });
  };
  EXPECT_EQ(text(part, whole), "");
  EXPECT_EQ(text(half, whole), "ring_place: the part dtype is f16, expected f32");
  EXPECT_EQ(text(part, Tensor(DType::f32, {1, 2, 12, 3})),
            "ring_place: the part shape is [1, 2, 4, 3], expected [1, 2, 6, 3]");
  EXPECT_EQ(text(view_of(whole.data<float>() + 3, {1, 2, 4, 3}), whole),
            "ring_place: the whole shares memory with the part, expected a place of its own");
}

TEST(RingShardings, PartsAndTheWholeAreInverse) {
  const Tensor whole = ops::random_tensor(DType::bf16, {2, 3, 24, 5}, 9);
  for (const RingSharding sharding : {RingSharding::contiguous, RingSharding::zigzag}) {
    Tensor again(DType::bf16, whole.shape());
    for (int rank = 0; rank < 4; ++rank) ring_place(ring_part(whole, sharding, rank, 4), again, sharding, rank, 4);
    EXPECT_TRUE(ops::same_bits(again, whole));
  }
}

}  // namespace
}  // namespace attend::test
