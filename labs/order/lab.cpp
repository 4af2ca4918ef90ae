// Lab: what attention knows about order, with and without positions, with and without a causal mask.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "attend/add.hpp"
#include "attend/attention.hpp"
#include "attend/linear.hpp"
#include "attend/positions.hpp"
#include "attend/rope.hpp"
#include "base/random.hpp"
#include "labs/registry.hpp"
#include "labs/tools.hpp"

namespace attend::labs {
namespace {

enum class Positions { none, sinusoidal, rope };

struct Setting {
  const char* name;
  Text text;
  bool causal;
  Positions positions;
};

// Row i of the result is row order[i] of x.
Tensor reordered(const Tensor& x, const std::vector<std::int64_t>& order) {
  Tensor y(DType::f32, x.shape());
  const std::int64_t D = x.shape()[3];
  for (std::size_t i = 0; i < order.size(); ++i)
    std::memcpy(y.data<float>() + static_cast<std::int64_t>(i) * D, x.data<float>() + order[i] * D,
                static_cast<std::size_t>(D) * sizeof(float));
  return y;
}

std::vector<std::int64_t> shuffled(std::int64_t count, std::uint64_t seed) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  for (std::int64_t i = count - 1; i > 0; --i) {
    const auto j = static_cast<std::int64_t>(uniform(seed, static_cast<std::uint64_t>(i)) * static_cast<double>(i + 1));
    std::swap(order[static_cast<std::size_t>(i)], order[static_cast<std::size_t>(j)]);
  }
  return order;
}

Tensor layer(const Tensor& x, const Setting& setting) {
  const std::int64_t L = x.shape()[2], D = x.shape()[3];
  Tensor in = x.clone(), projected[3];
  if (setting.positions == Positions::sinusoidal) {
    Tensor table(DType::f32, x.shape());
    sinusoidal(table);
    add(x, table, in);
  }
  for (std::size_t n = 0; n < 3; ++n) {
    projected[n] = Tensor(DType::f32, {1, 1, L, D});
    linear(in, random_tensor({1, 1, D, D}, 100 + n, 2 / std::sqrt(static_cast<double>(D))), {}, projected[n]);
    if (setting.positions == Positions::rope && n < 2) rope(projected[n], projected[n]);
  }
  AttentionOptions options;
  if (setting.causal) options.mask = causal();
  return attention(projected[0], projected[1], projected[2], options).out;
}

double mean_difference(const Tensor& a, const Tensor& b) {  // of the two means over the length
  const std::int64_t L = a.shape()[2], D = a.shape()[3];
  double most = 0;
  for (std::int64_t d = 0; d < D; ++d) {
    double sum = 0;
    for (std::int64_t i = 0; i < L; ++i)
      sum += static_cast<double>(a.data<float>()[i * D + d]) - static_cast<double>(b.data<float>()[i * D + d]);
    most = largest_of({most, std::abs(sum) / static_cast<double>(L)});
  }
  return most;
}

Results measure(const Arguments& arguments, const Progress&) {
  Results results;
  const std::int64_t L = arguments["length"], D = arguments["dim"];
  const Tensor x = random_tensor({1, 1, L, D}, static_cast<std::uint64_t>(arguments["seed"]));
  auto order = shuffled(L, 7);
  if (std::is_sorted(order.begin(), order.end())) std::swap(order.front(), order.back());
  const Setting settings[] = {
      {"none", say("no positions, no mask", "无位置、无掩码"), false, Positions::none},
      {"causal", say("no positions, causal", "无位置、因果掩码"), true, Positions::none},
      {"sinusoidal", say("sinusoidal positions", "正弦位置编码"), false, Positions::sinusoidal},
      {"rope",
       say("RoPE",
           "RoPE"
           "（旋转位置编码）"),
       false, Positions::rope},
  };
  Table table{
      say("f is one attention layer over {} tokens, P shuffles them. The largest differences, where the largest "
          "output of the first layer is {:.1f}:",
          "f 是一层注意力，输入 {} 个词元，P 把它们打乱。下表是最大差值（第一种设置下，绝对值最大的输出是 {:.1f}）：",
          L, largest(layer(x, settings[0]))),
      {say("layer", "设置"),
       say("f(Px) − P f(x)",
           "f(Px) − P f(x)"
           "（等变？）"),
       say("f(Px) − f(x)",
           "f(Px) − f(x)"
           "（不变？）"),
       say("means of both", "两者平均值之差")},
      {}};
  for (const Setting& setting : settings) {
    const Tensor fx = layer(x, setting), fpx = layer(reordered(x, order), setting);
    const double equivariance = largest_difference(fpx, reordered(fx, order)), invariance = largest_difference(fpx, fx);
    const double pooled = mean_difference(fpx, fx);
    table.rows.push_back(
        {setting.text, number_text(equivariance, 6), number_text(invariance, 6), number_text(pooled, 6)});
    results.put(std::string(setting.name) + "_equivariance", equivariance);
    results.put(std::string(setting.name) + "_invariance", invariance);
    results.put(std::string(setting.name) + "_pooled", pooled);
  }
  results.add(std::move(table));
  return results;
}

constexpr double kEqual = 1e-5, kDifferent = 1e-2;

std::vector<Conclusion> judge(const Numbers& n) {
  std::vector<Conclusion> list;
  list.push_back(conclude(
      "equivariant", n.at("none_equivariance") < kEqual,
      say("without positions and mask, shuffling the tokens shuffles the outputs alike (f(Px) = P f(x) to {:.0e}): "
          "attention is permutation equivariant.",
          "没有位置、没有掩码时，打乱输入，输出就跟着同样打乱（f(Px) = P f(x)，误差 {:.0e}）：注意力是置换等变的。",
          n.at("none_equivariance")),
      say("f(Px) and P f(x) differ by {:.2g}: this layer is not permutation equivariant.",
          "f(Px) 与 P f(x) 相差 {:.2g}：这一层不是置换等变的。", n.at("none_equivariance"))));
  list.push_back(
      conclude("not_invariant", n.at("none_invariance") > kDifferent,
               say("it is not permutation invariant: f(Px) differs from f(x) by {:.2f}. The rows moved; each token "
                   "still got its "
                   "own answer.",
                   "但它不是置换不变的：f(Px) 与 f(x) 相差 {:.2f}。各行换了位置，每个词元得到的仍是它自己的答案。",
                   n.at("none_invariance")),
               say("f(Px) equals f(x) to {:.2g}: here it would be right to say invariant.",
                   "f(Px) 与 f(x) 只差 {:.2g}：这里说“不变”倒是对的。", n.at("none_invariance"))));
  list.push_back(conclude(
      "mean_is_invariant", n.at("none_pooled") < kEqual && n.at("causal_pooled") > kDifferent / 10,
      say("only the mean over all tokens is invariant ({:.0e}), and only without the mask: with it the mean moves by "
          "{:.3f}.",
          "只有对全部词元取平均才是不变的（{:.0e}），而且只在没有掩码时；有因果掩码时，平均值会变动 {:.3f}。",
          n.at("none_pooled"), n.at("causal_pooled")),
      say("the means moved by {:.2g} without the mask and {:.2g} with it.",
          "平均值在无掩码时变动 {:.2g}，有掩码时变动 {:.2g}。", n.at("none_pooled"), n.at("causal_pooled"))));
  list.push_back(conclude(
      "causal_is_neither", n.at("causal_equivariance") > kDifferent && n.at("causal_invariance") > kDifferent,
      say("with a causal mask it is neither ({:.2f} and {:.2f}): what a token sees depends on its place, so the mask "
          "alone already tells something about order.",
          "加上因果掩码后两者都不成立（{:.2f} 和 {:.2f}）：一个词元能看到什么取决于它的位置，所以光是掩码就已经带有顺序"
          "信息。",
          n.at("causal_equivariance"), n.at("causal_invariance")),
      say("with a causal mask the differences are {:.2g} and {:.2g}: one of the two still holds here.",
          "有因果掩码时两个差值是 {:.2g} 和 {:.2g}：其中一个在这里仍然成立。", n.at("causal_equivariance"),
          n.at("causal_invariance"))));
  const double least = smallest_of({n.at("sinusoidal_equivariance"), n.at("rope_equivariance")});
  list.push_back(conclude(
      "positions_break_it", least > kDifferent,
      say("positions break the symmetry, whether added to the input ({:.2f}) or rotated into q and k ({:.2f}).",
          "位置编码打破了这种对称，无论是加到输入上（{:.2f}），还是旋转进 q 和 k（{:.2f}）。",
          n.at("sinusoidal_equivariance"), n.at("rope_equivariance")),
      say("with positions the layer stays equivariant to {:.2g}: they change nothing here.",
          "加了位置以后仍然等变（{:.2g}）：位置在这里没有起作用。", least)));
  return list;
}

}  // namespace

