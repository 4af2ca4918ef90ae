// Lab: heads: split, concatenate, W_O; many small heads against one large one; who does what, and who is needed.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "attend/error.hpp"
#include "attend/linear.hpp"
#include "attend/multi_head_attention.hpp"
#include "labs/registry.hpp"
#include "labs/relations.hpp"
#include "labs/tools.hpp"

namespace attend::labs {
namespace {

constexpr std::int64_t kLength = 24;

// The share of each head's weight that lies `places` back, over the queries that have that many before them.
std::vector<double> scores_of_heads(const Tensor& weights, std::int64_t places) {
  const Shape& s = weights.shape();
  std::vector<double> scores(static_cast<std::size_t>(s[1]));
  for (std::int64_t b = 0; b < s[0]; ++b)
    for (std::int64_t h = 0; h < s[1]; ++h)
      for (std::int64_t i = kFar; i < s[2]; ++i)
        scores[static_cast<std::size_t>(h)] +=
            static_cast<double>(weights.data<float>()[((b * s[1] + h) * s[2] + i) * s[3] + i - places]) /
            static_cast<double>(s[0] * (s[2] - kFar));
  return scores;
}

double mean_distance(const Tensor& weights) {  // over rows, of how far back a head looks
  const Shape& s = weights.shape();
  double sum = 0;
  for (std::int64_t r = 0; r < s[0] * s[1] * s[2]; ++r)
    for (std::int64_t j = 0; j <= r % s[2]; ++j)
      sum += static_cast<double>(weights.data<float>()[r * s[3] + j]) * static_cast<double>(r % s[2] - j);
  return sum / static_cast<double>(s[0] * s[1] * s[2]);
}

void split_part(const Arguments& a, Results& results) {
  const std::int64_t W = a["width"], H = a["heads"], D = W / H, L = 5;
  if (W % (2 * H) != 0)
    throw Refused(say("width is {}, expected a multiple of twice the heads, {}",
                      "width 是 {}，应为 heads 两倍（{}）的倍数", W, 2 * H));
  MultiHeadAttention layer({.width = W, .heads = H});
  layer.initialise(3);
  const Tensor x = random_tensor({1, 1, L, W}, 4);
  MultiHeadAttentionSaved saved;
  const Tensor y = layer.forward(x, {.mask = causal()}, {.saved = &saved});
  // W_O of the concatenation is the sum over heads of W_O's columns for that head.
  Tensor sum(DType::f32, y.shape());
  for (std::int64_t h = 0; h < H; ++h) {
    Tensor one(DType::f32, {1, 1, L, W});
    linear(slice(saved.out, 3, h * D, D), slice(layer.parameters().wo, 3, h * D, D), {}, one);
    for (std::int64_t n = 0; n < sum.size(); ++n) sum.data<float>()[n] += one.data<float>()[n];
  }
  results.put("concat_difference", largest_difference(sum, y));
  results.add(Table{say("Shapes on the way, {} heads of {}", "各步的形状，{} 个头，每头 {} 维", H, D),
                    {say("step", "步骤"), say("shape", "形状")},
                    {{same("x"), shape_text(x.shape())},
                     {say("Q, K, V, split into heads", "Q、K、V，拆成多头"), same("[1, {}, {}, {}]", H, L, D)},
                     {say("attention of every head", "每个头的注意力输出"), same("[1, {}, {}, {}]", H, L, D)},
                     {say("concatenated, times W_O", "拼接后乘 W_O"), shape_text(y.shape())}}});
  const MultiHeadAttention many({.width = 512, .heads = 8}), one({.width = 512, .heads = 1});
  results.put("parameters_8x64", many.parameter_count());
  results.put("parameters_1x512", one.parameter_count());
}

void random_part(Results& results) {
  const std::int64_t L = 64;
  MultiHeadAttention layer({.width = 64, .heads = 8});
  layer.initialise(5);
  Tensor weights, equal(DType::f32, {1, 1, L, L});
  (void)layer.forward(random_tensor({4, 1, L, 64}, 6), {.mask = causal()}, {.weights = &weights});
  for (std::int64_t i = 0; i < L; ++i)
    for (std::int64_t j = 0; j <= i; ++j) equal.data<float>()[i * L + j] = 1 / static_cast<float>(i + 1);
  results.put("random_distance", mean_distance(weights));
  results.put("uniform_distance", mean_distance(equal));
  results.add(
      say("Heads of random weights over {} tokens look {:.2f} places back on average; a head that looks everywhere "
          "alike, {:.2f}.",
          "随机权重的头在 {} 个词元上平均往回看 {:.2f} 个位置；对所有位置一视同仁的头是 {:.2f}。", L,
          results.numbers.at("random_distance"), results.numbers.at("uniform_distance")));
}

TinyModel trained(const Arguments& a, std::int64_t heads, const Progress& progress, double from, Curve& curve) {
  TinyModel model({.vocabulary = kRelationClasses, .width = a["width"], .layers = 1, .heads = heads});
  const std::int64_t steps = a["steps"];
  double mean = 0;
  for (std::int64_t step = 1; step <= steps; ++step) {
    const double loss = model.train(relation_batch(16, kLength, static_cast<std::uint64_t>(step)), 5e-3);
    mean = step == 1 ? loss : 0.9 * mean + 0.1 * loss;
    if (step % std::max<std::int64_t>(1, steps / 30) == 0) curve.points.emplace_back(step, mean);
    progress(from + 0.45 * static_cast<double>(step) / static_cast<double>(steps));
  }
  return model;
}

void training_part(const Arguments& a, const Progress& progress, Results& results) {
  const std::int64_t H = a["heads"];
  CurvesFigure figure{"training",
                      say("{} heads against one, the same parameters", "{} 个头与 1 个头，参数一样多", H),
                      say("step", "训练步"),
                      say("loss", "损失"),
                      {},
                      false,
                      false};
  figure.curves = {{say("{} heads of {}", "{} 个头，每头 {} 维", H, a["width"] / H), {}},
                   {say("1 head of {}", "1 个头，{} 维", a["width"]), {}}};
  const TinyModel many = trained(a, H, progress, 0.05, figure.curves[0]);
  const TinyModel one = trained(a, 1, progress, 0.5, figure.curves[1]);
  const TinyBatch test = relation_batch(64, kLength, 999983);
  results.add(std::move(figure));
  results.put("loss_many", many.loss(test));
  results.put("loss_one", one.loss(test));
  results.put("trained_parameters_many", many.parameter_count());
  results.put("trained_parameters_one", one.parameter_count());

  const Tensor weights = many.weights(test, 0);
  const auto near = scores_of_heads(weights, kNear), far = scores_of_heads(weights, kFar);
  const double whole = many.loss(test);
  Table table{
      say("The task asks for the token {} back and the token {} back. Each head of the trained model: its weight "
          "there, and the loss when it is knocked out (now {:.3f})",
          "任务要求说出往回第 {} 个和第 {} 个词元。训练后每个头：落在这两处的权重，以及敲除它以后的损失（现在是 "
          "{:.3f}）",
          kNear, kFar, whole),
      {say("head", "头"), say("{} back", "往回 {}", kNear), say("{} back", "往回 {}", kFar), say("does", "分工"),
       say("loss without it", "敲除后的损失")},
      {}};
  double most_harm = 0, least_harm = 1e9, best_near = 0, best_far = 0;
  for (std::int64_t h = 0; h < H; ++h) {
    TinyModel without = many.clone();
    without.knock_out(0, h);
    const double loss = without.loss(test), n = near[static_cast<std::size_t>(h)], f = far[static_cast<std::size_t>(h)];
    most_harm = largest_of({most_harm, loss - whole});
    least_harm = smallest_of({least_harm, loss - whole});
    best_near = largest_of({best_near, n});
    best_far = largest_of({best_far, f});
    table.rows.push_back({same("{}", h), number_text(n, 2), number_text(f, 2),
                          n > 0.4   ? say("{} back", "往回 {}", kNear)
                          : f > 0.4 ? say("{} back", "往回 {}", kFar)
                                    : say("mixed", "混合"),
                          number_text(loss, 3)});
  }
  results.add(std::move(table));
  results.put("best_near", best_near);
  results.put("best_far", best_far);
  results.put("most_harm", most_harm);
  results.put("least_harm", least_harm);
}

Results measure(const Arguments& a, const Progress& progress) {
  Results results;
  split_part(a, results);
  random_part(results);
  training_part(a, progress, results);
  return results;
}

std::vector<Conclusion> judge(const Numbers& n) {
  std::vector<Conclusion> list;
  list.push_back(conclude(
      "concat_is_a_sum", n.at("concat_difference") < 1e-4,
      say("concatenating and multiplying by W_O equals the sum over heads, each times its own slice of W_O (difference "
          "{:.0e}): each head adds its part to the output.",
          "“拼接后乘 W_O”等于每个头乘自己那一片 W_O 再相加（差 {:.0e}）：每个头各自往输出里加上自己的一份。",
          n.at("concat_difference")),
      say("concatenation and the sum over heads differ by {:.2g}.", "拼接与逐头相加相差 {:.2g}。",
          n.at("concat_difference"))));
  list.push_back(
      conclude("same_parameters",
               n.at("parameters_8x64") == n.at("parameters_1x512") && n.at("parameters_8x64") == 4.0 * 512 * 512,
               say("8 heads of 64 have exactly the parameters of 1 head of 512: {:.0f} = 4·512². More heads cost none.",
                   "8 个 64 维的头与 1 个 512 维的头参数完全一样多：{:.0f} = 4·512²。多几个头不多花参数。",
                   n.at("parameters_8x64")),
               say("8×64 has {:.0f} parameters, 1×512 has {:.0f}.", "8×64 有 {:.0f} 个参数，1×512 有 {:.0f} 个。",
                   n.at("parameters_8x64"), n.at("parameters_1x512"))));
  list.push_back(conclude(
      "random_heads_see_all", std::abs(n.at("random_distance") / n.at("uniform_distance") - 1) < 0.05,
      say("heads of random weights do not look near the diagonal: {:.2f} places back against {:.2f} for a head that "
          "looks "
          "everywhere alike. A pattern has to be learnt.",
          "随机权重的头并不会“盯着对角线附近”：平均往回 {:.2f} 个位置，与一视同仁的 {:.2f} "
          "几乎一样。关注模式是学出来的。",
          n.at("random_distance"), n.at("uniform_distance")),
      say("heads of random weights look {:.2f} places back, a uniform one {:.2f}: they prefer some distance here.",
          "随机权重的头平均往回看 {:.2f}，均匀的是 {:.2f}：这次它们偏好某个距离。", n.at("random_distance"),
          n.at("uniform_distance"))));
  list.push_back(conclude(
      "many_heads_win", n.at("loss_many") < n.at("loss_one"),
      say("trained alike on two relations at once, many heads end at {:.3f}, one large head at {:.3f}.",
          "同时学两种关系、同样训练，多头的损失是 {:.3f}，单头是 {:.3f}。", n.at("loss_many"), n.at("loss_one")),
      say("trained alike, many heads end at {:.3f}, one large head at {:.3f}: many did not win on this run.",
          "同样训练，多头的损失是 {:.3f}，单头是 {:.3f}：这次多头没有赢。", n.at("loss_many"), n.at("loss_one"))));
  list.push_back(conclude(
      "heads_specialise", n.at("best_near") > 0.4 && n.at("best_far") > 0.4,
      say("heads took on known relations: the best for one place back puts {:.0f} % of its weight there, the best for "
          "three places {:.0f} %.",
          "各个头分担了已知的关系：最擅长“往回 1”的头把 {:.0f} % 的权重放在那里，最擅长“往回 3”的放了 {:.0f} %。",
          100 * n.at("best_near"), 100 * n.at("best_far")),
      say("no head settled on both relations: the best have {:.0f} % one place back and {:.0f} % three back.",
          "没有头专门负责这两种关系：最好的分别是 {:.0f} %（往回 1）和 {:.0f} %（往回 3）。", 100 * n.at("best_near"),
          100 * n.at("best_far"))));
  list.push_back(conclude(
      "heads_are_not_alike", n.at("most_harm") > 3 * largest_of({0.0, n.at("least_harm")}) && n.at("most_harm") > 0.05,
      say("knocking one head out costs between {:.3f} and {:.3f} of loss: some carry the work, others far less of it.",
          "敲除一个头，损失上升 {:.3f} 到 {:.3f} 不等：有的头承担主要工作，有的贡献小得多。", n.at("least_harm"),
          n.at("most_harm")),
      say("knocking one head out costs between {:.3f} and {:.3f}: they matter about alike on this run.",
          "敲除一个头，损失上升 {:.3f} 到 {:.3f}：这次各个头差不多同样重要。", n.at("least_harm"), n.at("most_harm"))));
  return list;
}

}  // namespace

Lab heads_lab() {
  return {
      .name = "heads",
      .title = say("Many heads or one?", "多个头还是一个头？"),
      .question = say("What do eight heads of 64 do that one head of 512 cannot, if both have the same parameters?",
                      "8 个 64 维的头和 1 个 512 维的头参数一样多，前者能做到什么后者做不到的？"),
      .lesson = say("\"Heads look near the diagonal\", printed under a picture of random weights; \"more heads, more "
                    "parameters\". Neither is so.",
                    "在一张随机权重的图下面写着“注意力头关注对角线附近”；还有“头越多，参数越多”。两种说法都不对。"),
      .guess = say("Do random heads prefer near tokens? How many parameters do 8×64 and 1×512 have? What does knocking "
                   "out one head of eight cost?",
                   "随机权重的头会偏爱附近的词元吗？8×64 和 1×512 各有多少参数？8 个头敲除 1 个，损失会上升多少？"),
      .why = {say("One head makes one distribution for each query: looking at two places, it has to blend the two "
                  "values into one. Two heads keep them apart, and W_O puts them next to each other. The split is a "
                  "matter of how the rows of W_Q, W_K and W_V are read, so it costs no parameters. (One head can "
                  "still learn two places, with unequal weights and features to tell them apart: it is harder, not "
                  "impossible.)",
                  "一个头对每个查询只产生一个分布：要看两个地方，就只能把两个值混成一个。两个头则能分开保存，再由 W_O "
                  "放到一起。拆头只是换一种方式读 W_Q、W_K、W_V 的行，所以不增加参数。（单个头也可以用不相等的权重和"
                  "可区分的特征学会看两处：更难，但并非不可能。）")},
      .seconds = 20,
      .minutes = 12,
      .parameters = {{"width", 64, 16, 256, 32,
                      say("features, a multiple of twice the heads", "特征数，须是头数两倍的倍数")},
                     {"heads", 8, 2, 16, 4, say("heads", "头数")},
                     {"steps", 400, 1, 4000, 60, say("training steps", "训练步数")}},
      .measure = measure,
      .judge = judge};
}

}  // namespace attend::labs
