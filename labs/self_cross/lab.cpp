// Lab: self-attention and cross-attention: the same layer, one source or two.
#include <algorithm>
#include <cmath>

#include "attend/multi_head_attention.hpp"
#include "labs/registry.hpp"
#include "labs/tools.hpp"

namespace attend::labs {
namespace {

Results measure(const Arguments& a, const Progress&) {
  Results results;
  const std::int64_t W = a["width"], M = a["target"], N = a["source"];
  MultiHeadAttention layer({.width = W, .heads = 2});
  layer.initialise(1);
  const Tensor x = random_tensor({1, 1, M, W}, 1), context = random_tensor({1, 1, N, W}, 2);
  Tensor self_weights, cross_weights;
  const Tensor self = layer.forward(x, {}, {.weights = &self_weights});
  const Tensor cross = layer.forward(x, context, {}, {.weights = &cross_weights});
  const Tensor own = layer.forward(x, x);
  results.add(
      Table{say("One layer, {} parameters, asked twice", "同一层（{} 个参数），问两次", layer.parameter_count()),
            {say("", "项目"), say("self", "自注意力"), say("cross", "交叉注意力")},
            {{say("queries from", "查询来自"), same("x [{}, {}]", M, W), same("x [{}, {}]", M, W)},
             {say("keys and values from", "键和值来自"), same("x [{}, {}]", M, W), same("context [{}, {}]", N, W)},
             {say("weights of a head", "一个头的权重"), same("[{}, {}]", M, M), same("[{}, {}]", M, N)},
             {say("output", "输出"), shape_text(self.shape()), shape_text(cross.shape())}}});
  results.add(matrix("self", say("self: x over x", "自注意力：x 看 x"), rows_of(self_weights)));
  results.add(matrix("cross", say("cross: x over the context", "交叉注意力：x 看 context"), rows_of(cross_weights)));
  results.put("same_source_bits", same_bits(self, own) ? 1 : 0);
  results.put("rows", cross_weights.shape()[2]);
  results.put("columns", cross_weights.shape()[3]);
  results.put("target", M);
  results.put("source", N);
  results.put("output_length", cross.shape()[2]);
  double worst = 0;
  for (const auto& row : rows_of(cross_weights)) {
    double sum = 0;
    for (const double w : row) sum += w;
    worst = largest_of({worst, std::abs(sum - 1)});
  }
  results.put("row_sum_error", worst);
  // Nothing of x but the queries: with one query, the other rows of x cannot matter; the context's order neither.
  Tensor other = x.clone();
  for (std::int64_t n = W; n < other.size(); ++n) other.data<float>()[n] += 2;
  results.put("first_row_cross",
              largest_difference(slice(layer.forward(other, context), 2, 0, 1), slice(cross, 2, 0, 1)));
  results.put("first_row_self", largest_difference(slice(layer.forward(other), 2, 0, 1), slice(self, 2, 0, 1)));
  Tensor moved = context.clone();
  for (std::int64_t n = 0; n < moved.size(); ++n) moved.data<float>()[n] += 1;
  results.put("context_moves", largest_difference(layer.forward(x, moved), cross));
  return results;
}

std::vector<Conclusion> judge(const Numbers& n) {
  std::vector<Conclusion> list;
  list.push_back(conclude(
      "one_layer", n.at("same_source_bits") != 0,
      say("given x as its own context, cross-attention is self-attention, bit for bit: one layer, one set of weights.",
          "把 x 自己当作 context，交叉注意力就是自注意力，逐位相同：同一层，同一组权重。"),
      say("cross-attention over x itself differs from self-attention.",
          "以 x 自己为 context 的交叉注意力与自注意力不同。")));
  list.push_back(conclude(
      "shapes_follow_sources",
      n.at("rows") == n.at("target") && n.at("columns") == n.at("source") && n.at("output_length") == n.at("target"),
      say("the weights are [{:.0f}, {:.0f}], a row for each query, a column for each context token; the output has the "
          "length of the queries.",
          "权重是 [{:.0f}, {:.0f}]：每个查询一行，每个 context 词元一列；输出长度与查询相同。", n.at("rows"),
          n.at("columns")),
      say("the weights are [{:.0f}, {:.0f}] and the output has {:.0f} rows.",
          "权重是 [{:.0f}, {:.0f}]，输出有 {:.0f} 行。", n.at("rows"), n.at("columns"), n.at("output_length"))));
  list.push_back(conclude(
      "each_query_on_its_own", n.at("first_row_cross") == 0 && (n.at("first_row_self") > 1e-4 || n.at("target") == 1),
      say("in cross-attention tokens of x do not see each other: changing the others leaves the first row as it was; "
          "in self-attention it moves by {:.2f}.",
          "交叉注意力里，x 的词元之间互相看不到：改动其他词元，第一行不变；自注意力里第一行会变 {:.2f}。",
          n.at("first_row_self")),
      say("changing other tokens of x moved the first row by {:.2g} (cross) and {:.2g} (self).",
          "改动 x 的其他词元，第一行变动 {:.2g}（交叉）和 {:.2g}（自注意力）。", n.at("first_row_cross"),
          n.at("first_row_self"))));
  list.push_back(conclude(
      "context_speaks", n.at("context_moves") > 1e-3 && n.at("row_sum_error") < 1e-5,
      say("what is said comes from the context alone: moving it moves the output by {:.2f}, and rows sum to 1 as ever.",
          "说什么由 context 决定：改动它，输出就变 {:.2f}；每行之和照样是 1。", n.at("context_moves")),
      say("moving the context moved the output by {:.2g}; row sums are off by {:.2g}.",
          "改动 context，输出变 {:.2g}；行和偏差 {:.2g}。", n.at("context_moves"), n.at("row_sum_error"))));
  return list;
}

}  // namespace

Lab self_cross_lab() {
  return {
      .name = "self-cross",
      .title = say("Self and cross", "自注意力与交叉注意力"),
      .question =
          say("What is different between self-attention and cross-attention?", "自注意力和交叉注意力到底差在哪里？"),
      .lesson = say("They are often taught as two mechanisms with two diagrams.",
                    "教程常把它们画成两张图，当成两种机制来讲。"),
      .guess = say("If you hand a cross-attention layer x twice, how far is the result from self-attention? What shape "
                   "do the weights have?",
                   "把 x 同时当查询和 context 交给交叉注意力，结果与自注意力差多少？权重是什么形状？"),
      .why = {say(
          "The layer never asks where K and V come from. In translation the decoder's tokens ask and the "
          "encoder's answer; the encoder's keys and values do not change while the decoder writes, so they are "
          "made once. A causal mask makes no sense across two texts: all of the source may be seen.",
          "这一层从不关心 K、V 从哪里来。翻译时，解码器的词元提问，编码器的词元回答；解码过程中编码器的键和值不变，所以"
          "只需算一次。跨两段文本用因果掩码没有意义：源文本可以全部看到。")},
      .seconds = 1,
      .minutes = 4,
      .parameters = {{"width", 16, 2, 512, 16, say("features, even", "特征数，偶数")},
                     {"target", 4, 1, 16, 4, say("tokens that ask", "提问的词元数")},
                     {"source", 6, 1, 16, 6, say("tokens of the context", "context 的词元数")}},
      .measure = measure,
      .judge = judge};
}

}  // namespace attend::labs
