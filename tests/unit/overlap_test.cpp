// The rule of every operation: what it writes shares no memory with what it reads, nor with another result.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "attend/attend.h"
#include "attend/attend.hpp"
#include "op_testing.hpp"
#include "support/guard.hpp"

namespace attend::test {
namespace {

using ops::random_tensor;

constexpr Shape kShape{1, 2, 4, 4};       // of most arguments
constexpr Shape kMatrix{1, 1, 4, 4};      // weights
constexpr Shape kVector{1, 1, 1, 4};      // biases, gains
constexpr Shape kPerHead{1, 2, 1, 1};     // slopes, sinks, spans
constexpr Shape kPerRow{1, 2, 4, 1};      // log-sum-exp, decays
constexpr Shape kHeadVector{1, 2, 1, 4};  // w of additive scores
constexpr Shape kProjector{1, 1, 3, 4};   // e and f of Linformer
constexpr Shape kProjected{1, 2, 3, 4};

struct Argument {
  const char* name;
  Shape shape;
  bool written;
  const char* may_be = "";  // the input that this result may be
  const char* or_be = "";   // or this one

  bool allows(const char* input) const { return std::string(may_be) == input || std::string(or_be) == input; }
};

struct Operation {
  std::string name;
  std::vector<Argument> arguments;
  std::function<void(const std::vector<MutableView>&)> run;  // over views in that order
};

// The building blocks of a model.
void add_blocks(std::vector<Operation>& list) {
  static const std::vector<std::int64_t> rows = {0, 3, 1, 1, 2, 0, 0, 3};
  const Argument x{"x", kShape, false}, dy{"dy", kShape, false}, weight{"weight", kVector, false};
  const Argument gate{"gate", kShape, false}, up{"up", kShape, false}, table{"weight", kMatrix, false};
  list.push_back({"layer_norm", {x, weight, {"bias", kVector, false}, {"y", kShape, true, "x"}}, [](auto& v) {
                    layer_norm(v[0], v[1], View(v[2]), v[3]);
                  }});
  list.push_back({"layer_norm_backward",
                  {dy, x, weight, {"dx", kShape, true, "dy"}, {"dweight", kVector, true}, {"dbias", kVector, true}},
                  [](auto& v) { layer_norm_backward(v[0], v[1], v[2], {v[3], v[4], v[5]}); }});
  list.push_back(
      {"activation", {x, {"y", kShape, true, "x"}}, [](auto& v) { activation(Activation::gelu, v[0], v[1]); }});
  list.push_back({"activation_backward", {dy, x, {"dx", kShape, true, "dy"}}, [](auto& v) {
                    activation_backward(Activation::gelu, v[0], v[1], v[2]);
                  }});
  list.push_back({"gated_activation", {gate, up, {"y", kShape, true, "gate", "up"}}, [](auto& v) {
                    gated_activation(Activation::silu, v[0], v[1], v[2]);
                  }});
  list.push_back({"gated_activation_backward",
                  {dy, gate, up, {"dgate", kShape, true, "dy"}, {"dup", kShape, true, "dy"}},
                  [](auto& v) { gated_activation_backward(Activation::silu, v[0], v[1], v[2], v[3], v[4]); }});
  list.push_back(
      {"add", {x, {"y", kShape, false}, {"z", kShape, true, "x", "y"}}, [](auto& v) { add(v[0], v[1], v[2]); }});
  list.push_back({"convert", {x, {"y", kShape, true}}, [](auto& v) { convert(v[0], v[1]); }});
  list.push_back({"dropout", {x, {"y", kShape, true, "x"}}, [](auto& v) { dropout(v[0], v[1], {0.5, 1}); }});
  list.push_back(
      {"embedding", {{"table", kMatrix, false}, {"y", kShape, true}}, [](auto& v) { embedding(v[0], rows, v[1]); }});
  list.push_back(
      {"embedding_backward", {dy, {"dtable", kMatrix, true}}, [](auto& v) { embedding_backward(v[0], rows, v[1]); }});
  list.push_back(
      {"cross_entropy", {x, table, {"loss", kPerRow, true}}, [](auto& v) { cross_entropy(v[0], v[1], rows, v[2]); }});
  list.push_back({"cross_entropy_backward",
                  {{"dloss", kPerRow, false},
                   x,
                   table,
                   {"dhidden", kShape, true},
                   {"dweight", kMatrix, true},
                   {"loss", kPerRow, true}},
                  [](auto& v) { cross_entropy_backward(v[0], v[1], v[2], rows, {v[3], v[4], v[5]}); }});
}

std::vector<Operation> operations() {
  const Argument q{"q", kShape, false}, k{"k", kShape, false}, v{"v", kShape, false};
  const Argument out{"out", kShape, true}, lse{"lse", kPerRow, true}, dout{"dout", kShape, false};
  const Argument given_out{"out", kShape, false}, given_lse{"lse", kPerRow, false};
  const Argument dq{"dq", kShape, true}, dk{"dk", kShape, true}, dv{"dv", kShape, true};
  const LinearAttentionOptions plain_linear{.map = FeatureMap::Kind::identity, .normalise = false};
  const ReformerOptions lsh{.rounds = 1, .chunk = 2, .buckets = {2}};
  std::vector<Operation> list;
  add_blocks(list);
  list.push_back({"softmax", {{"x", kShape, false}, {"y", kShape, true, "x"}}, [](auto& x) { softmax(x[0], x[1]); }});
  list.push_back({"softmax_backward",
                  {{"dy", kShape, false}, {"y", kShape, false}, {"dx", kShape, true, "dy"}},
                  [](auto& x) { softmax_backward(x[0], x[1], x[2]); }});
  list.push_back({"rope", {{"x", kShape, false}, {"y", kShape, true, "x"}}, [](auto& x) { rope(x[0], x[1]); }});
  list.push_back({"rope_backward", {{"dy", kShape, false}, {"dx", kShape, true, "dy"}}, [](auto& x) {
                    rope_backward(x[0], x[1]);
                  }});
  list.push_back({"rms_norm",
                  {{"x", kShape, false}, {"weight", kVector, false}, {"y", kShape, true, "x"}},
                  [](auto& x) { rms_norm(x[0], x[1], x[2]); }});
  list.push_back({"rms_norm_backward",
                  {{"dy", kShape, false},
                   {"x", kShape, false},
                   {"weight", kVector, false},
                   {"dx", kShape, true, "dy"},
                   {"dweight", kVector, true}},
                  [](auto& x) { rms_norm_backward(x[0], x[1], x[2], x[3], x[4]); }});
  list.push_back({"linear",
                  {{"x", kShape, false}, {"weight", kMatrix, false}, {"bias", kVector, false}, {"y", kShape, true}},
                  [](auto& x) { linear(x[0], x[1], View(x[2]), x[3]); }});
  list.push_back({"linear_backward",
                  {{"dy", kShape, false},
                   {"x", kShape, false},
                   {"weight", kMatrix, false},
                   {"dx", kShape, true},
                   {"dweight", kMatrix, true},
                   {"dbias", kVector, true}},
                  [](auto& x) { linear_backward(x[0], x[1], x[2], {x[3], x[4], x[5]}); }});
  list.push_back({"add_positions",
                  {{"x", kShape, false}, {"table", kMatrix, false}, {"y", kShape, true, "x"}},
                  [](auto& x) { add_positions(x[0], x[1], x[2]); }});
  list.push_back({"add_positions_backward", {{"dy", kShape, false}, {"dtable", kMatrix, true}}, [](auto& x) {
                    add_positions_backward(x[0], x[1]);
                  }});
  list.push_back({"attention",
                  {q,
                   k,
                   v,
                   {"bias", {1, 2, 4, 4}, false},
                   {"ALiBi slopes", kPerHead, false},
                   {"sinks", kPerHead, false},
                   out,
                   lse,
                   {"weights", kShape, true}},
                  [](auto& x) {
                    attention(x[0], x[1], x[2], x[6], {.bias = x[3], .alibi_slopes = x[4], .sinks = x[5]},
                              {.lse = x[7], .weights = x[8]});
                  }});
  list.push_back({"attention_backward",
                  {dout,
                   q,
                   k,
                   v,
                   given_out,
                   given_lse,
                   {"bias", {1, 2, 4, 4}, false},
                   {"ALiBi slopes", kPerHead, false},
                   {"sinks", kPerHead, false},
                   dq,
                   dk,
                   dv,
                   {"dbias", kShape, true},
                   {"dsinks", kPerHead, true}},
                  [](auto& x) {
                    attention_backward(x[0], x[1], x[2], x[3], x[4], x[5],
                                       {.dq = x[9], .dk = x[10], .dv = x[11], .dbias = x[12], .dsinks = x[13]},
                                       {.bias = x[6], .alibi_slopes = x[7], .sinks = x[8]});
                  }});
  list.push_back({"additive_attention",
                  {{"a", kShape, false}, {"b", kShape, false}, {"w", kHeadVector, false}, v, out, lse},
                  [](auto& x) { additive_attention(x[0], x[1], x[2], x[3], x[4], {}, x[5]); }});
  list.push_back({"additive_attention_backward",
                  {dout,
                   {"a", kShape, false},
                   {"b", kShape, false},
                   {"w", kHeadVector, false},
                   v,
                   given_out,
                   given_lse,
                   {"da", kShape, true},
                   {"db", kShape, true},
                   {"dw", kHeadVector, true},
                   dv},
                  [](auto& x) {
                    additive_attention_backward(x[0], x[1], x[2], x[3], x[4], x[5], x[6], {x[7], x[8], x[9], x[10]});
                  }});
  list.push_back(
      {"aligned_attention",
       {q, k, v, {"wq", kMatrix, false}, {"wk", kMatrix, false}, {"w", kHeadVector, false}, out, lse},
       [](auto& x) { aligned_attention(Alignment::concat, x[0], x[1], x[2], {x[3], x[4], x[5]}, x[6], {}, x[7]); }});
  list.push_back({"aligned_attention",
                  {dout,
                   q,
                   k,
                   v,
                   {"wq", kMatrix, false},
                   {"wk", kMatrix, false},
                   {"w", kHeadVector, false},
                   given_out,
                   given_lse,
                   dq,
                   dk,
                   dv,
                   {"dwq", kMatrix, true},
                   {"dwk", kMatrix, true},
                   {"dw", kHeadVector, true}},
                  [](auto& x) {
                    aligned_attention_backward(Alignment::concat, x[0], x[1], x[2], x[3], {x[4], x[5], x[6]}, x[7],
                                               x[8], {x[9], x[10], x[11], x[12], x[13], x[14]});
                  }});
  list.push_back({"aligned_attention",
                  {dout, q, k, v, {"wq", kMatrix, false}, given_out, given_lse, dq, dk, dv, {"dwq", kMatrix, true}},
                  [](auto& x) {
                    aligned_attention_backward(Alignment::general, x[0], x[1], x[2], x[3], {.wq = x[4]}, x[5], x[6],
                                               {x[7], x[8], x[9], x[10]});
                  }});
  list.push_back({"linear_attention",
                  {q, k, v, {"initial_state", kShape, false}, out, {"final_state", kShape, true, "initial_state"}},
                  [=](auto& x) {
                    LinearAttentionOptions options = plain_linear;
                    options.initial_state = x[3];
                    linear_attention(x[0], x[1], x[2], x[4], options, x[5]);
                  }});
  list.push_back({"linear_attention_backward",
                  {dout,
                   q,
                   k,
                   v,
                   {"initial_state", kShape, false},
                   {"dfinal_state", kShape, false},
                   dq,
                   dk,
                   dv,
                   {"dinitial_state", kShape, true, "dfinal_state"}},
                  [=](auto& x) {
                    LinearAttentionOptions options = plain_linear;
                    options.initial_state = x[4];
                    linear_attention_backward(x[0], x[1], x[2], x[3],
                                              {.dq = x[6], .dk = x[7], .dv = x[8], .dinitial_state = x[9]}, options,
                                              x[5]);
                  }});
  list.push_back({"linear_attention_step", {q, k, v, out, {"state", kShape, true}}, [=](auto& x) {
                    linear_attention_step(x[0], x[1], x[2], x[3], x[4], plain_linear);
                  }});
  list.push_back({"linformer",
                  {q,
                   k,
                   v,
                   {"e", kProjector, false},
                   {"f", kProjector, false},
                   out,
                   lse,
                   {"keys", kProjected, true},
                   {"values", kProjected, true}},
                  [](auto& x) {
                    linformer(x[0], x[1], x[2], x[3], View(x[4]), x[5], {},
                              {.lse = x[6], .keys = x[7], .values = x[8]});
                  }});
  list.push_back({"linformer_backward",
                  {dout,
                   q,
                   k,
                   v,
                   {"e", kProjector, false},
                   {"f", kProjector, false},
                   given_out,
                   given_lse,
                   {"keys", kProjected, false},
                   {"values", kProjected, false},
                   dq,
                   dk,
                   dv,
                   {"de", kProjector, true},
                   {"df", kProjector, true}},
                  [](auto& x) {
                    linformer_backward(x[0], x[1], x[2], x[3], x[4], View(x[5]), x[6], x[7],
                                       {x[10], x[11], x[12], x[13], x[14]}, {}, {x[8], x[9]});
                  }});
  list.push_back({"adaptive_span", {q, k, v, {"span", kPerHead, false}, out, lse}, [](auto& x) {
                    adaptive_span(x[0], x[1], x[2], x[3], x[4], {}, x[5]);
                  }});
  list.push_back(
      {"adaptive_span_backward",
       {dout, q, k, v, {"span", kPerHead, false}, given_out, given_lse, dq, dk, dv, {"dspan", kPerHead, true}},
       [](auto& x) { adaptive_span_backward(x[0], x[1], x[2], x[3], x[4], x[5], x[6], {x[7], x[8], x[9], x[10]}); }});
  list.push_back({"reformer", {q, v, out, lse}, [=](auto& x) { reformer(x[0], x[1], x[2], lsh, x[3]); }});
  list.push_back({"reformer_backward", {dout, q, v, given_out, given_lse, dq, dv}, [=](auto& x) {
                    reformer_backward(x[0], x[1], x[2], x[3], x[4], {x[5], x[6]}, lsh);
                  }});
  return list;
}

// All arguments of a call, each with room around it, in one piece of memory.
class Arguments {
 public:
  explicit Arguments(const Operation& operation, DType dtype) {
    for (const Argument& argument : operation.arguments) {
      tensors_.push_back(random_tensor(dtype, {1, 1, 1, 64}, tensors_.size() + 1, 0.5));
      views.push_back({dtype, tensors_.back().view().data, argument.shape, contiguous_strides(argument.shape)});
    }
  }
  std::vector<float> memory() const {
    std::vector<float> all;
    for (const Tensor& x : tensors_)
      for (std::int64_t n = 0; n < x.size(); ++n) all.push_back(static_cast<float>(load(x.view(), 0, 0, 0, n)));
    return all;
  }
  std::vector<MutableView> views;

