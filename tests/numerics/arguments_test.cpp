// Wrong arguments: InvalidArgument that says what it got and what it expected, before any memory is touched.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "attend/attention.hpp"
#include "attend/error.hpp"
#include "attend/tensor.hpp"
#include "support/guard.hpp"

namespace attend::test {
namespace {

using std::int64_t;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();

// A right call, for tests to spoil. All pointers lead to memory that can't be touched.
struct Call {
  Call() : memory(kApart * 16) {
    memory.forbid();
    std::byte* next = memory.data();
    const auto at = [&](const Shape& shape) {
      next += kApart;
      return MutableView{DType::f32, next, shape, contiguous_strides(shape)};
    };
    q = at({2, 4, 5, 8});
    k = at({2, 2, 7, 8});
    v = at({2, 2, 7, 6});
    dout = at({2, 4, 5, 6});
    out = at({2, 4, 5, 6});
    lse = at({2, 4, 5, 1});
    weights = at({2, 4, 5, 7});
    bias = at({1, 4, 5, 7});
    slopes = at({2, 4, 1, 1});
    sinks = at({1, 4, 1, 1});
    dq = at(q.shape);
    dk = at(k.shape);
    dv = at(v.shape);
    dbias = at(bias.shape);
    dsinks = at(sinks.shape);
  }

  void forward() {
    options.bias = bias;
    options.alibi_slopes = slopes;
    options.sinks = sinks;
    attention(q, k, v, out, options, {.lse = lse, .weights = weights});
  }
  void backward() {
    options.bias = bias;
    options.alibi_slopes = slopes;
    options.sinks = sinks;
    attention_backward(dout, q, k, v, out, lse, {dq, dk, dv, dbias, dsinks}, options);
  }

