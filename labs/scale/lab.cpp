// Lab: why scores are divided by the square root of the head dimension.
#include <algorithm>
#include <cmath>

#include "base/random.hpp"
#include "labs/registry.hpp"
#include "labs/relations.hpp"
#include "labs/tiny_model.hpp"
#include "labs/tools.hpp"

namespace attend::labs {
namespace {

constexpr std::int64_t kKeys = 64;  // that a query shares its attention among

struct Row {
  double deviation = 0, farthest = 0, outside = 0;  // of q.k; the share of scaled scores beyond +-1
  double entropy = 0, scaled_entropy = 0;           // of softmax over kKeys scores
  double gradient = 0, scaled_gradient = 0;         // mean over rows of sum |dp/ds|, which saturation kills
};

double gradient_of(const std::vector<double>& p) {  // sum over i, j of |dp_i / ds_j|
  double sum = 0;
  for (const double w : p) sum += 2 * w * (1 - w);
  return sum;
}

Row row_for(std::int64_t d, std::int64_t samples, std::uint64_t seed) {
  Row row;
  std::vector<double> scores;
  const std::int64_t queries = std::max<std::int64_t>(1, samples / kKeys);
  const double root = std::sqrt(static_cast<double>(d));
  const Tensor q = random_tensor({1, 1, queries, d}, seed), k = random_tensor({1, 1, queries * kKeys, d}, seed + 1);
  for (std::int64_t i = 0; i < queries; ++i) {
    std::vector<double> s, scaled;
    for (std::int64_t j = 0; j < kKeys; ++j) {
      double dot = 0;
      for (std::int64_t n = 0; n < d; ++n)
        dot += static_cast<double>(q.data<float>()[i * d + n]) *
               static_cast<double>(k.data<float>()[(i * kKeys + j) * d + n]);
      s.push_back(dot);
      scaled.push_back(dot / root);
      row.farthest = largest_of({row.farthest, std::abs(dot)});
      row.outside += std::abs(dot / root) > 1 ? 1 : 0;
    }
    scores.insert(scores.end(), s.begin(), s.end());
    const std::vector<double> p = softmax_of(s), ps = softmax_of(scaled);
    row.entropy += entropy_of(p) / static_cast<double>(queries);
    row.scaled_entropy += entropy_of(ps) / static_cast<double>(queries);
    row.gradient += gradient_of(p) / static_cast<double>(queries);
    row.scaled_gradient += gradient_of(ps) / static_cast<double>(queries);
  }
  row.deviation = deviation_of(scores);
  row.outside /= static_cast<double>(scores.size());
  return row;
}

void train_both(const Arguments& a, const Progress& progress, Results& results) {
  const std::int64_t steps = a["steps"];
  CurvesFigure figure{"training",
                      say("The same model (one head of {}) trained with and without ÷√d",
                          "同一个模型（一个 {} 维的头），有无 ÷√d 的训练曲线", a["dim"]),
                      say("step", "训练步"),
                      say("loss", "损失"),
                      {},
                      false,
                      false};
  for (const bool scaled : {true, false}) {
    TinyShape shape{.vocabulary = kRelationClasses, .width = a["dim"], .layers = 1, .heads = 1};
    // Scores of weights that have not learnt anything are to have the deviation that theory speaks of.
    shape.options.scale = scaled ? 1 / std::sqrt(static_cast<double>(a["dim"])) : 1.0;
    TinyModel model(shape);
    for (const std::size_t n : {std::size_t{3}, std::size_t{4}}) {  // W_Q and W_K: of variance 1 / width
      Tensor& w = *model.parameters()[n];
      for (std::int64_t i = 0; i < w.size(); ++i) w.data<float>()[i] *= std::sqrt(3.0F);
    }
    Curve curve{scaled ? say("with ÷√d", "有 ÷√d") : say("without", "没有"), {}};
    double last = 0;
    for (std::int64_t step = 1; step <= steps; ++step) {
      const double loss = model.train(relation_batch(16, 24, static_cast<std::uint64_t>(step)), 3e-3);
      last = step == 1 ? loss : 0.9 * last + 0.1 * loss;
      if (step % std::max<std::int64_t>(1, steps / 30) == 0) curve.points.emplace_back(step, last);
      progress(0.3 + 0.7 * (static_cast<double>(step) / static_cast<double>(2 * steps) + (scaled ? 0 : 0.5)));
    }
    const double end = model.loss(relation_batch(64, 24, 999999));
    results.put(scaled ? "loss_scaled" : "loss_unscaled", end);
    figure.curves.push_back(std::move(curve));
  }
  results.add(std::move(figure));
  results.add(
      say("Loss on texts never trained on after {} steps: {:.3f} with, {:.3f} without. Guessing blindly costs "
          "{:.3f}.",
          "训练 {} 步后，在没见过的文本上的损失：有 ÷√d 为 {:.3f}，没有为 {:.3f}；纯瞎猜是 {:.3f}。", steps,
          results.numbers.at("loss_scaled"), results.numbers.at("loss_unscaled"),
          std::log(static_cast<double>(kRelationClasses))));
}

Results measure(const Arguments& a, const Progress& progress) {
  Results results;
  Table table{
      say("q and k are standard normal; softmax shares among {} keys (most entropy: {:.2f})",
          "q、k 服从标准正态分布；softmax 在 {} 个键之间分配（最大熵 {:.2f}）", kKeys,
          std::log(static_cast<double>(kKeys))),
      {same("d"), say("std. deviation of q·k", "q·k 的标准差"), same("√d"), say("largest |q·k|", "最大 |q·k|"),
       say("beyond ±1 after ÷√d", "÷√d 后超出 ±1"), say("entropy raw", "熵（不缩放）"), say("entropy ÷√d", "熵（÷√d）"),
       say("gradient raw", "梯度（不缩放）"), say("gradient ÷√d", "梯度（÷√d）")},
      {}};
  CurvesFigure figure{"entropy",
                      say("Entropy of the weights against the head dimension", "权重的熵随头维度的变化"),
                      say("d", "d（头维度）"),
                      say("entropy, nats", "熵（nat）"),
                      {},
                      true,
                      false};
  figure.curves = {{say("raw", "不缩放"), {}}, {same("÷√d"), {}}};
  double worst_deviation = 0, worst_scaled = 0, low = 1e9, high = 0;
  Row first, last;
  for (std::int64_t d = 16; d <= 1024; d *= 2) {
    const Row row = row_for(d, a["samples"], 100 + static_cast<std::uint64_t>(d));
    const double root = std::sqrt(static_cast<double>(d));
    table.rows.push_back({same("{}", d), number_text(row.deviation, 2), number_text(root, 2),
                          number_text(row.farthest, 1), same("{:.0f} %", 100 * row.outside),
                          number_text(row.entropy, 2), number_text(row.scaled_entropy, 2), number_text(row.gradient, 3),
                          number_text(row.scaled_gradient, 3)});
    figure.curves[0].points.emplace_back(d, row.entropy);
    figure.curves[1].points.emplace_back(d, row.scaled_entropy);
    worst_deviation = largest_of({worst_deviation, std::abs(row.deviation / root - 1)});
    worst_scaled = largest_of({worst_scaled, std::abs(row.deviation * row.deviation / static_cast<double>(d) - 1)});
    low = smallest_of({low, row.scaled_entropy});
    high = largest_of({high, row.scaled_entropy});
    if (d == 16) first = row;
    if (d == 512) {
      results.put("deviation_512", row.deviation);
      results.put("farthest_512", row.farthest);
      results.put("outside_512", row.outside);
    }
    last = row;
    progress(0.3 * std::log2(static_cast<double>(d) / 8) / 7);
  }
  results.add(std::move(table));
  results.add(std::move(figure));
  results.put("worst_deviation", worst_deviation);
  results.put("worst_scaled_variance", worst_scaled);
  results.put("scaled_entropy_spread", high - low);
  results.put("entropy_16", first.entropy);
  results.put("entropy_1024", last.entropy);
  results.put("gradient_1024", last.gradient);
  results.put("gradient_scaled_1024", last.scaled_gradient);
  train_both(a, progress, results);
  return results;
}

std::vector<Conclusion> judge(const Numbers& n) {
  std::vector<Conclusion> list;
  list.push_back(conclude(
      "deviation_is_root_d", n.at("worst_deviation") < 0.1,
      say("the standard deviation of q·k is √d for every d tried (off by {:.1f} % at most); at d = 512 it is {:.1f}.",
          "对试过的每个 d，q·k 的标准差都是 √d（最多差 {:.1f} %）；d = 512 时是 {:.1f}。",
          100 * n.at("worst_deviation"), n.at("deviation_512")),
      say("the deviation of q·k strays from √d by {:.0f} %.", "q·k 的标准差与 √d 相差 {:.0f} %。",
          100 * n.at("worst_deviation"))));
  list.push_back(conclude(
      "deviation_is_no_range", n.at("farthest_512") > 2 * n.at("deviation_512"),
      say("√512 ≈ 22.6 is a deviation, not a range: scores of d = 512 went as far as ±{:.0f}, {:.1f} deviations.",
          "√512 ≈ 22.6 是标准差，不是取值范围：d = 512 时得分最远到了 ±{:.0f}，是标准差的 {:.1f} 倍。",
          n.at("farthest_512"), n.at("farthest_512") / n.at("deviation_512")),
      say("no score of d = 512 went beyond ±{:.1f}, within two deviations.",
          "d = 512 的得分都没有超过 ±{:.1f}，在两个标准差以内。", n.at("farthest_512"))));
  list.push_back(conclude(
      "scaled_variance_is_one", n.at("worst_scaled_variance") < 0.2 && n.at("outside_512") > 0.2,
      say("after ÷√d the variance is 1 (off by {:.0f} % at most), which does not mean the range [−1, 1]: {:.0f} % of "
          "the scores lie outside it.",
          "除以 √d 之后方差为 1（最多差 {:.0f} %），但这不等于范围是 [−1, 1]：有 {:.0f} % 的得分在这个范围之外。",
          100 * n.at("worst_scaled_variance"), 100 * n.at("outside_512")),
      say("after ÷√d the variance strays from 1 by {:.0f} %, and {:.0f} % of the scores lie beyond ±1.",
          "除以 √d 之后方差与 1 相差 {:.0f} %，超出 ±1 的得分占 {:.0f} %。", 100 * n.at("worst_scaled_variance"),
          100 * n.at("outside_512"))));
  list.push_back(conclude(
      "raw_softmax_saturates", n.at("entropy_1024") < 0.5 * n.at("entropy_16") && n.at("scaled_entropy_spread") < 0.3,
      say("without scaling the entropy falls from {:.2f} at d = 16 to {:.2f} at d = 1024: nearly one-hot; with it, it "
          "stays within {:.2f}.",
          "不缩放时，熵从 d = 16 的 {:.2f} 降到 d = 1024 的 {:.2f}，几乎成了独热；缩放后变化不超过 {:.2f}。",
          n.at("entropy_16"), n.at("entropy_1024"), n.at("scaled_entropy_spread")),
      say("the entropy went from {:.2f} to {:.2f} without scaling and moved by {:.2f} with it: no clear saturation.",
          "不缩放时熵从 {:.2f} 变到 {:.2f}，缩放后变化 {:.2f}：没有明显的饱和。", n.at("entropy_16"),
          n.at("entropy_1024"), n.at("scaled_entropy_spread"))));
  list.push_back(
      conclude("raw_gradient_vanishes", n.at("gradient_1024") < 0.5 * n.at("gradient_scaled_1024"),
               say("at d = 1024 the raw softmax lets through {:.0f} % of the gradient that the scaled one does.",
                   "d = 1024 时，不缩放的 softmax 能传回的梯度只有缩放后的 {:.0f} %。",
                   100 * n.at("gradient_1024") / n.at("gradient_scaled_1024")),
               say("at d = 1024 the gradients are {:.2f} raw and {:.2f} scaled: no vanishing.",
                   "d = 1024 时梯度分别是 {:.2f}（不缩放）和 {:.2f}（缩放）：没有消失。", n.at("gradient_1024"),
                   n.at("gradient_scaled_1024"))));
  list.push_back(conclude(
      "training_likes_scaling", n.at("loss_scaled") < n.at("loss_unscaled"),
      say("trained alike, the scaled model ends at a loss of {:.3f}, the other at {:.3f}.",
          "同样训练，缩放的模型损失降到 {:.3f}，不缩放的是 {:.3f}。", n.at("loss_scaled"), n.at("loss_unscaled")),
      say("trained alike, the scaled model ends at {:.3f}, the other at {:.3f}: scaling did not help on this run.",
          "同样训练，缩放的模型损失是 {:.3f}，不缩放的是 {:.3f}：这次缩放没有帮上忙。", n.at("loss_scaled"),
          n.at("loss_unscaled"))));
  return list;
}

}  // namespace

Lab scale_lab() {
  return {
      .name = "scale",
      .title = say("Why divide by √d?", "为什么要除以 √d？"),
      .question = say("How large do dot products get as heads grow, and what does that do to softmax and to training?",
                      "头的维度变大时，点积会变多大？这对 softmax 和训练有什么影响？"),
      .lesson = say("\"Without scaling the scores at d = 512 range over ±22.6; after it they lie in [−1, 1].\" Both "
                    "halves mistake a standard deviation for a range.",
                    "“d = 512 时不缩放的得分范围是 ±22.6，缩放后落在 [−1, 1]。”这两句都把标准差当成了取值范围。"),
      .guess = say("How does the size of q·k grow with d: like d, like √d, not at all? How many of the scaled scores "
                   "lie beyond ±1?",
                   "q·k 的大小随 d 怎么增长：正比于 d、正比于 √d，还是不变？缩放之后有多少得分超出 ±1？"),
      .why = {say("q·k is a sum of d products, each of mean 0 and variance 1 when q and k are; variances add up to "
                  "d, so the deviation is √d. Softmax looks at differences of scores: differences of 30 make one "
                  "weight 1 and the others 0, and where a weight is 0 or 1 its derivative p(1−p) is 0. Dividing by "
                  "√d, not by d, brings the variance back to 1 for every d. (Real q and k are not independent of "
                  "each other: training moves scores away from this starting point.)",
                  "q·k 是 d 个乘积之和；q、k 均值为 0、方差为 1 时，每个乘积也是如此，方差相加得 d，标准差就是 √d。"
                  "softmax 看的是得分之差：差到 30，就有一个权重是 1、其余是 0，而权重为 0 或 1 时导数 p(1−p) 为 0。"
                  "除以 √d（而不是 d）使方差对任何 d 都回到 1。（真实模型里的 q 和 k 并不独立，训练会让得分离开这个"
                  "起点。）")},
      .seconds = 15,
      .minutes = 10,
      .parameters = {{"samples", 4096, 64, 65536, 1024, say("dot products for each d", "每个 d 取多少个点积")},
                     {"dim", 256, 8, 512, 32,
                      say("head dimension of the trained model, even", "训练模型的头维度，偶数")},
                     {"steps", 200, 1, 2000, 60, say("training steps", "训练步数")}},
      .measure = measure,
      .judge = judge};
}

}  // namespace attend::labs