 private:
  std::vector<Tensor> tensors_;
};

std::string refusal(const Operation& operation, const std::vector<MutableView>& views) {
  try {
    operation.run(views);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

std::size_t bytes_of(const View& x) {
  return static_cast<std::size_t>(x.batch() * x.heads() * x.length() * x.dim() * size_of(x.dtype));
}

class Overlap : public ::testing::TestWithParam<DType> {};

TEST_P(Overlap, IsRefusedByEveryOperation) {
  for (const Operation& operation : operations()) {
    Arguments whole(operation, GetParam());
    ASSERT_EQ(refusal(operation, whole.views), "") << operation.name;
    for (std::size_t w = 0; w < whole.views.size(); ++w) {
      if (!operation.arguments[w].written) continue;
      for (std::size_t other = 0; other < whole.views.size(); ++other) {
        if (other == w || (operation.arguments[other].written && other > w)) continue;
        for (const int shift : {0, 1}) {  // the same place, and one element further
          const bool allowed = shift == 0 && operation.arguments[w].allows(operation.arguments[other].name);
          if (allowed) continue;
          const std::string what = operation.name + ": " + operation.arguments[w].name + " over " +
                                   operation.arguments[other].name + " + " + std::to_string(shift);
          Arguments arguments(operation, GetParam());
          arguments.views[w].data = static_cast<char*>(arguments.views[other].data) + shift * size_of(GetParam());
          const std::vector<float> before = arguments.memory();
          EXPECT_NE(refusal(operation, arguments.views).find("shares memory with"), std::string::npos) << what;
          EXPECT_EQ(std::memcmp(before.data(), arguments.memory().data(), before.size() * sizeof(float)), 0) << what;
        }
      }
    }
  }
}

TEST_P(Overlap, InPlaceGivesTheSameBitsWhereItIsAllowed) {
  int allowed = 0;
  for (const Operation& operation : operations()) {
    for (std::size_t w = 0; w < operation.arguments.size(); ++w) {
      for (std::size_t other = 0; other < operation.arguments.size(); ++other) {
        if (!operation.arguments[w].allows(operation.arguments[other].name)) continue;
        Arguments apart(operation, GetParam()), in_place(operation, GetParam());
        in_place.views[w].data = in_place.views[other].data;
        ASSERT_EQ(refusal(operation, apart.views), "");
        ASSERT_EQ(refusal(operation, in_place.views), "") << operation.name;
        ops::for_each_element(operation.arguments[w].shape, [&](auto b, auto h, auto i, auto d) {
          EXPECT_EQ(load(apart.views[w], b, h, i, d), load(in_place.views[w], b, h, i, d)) << operation.name;
        });
        ++allowed;
      }
    }
  }
  EXPECT_EQ(allowed, 20);
}

// Each argument ends, or begins, at a page that cannot be touched; the results are those of arguments elsewhere.
TEST_P(Overlap, NothingBesideTheArgumentsIsTouched) {
  for (const Operation& operation : operations()) {
    Arguments expected(operation, GetParam());
    ASSERT_EQ(refusal(operation, expected.views), "") << operation.name;
    for (const Against side : {Against::front, Against::back}) {
      const Arguments given(operation, GetParam());
      std::vector<std::unique_ptr<GuardedTensor>> guarded;
      std::vector<MutableView> views;
      for (const MutableView& view : given.views) {
        guarded.push_back(std::make_unique<GuardedTensor>(GetParam(), view.shape, side));
        views.push_back(guarded.back()->view());
        std::memcpy(views.back().data, view.data, bytes_of(view));
      }
      ASSERT_EQ(refusal(operation, views), "") << operation.name;
      for (std::size_t n = 0; n < views.size(); ++n)
        EXPECT_EQ(std::memcmp(views[n].data, expected.views[n].data, bytes_of(views[n])), 0)
            << operation.name << ": " << operation.arguments[n].name;
    }
  }
}

// Every argument of every operation in turn: no memory at all, an unknown dtype, a negative size, and for what is
// written two elements in one place. Nothing is written before that is found.
TEST_P(Overlap, BadViewsAreRefusedByEveryOperation) {
  const auto expect_refused = [](const Operation& operation, std::size_t which, const char* words, const auto& change) {
    Arguments arguments(operation, GetParam());
    change(arguments.views[which]);
    const std::vector<float> before = arguments.memory();
    const std::string text = refusal(operation, arguments.views);
    EXPECT_NE(text.find(words), std::string::npos)
        << operation.name << ", " << operation.arguments[which].name << ": " << text << ", expected " << words;
    EXPECT_EQ(std::memcmp(before.data(), arguments.memory().data(), before.size() * sizeof(float)), 0);
  };
  for (const Operation& operation : operations()) {
    for (std::size_t n = 0; n < operation.arguments.size(); ++n) {
      expect_refused(operation, n, "data is null", [](MutableView& x) { x.data = nullptr; });
      expect_refused(operation, n, "dtype is 77", [](MutableView& x) { x.dtype = static_cast<DType>(77); });
      expect_refused(operation, n, "shape is [1, -1", [](MutableView& x) { x.shape[1] = -1; });
      for (std::size_t d = 0; operation.arguments[n].written && d < 4; ++d) {
        if (operation.arguments[n].shape[d] < 2) continue;
        expect_refused(operation, n, "expected every element in a place of its own",
                       [&](MutableView& x) { x.strides[d] = 0; });
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, Overlap, ::testing::Values(DType::f32, DType::f64));

TEST(OverlapMask, ADenseMaskIsReadWhereItLies) {
  const Tensor q = random_tensor(DType::f32, kShape, 1);
  std::vector<float> memory(64, 1.0F);
  const auto* bits = reinterpret_cast<const std::uint8_t*>(memory.data());
  const Mask mask = causal() & (dense(bits, {1, 1, 4, 4}) | window(1, kUnlimited));
  const MutableView out = view_of(memory.data(), kShape);
  const auto refusal_of = [](const auto& call) {
    try {
      call();
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal_of([&] { attention(q, q, q, out, {.mask = mask}); }),
            "attention: out shares memory with the mask, expected a place of its own");
  const Tensor w = random_tensor(DType::f32, kHeadVector, 2);
  EXPECT_EQ(refusal_of([&] { additive_attention(q, q, w, q, out, {.mask = mask}); }),
            "additive_attention: out shares memory with the mask, expected a place of its own");
}

TEST(OverlapCAbi, IsAStatus) {
  std::vector<float> memory(40, 1.0F);
  const int64_t shape[4] = {1, 1, 4, 4}, vector[4] = {1, 1, 1, 4};
  attend_tensor x, y, weight;
  attend_tensor_contiguous(ATTEND_F32, memory.data(), shape, &x);
  attend_tensor_contiguous(ATTEND_F32, memory.data() + 1, shape, &y);
  attend_tensor_contiguous(ATTEND_F32, memory.data() + 30, vector, &weight);
  for (const attend_status status :
       {attend_softmax(&x, &y), attend_rope(&x, &y, nullptr), attend_rms_norm(&x, &weight, &y, 1e-6),
        attend_linear(&x, &x, nullptr, &y), attend_linear_backward(&x, &x, &x, &y, nullptr, nullptr)}) {
    EXPECT_EQ(status, ATTEND_INVALID_ARGUMENT);
    EXPECT_NE(std::string(attend_last_error()).find("shares memory with"), std::string::npos);
  }
  EXPECT_EQ(attend_softmax(&x, &x), ATTEND_OK);
}

}  // namespace
}  // namespace attend::test