  static constexpr std::size_t kApart = 4096;
  Mapping memory;
  MutableView q, k, v, out, lse, weights, bias, slopes, sinks;
  MutableView dout, dq, dk, dv, dbias, dsinks;
  AttentionOptions options;
};

struct Spoiled {
  const char* what;
  std::function<void(Call&)> spoil;
  const char* word;  // that the message must hold, beside "expected" or "must"
};

void resize(MutableView& x, const Shape& shape) {
  x.shape = shape;
  // Strides of a shape that overflows mean nothing; the check of sizes comes first.
  x.strides = {0, 0, 0, 1};
}

void expect_refused(const std::vector<Spoiled>& list, void (Call::*run)()) {
  for (const Spoiled& one : list) {
    Call call;
    try {
      one.spoil(call);
      (call.*run)();
      ADD_FAILURE() << one.what << ": was accepted";
    } catch (const InvalidArgument& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find(one.word), std::string::npos) << one.what << ": \"" << text << "\" lacks " << one.word;
      const bool tells = text.find("expected") != std::string::npos || text.find("must") != std::string::npos ||
                         text.find("; give ") != std::string::npos;
      EXPECT_TRUE(tells) << one.what << ": \"" << text << "\" does not say what was expected";
    } catch (const std::exception& error) {
      ADD_FAILURE() << one.what << ": threw something else: " << error.what();
    }
  }
}

// Sizes whose products do not fit: of each tensor, in each dimension.
TEST(Arguments, OverflowingSizes) {
  std::vector<Spoiled> list;
  const std::pair<const char*, MutableView Call::*> tensors[] = {{"q", &Call::q}, {"k", &Call::k}, {"v", &Call::v}};
  const Shape shapes[] = {{kMax, 2, 1, 1},
                          {2, kMax, 1, 1},
                          {1, 1, kMax, 2},
                          {1, 1, 2, kMax},
                          {1 << 16, 1 << 16, 1 << 16, 1 << 16},
                          {kMax, kMax, kMax, kMax},
                          {int64_t{1} << 62, 1, 1, 8},
                          {1, int64_t{1} << 32, int64_t{1} << 31, 1},
                          {3, 3, kMax / 8, 1},
                          {1, 1, 1, kMax},
                          {-1, 1, 1, 1},
                          {1, -1, 1, 1},
                          {1, 1, -5, 1},
                          {1, 1, 1, -8},
                          {kMin, 1, 1, 1},
                          {1, kMin, kMin, 1},
                          {-1, -1, 1, 1},
                          {0, 0, 0, -1}};
  for (const auto& [name, tensor] : tensors) {
    for (const Shape& shape : shapes) {
      list.push_back({name, [member = tensor, shape](Call& c) { resize(c.*member, shape); }, name});
    }
  }
  EXPECT_GE(list.size(), 50U);
  expect_refused(list, &Call::forward);
  expect_refused(list, &Call::backward);
}

TEST(Arguments, OverflowingStrides) {
  std::vector<Spoiled> list;
  const std::pair<const char*, MutableView Call::*> tensors[] = {{"q", &Call::q},     {"k", &Call::k},
                                                                 {"v", &Call::v},     {"out", &Call::out},
                                                                 {"lse", &Call::lse}, {"bias", &Call::bias}};
  for (const auto& [name, tensor] : tensors) {
    for (const int64_t stride : {kMax, kMin, kMax / 2, kMin / 2, kMax / 3}) {
      for (const std::size_t dimension : {1U, 2U}) {
        list.push_back({name, [=, member = tensor](Call& c) { (c.*member).strides[dimension] = stride; }, name});
      }
    }
  }
  // Each dimension fits alone; their sum does not.
  list.push_back({"sum", [](Call& c) { c.q.strides = {kMax / 8, kMax / 16, kMax / 16, kMax / 16}; }, "q"});
  expect_refused(list, &Call::forward);
}

TEST(Arguments, ShapesThatDoNotFitTogether) {
  expect_refused({{"k batch", [](Call& c) { c.k.shape[0] = 3; }, "3"},
                  {"k batch of 1", [](Call& c) { c.k.shape[0] = 1; }, "k batch"},
                  {"v batch", [](Call& c) { c.v.shape[0] = 1; }, "v batch"},
                  {"v heads", [](Call& c) { c.v.shape[1] = 1; }, "v heads"},
                  {"v length", [](Call& c) { c.v.shape[2] = 6; }, "v length"},
                  {"k dim", [](Call& c) { c.k.shape[3] = 7; }, "k dim"},
                  {"heads that do not divide",
                   [](Call& c) {
                     c.k.shape[1] = 3;
                     c.v.shape[1] = 3;
                   },
                   "heads"},
                  {"more KV heads than heads",
                   [](Call& c) {
                     c.k.shape[1] = 8;
                     c.v.shape[1] = 8;
                   },
                   "heads"},
                  {"no KV heads",
                   [](Call& c) {
                     c.k.shape[1] = 0;
                     c.v.shape[1] = 0;
                   },
                   "heads"},
                  {"no heads", [](Call& c) { c.q.shape[1] = c.out.shape[1] = 0; }, "heads"},
                  {"head dim 0", [](Call& c) { c.q.shape[3] = c.k.shape[3] = 0; }, "dim"},
                  {"value dim 0", [](Call& c) { c.v.shape[3] = c.out.shape[3] = 0; }, "dim"},
                  {"out batch", [](Call& c) { c.out.shape[0] = 1; }, "out"},
                  {"out heads", [](Call& c) { c.out.shape[1] = 2; }, "out"},
                  {"out length", [](Call& c) { c.out.shape[2] = 7; }, "out"},
                  {"out dim", [](Call& c) { c.out.shape[3] = 8; }, "out"},
                  {"lse length", [](Call& c) { c.lse.shape[2] = 4; }, "lse"},
                  {"lse dim", [](Call& c) { c.lse.shape[3] = 5; }, "lse"},
                  {"weights", [](Call& c) { c.weights.shape[3] = 5; }, "weights"},
                  {"bias heads", [](Call& c) { c.bias.shape[1] = 2; }, "bias"},
                  {"bias keys", [](Call& c) { c.bias.shape[3] = 6; }, "bias"},
                  {"bias queries", [](Call& c) { c.bias.shape[2] = 0; }, "bias"},
                  {"slopes", [](Call& c) { c.slopes.shape[1] = 1; }, "ALiBi"},
                  {"slopes batch", [](Call& c) { c.slopes.shape[0] = 3; }, "ALiBi"},
                  {"sinks", [](Call& c) { c.sinks.shape[1] = 3; }, "sinks"},
                  {"sinks batch", [](Call& c) { c.sinks.shape[0] = 2; }, "sinks"}},
                 &Call::forward);
  expect_refused({{"dout", [](Call& c) { c.dout.shape[3] = 8; }, "dout"},
                  {"dout length", [](Call& c) { c.dout.shape[2] = 1; }, "dout"},
                  {"out", [](Call& c) { c.out.shape[0] = 1; }, "out"},
                  {"lse", [](Call& c) { c.lse.shape[1] = 2; }, "lse"},
                  {"dq", [](Call& c) { c.dq.shape[2] = 7; }, "dq"},
                  {"dk heads", [](Call& c) { c.dk.shape[1] = 4; }, "dk"},
                  {"dv", [](Call& c) { c.dv.shape[3] = 8; }, "dv"},
                  {"dbias", [](Call& c) { c.dbias.shape[1] = 1; }, "dbias"},
                  {"dsinks", [](Call& c) { c.dsinks.shape[0] = 2; }, "dsinks"}},
                 &Call::backward);
}

TEST(Arguments, DTypes) {
  expect_refused({{"k", [](Call& c) { c.k.dtype = DType::f16; }, "k dtype"},
                  {"v", [](Call& c) { c.v.dtype = DType::bf16; }, "v dtype"},
                  {"out", [](Call& c) { c.out.dtype = DType::f64; }, "out dtype"},
                  {"lse", [](Call& c) { c.lse.dtype = DType::f16; }, "lse dtype"},
                  {"lse of f64", [](Call& c) { c.lse.dtype = DType::f64; }, "lse dtype"},
                  {"unknown", [](Call& c) { c.q.dtype = static_cast<DType>(9); }, "q dtype"},
                  {"negative", [](Call& c) { c.v.dtype = static_cast<DType>(-1); }, "v dtype"},
                  {"unknown bias", [](Call& c) { c.bias.dtype = static_cast<DType>(77); }, "bias"}},
                 &Call::forward);
  expect_refused({{"dq", [](Call& c) { c.dq.dtype = DType::f64; }, "dq"},
                  {"dk", [](Call& c) { c.dk.dtype = DType::bf16; }, "dk"},
                  {"dout", [](Call& c) { c.dout.dtype = DType::f16; }, "dout"}},
                 &Call::backward);
}

TEST(Arguments, NullPointers) {
  expect_refused({{"q", [](Call& c) { c.q.data = nullptr; }, "q data is null"},
                  {"k", [](Call& c) { c.k.data = nullptr; }, "k data is null"},
                  {"v", [](Call& c) { c.v.data = nullptr; }, "v data is null"},
                  {"out", [](Call& c) { c.out.data = nullptr; }, "out data is null"},
                  {"lse", [](Call& c) { c.lse.data = nullptr; }, "lse data is null"},
                  {"weights", [](Call& c) { c.weights.data = nullptr; }, "weights data is null"},
                  {"bias", [](Call& c) { c.bias.data = nullptr; }, "bias data is null"},
                  {"slopes", [](Call& c) { c.slopes.data = nullptr; }, "data is null"},
                  {"sinks", [](Call& c) { c.sinks.data = nullptr; }, "sinks data is null"},
                  {"dense", [](Call& c) { c.options.mask = dense(nullptr, {1, 1, 5, 7}); }, "null"}},
                 &Call::forward);
  expect_refused({{"dq", [](Call& c) { c.dq.data = nullptr; }, "dq data is null"},
                  {"dk", [](Call& c) { c.dk.data = nullptr; }, "dk data is null"},
                  {"dv", [](Call& c) { c.dv.data = nullptr; }, "dv data is null"},
                  {"dout", [](Call& c) { c.dout.data = nullptr; }, "dout data is null"},
                  {"dbias", [](Call& c) { c.dbias.data = nullptr; }, "dbias data is null"},
                  {"dsinks", [](Call& c) { c.dsinks.data = nullptr; }, "dsinks data is null"}},
                 &Call::backward);
}

TEST(Arguments, OutputsWhoseElementsMeet) {
  expect_refused({{"out repeats", [](Call& c) { c.out.strides[0] = 0; }, "out"},
                  {"out rows overlap", [](Call& c) { c.out.strides[2] = 5; }, "out"},
                  {"lse repeats", [](Call& c) { c.lse.strides[1] = 0; }, "lse"},
                  {"weights repeat", [](Call& c) { c.weights.strides[2] = 0; }, "weights"}},
                 &Call::forward);
  expect_refused({{"dq repeats", [](Call& c) { c.dq.strides[1] = 0; }, "dq"},
                  {"dk repeats", [](Call& c) { c.dk.strides[2] = 0; }, "dk"},
                  {"dv repeats", [](Call& c) { c.dv.strides[0] = 0; }, "dv"},
                  {"dbias repeats", [](Call& c) { c.dbias.strides[2] = 0; }, "dbias"}},
                 &Call::backward);
}

TEST(Arguments, Masks) {
  const std::vector<Spoiled> list = {
      {"length beyond the keys", [](Call& c) { c.options.mask = padding({8}); }, "8"},
      {"one of two lengths beyond", [](Call& c) { c.options.mask = padding({3, 9}); }, "9"},
      {"negative length", [](Call& c) { c.options.mask = padding({-1}); }, "-1"},
      {"lengths of another batch", [](Call& c) { c.options.mask = padding({1, 2, 3}); }, "3"},
      {"no lengths", [](Call& c) { c.options.mask = padding({}); }, "0 values"},
      {"left padding beyond", [](Call& c) { c.options.mask = left_padding({8}); }, "8"},
      {"negative left padding", [](Call& c) { c.options.mask = left_padding({-4}); }, "-4"},
      {"prefix beyond", [](Call& c) { c.options.mask = prefix({12}); }, "12"},
      {"prefixes of another batch", [](Call& c) { c.options.mask = prefix({1, 1, 1, 1}); }, "4"},
      {"window", [](Call& c) { c.options.mask = window(-2, kUnlimited); }, "-2"},
      {"window right", [](Call& c) { c.options.mask = window(0, -7); }, "-7"},
      {"offsets of another batch", [](Call& c) { c.options.mask = causal(Diagonal::at({0, 1, 2})); }, "3"},
      {"no offsets", [](Call& c) { c.options.mask = causal(Diagonal::at({})); }, "0 values"},
      {"offset out of this world", [](Call& c) { c.options.mask = causal(Diagonal::at({kMax})); }, "offsets"},
      {"unsorted segments", [](Call& c) { c.options.mask = segments({0, 4, 3, 5}); }, "3"},
      {"segments that start late", [](Call& c) { c.options.mask = segments({1, 4}); }, "1"},
      {"no segments", [](Call& c) { c.options.mask = segments({}); }, "0 values"},
      {"segments beyond the queries", [](Call& c) { c.options.mask = segments({0, 6}, {0, 6}); }, "6"},
      {"segments beyond the keys", [](Call& c) { c.options.mask = segments({0, 5}, {0, 8}); }, "8"},
      {"segments that do not pair", [](Call& c) { c.options.mask = segments({0, 5}, {0, 3, 7}); }, "3"},
      {"segments twice", [](Call& c) { c.options.mask = segments({0, 5}) & segments({0, 5}); }, "segments"},
      {"block of 0", [](Call& c) { c.options.mask = blocks(0, 4, 1, 1, 1, {1}); }, "0"},
      {"block rows", [](Call& c) { c.options.mask = blocks(2, 7, 1, 2, 1, {1, 1}); }, "2"},
      {"block columns", [](Call& c) { c.options.mask = blocks(5, 2, 1, 1, 3, {1, 1, 1}); }, "3"},
      {"block heads", [](Call& c) { c.options.mask = blocks(5, 7, 3, 1, 1, {1, 1, 1}); }, "3"},
      {"block bits", [](Call& c) { c.options.mask = blocks(5, 7, 1, 1, 1, {1, 1}); }, "2"},
      {"block sizes that overflow", [](Call& c) { c.options.mask = blocks(5, 7, kMax, kMax, 2, {1}); }, "blocks"},
      {"dense shape", [](Call& c) { c.options.mask = dense(static_cast<std::uint8_t*>(c.q.data), {1, 1, 5, 6}); },
       "dense"},
      {"dense heads", [](Call& c) { c.options.mask = dense(static_cast<std::uint8_t*>(c.q.data), {1, 3, 5, 7}); },
       "dense"},
      {"dense that overflows",
       [](Call& c) { c.options.mask = dense(static_cast<std::uint8_t*>(c.q.data), {kMax, kMax, 1, 1}); }, "2^63"}};
  expect_refused(list, &Call::forward);
  expect_refused(list, &Call::backward);
}

TEST(Arguments, Numbers) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  expect_refused({{"softcap", [](Call& c) { c.options.softcap = -1; }, "softcap"},
                  {"softcap NaN", [=](Call& c) { c.options.softcap = nan; }, "softcap"},
                  {"softcap inf", [=](Call& c) { c.options.softcap = infinity; }, "softcap"},
                  {"scale NaN", [=](Call& c) { c.options.scale = nan; }, "scale"},
                  {"scale inf", [=](Call& c) { c.options.scale = -infinity; }, "scale"},
                  {"scale beyond f32", [](Call& c) { c.options.scale = 1e39; }, "scale"},
                  {"dropout 1", [](Call& c) { c.options.dropout.probability = 1; }, "dropout"},
                  {"dropout < 0", [](Call& c) { c.options.dropout.probability = -0.1; }, "dropout"},
                  {"dropout NaN", [=](Call& c) { c.options.dropout.probability = nan; }, "dropout"}},
                 &Call::forward);
  expect_refused({{"a rule without a gradient", [](Call& c) { c.options.rule = ScoreRule([](auto) {}); }, "gradient"}},
                 &Call::backward);
}