Lab order_lab() {
  return {
      .name = "order",
      .title = say("Does attention know the order of words?", "注意力知道词序吗？"),
      .question = say("If you shuffle the words, what happens to the output: nothing, the same shuffle, or something "
                      "new?",
                      "把词打乱以后，输出会怎样：毫无变化、跟着一起打乱，还是变成新的东西？"),
      .lesson = say("\"Attention without positions is permutation invariant.\" One word of that is wrong.",
                    "“没有位置编码的注意力是置换不变的。”这句话里有一个词是错的。"),
      .guess = say("Say for each of four layers (nothing added, causal mask, sinusoids, RoPE) whether f(Px) equals "
                   "f(x), P f(x), or neither.",
                   "对四种情况（什么都不加、因果掩码、正弦位置、RoPE）分别猜：f(Px) 等于 f(x)、等于 P f(x)，还是都"
                   "不等？"),
      .why = {say("Every token asks its question of the same set of keys and values, and a sum over a set has no "
                  "order: so each token gets the same answer wherever it stands, and the answers move with the "
                  "tokens. That is equivariance. Invariance would mean that the output, row by row, stays put.",
                  "每个词元都向同一组键和值提问，而对集合求和是没有顺序的：所以一个词元无论站在哪里，得到的答案都一样，"
                  "答案跟着词元走，这叫等变。若是不变，输出就该每一行都原地不动。")},
      .seconds = 1,
      .minutes = 6,
      .parameters = {{"length", 12, 3, 256, 8, say("tokens", "词元数")},
                     {"dim", 32, 2, 256, 16, say("features, even", "特征数，偶数")},
                     {"seed", 1, 0, 1000000, 1, say("other random numbers", "换一组随机数")}},
      .measure = measure,
      .judge = judge};
}

}  // namespace attend::labs