// The output over an input: rows would be read after they were written.
TEST(Arguments, OutputsOverInputs) {
  const Shape shape = {1, 2, 5, 8};
  Tensor a(DType::f32, shape), b(DType::f32, shape), c(DType::f32, shape), out(DType::f32, shape);
  Tensor lse(DType::f32, {1, 2, 5, 1});
  EXPECT_THROW(attention(a, b, c, a), InvalidArgument) << "out is q";
  EXPECT_THROW(attention(a, b, c, b), InvalidArgument) << "out is k";
  EXPECT_THROW(attention(a, b, c, c), InvalidArgument) << "out is v";
  EXPECT_THROW(attention_backward(out, a, b, c, out, lse, {a, out, out, {}, {}}), InvalidArgument) << "dq is q";
}

// dbias without a bias, dsinks without sinks.
TEST(Arguments, GradientsOfWhatIsNotThere) {
  Call c;
  EXPECT_THROW(
      attention_backward(c.dout, c.q, c.k, c.v, c.out, c.lse, {c.dq, c.dk, c.dv, c.dbias, {}}, AttentionOptions{}),
      InvalidArgument);
  EXPECT_THROW(
      attention_backward(c.dout, c.q, c.k, c.v, c.out, c.lse, {c.dq, c.dk, c.dv, {}, c.dsinks}, AttentionOptions{}),
      InvalidArgument);
}

}  // namespace
}  // namespace attend::test
