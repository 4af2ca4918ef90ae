// Lab: W_V in full against W_V factored through a few dimensions: parameters, rank, what is lost.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "attend/error.hpp"
#include "attend/multi_head_attention.hpp"
#include "labs/registry.hpp"
#include "labs/tools.hpp"

namespace attend::labs {
namespace {

// Singular values, falling, by one-sided Jacobi rotations of the columns.
std::vector<double> singular_values(Rows a) {
  const std::size_t m = a.size(), n = a.front().size();
  for (int sweep = 0; sweep < 30; ++sweep) {
    double off = 0;
    for (std::size_t p = 0; p < n; ++p)
      for (std::size_t q = p + 1; q < n; ++q) {
        double alpha = 0, beta = 0, gamma = 0;
        for (std::size_t i = 0; i < m; ++i) {
          alpha += a[i][p] * a[i][p];
          beta += a[i][q] * a[i][q];
          gamma += a[i][p] * a[i][q];
        }
        if (gamma == 0 || std::abs(gamma) <= 1e-15 * std::sqrt(alpha * beta)) continue;
        off = std::max(off, std::abs(gamma) / std::sqrt(alpha * beta));
        const double zeta = (beta - alpha) / (2 * gamma);
        const double t = (zeta >= 0 ? 1 : -1) / (std::abs(zeta) + std::sqrt(1 + zeta * zeta));
        const double c = 1 / std::sqrt(1 + t * t), s = c * t;
        for (std::size_t i = 0; i < m; ++i) {
          const double x = a[i][p], y = a[i][q];
          a[i][p] = c * x - s * y;
          a[i][q] = s * x + c * y;
        }
      }
    if (off < 1e-12) break;
  }
  std::vector<double> values;
  for (std::size_t p = 0; p < n; ++p) {
    double sum = 0;
    for (std::size_t i = 0; i < m; ++i) sum += a[i][p] * a[i][p];
    values.push_back(std::sqrt(sum));
  }
  std::sort(values.rbegin(), values.rend());
  return values;
}

std::int64_t rank_of(const std::vector<double>& values) {
  return std::count_if(values.begin(), values.end(), [&](double v) { return v > 1e-5 * values.front(); });
}

// Of a matrix with these singular values: the part of its size that the best matrix of that rank lacks.
double lost(const std::vector<double>& values, std::int64_t rank) {
  double all = 0, tail = 0;
  for (std::size_t n = 0; n < values.size(); ++n) {
    all += values[n] * values[n];
    if (n >= static_cast<std::size_t>(rank)) tail += values[n] * values[n];
  }
  return std::sqrt(tail / all);
}

Rows product_of(const Tensor& up, const Tensor& down) {
  const Rows u = rows_of(up), d = rows_of(down);
  Rows c(u.size(), std::vector<double>(d.front().size()));
  for (std::size_t i = 0; i < u.size(); ++i)
    for (std::size_t k = 0; k < d.size(); ++k)
      for (std::size_t j = 0; j < d.front().size(); ++j) c[i][j] += u[i][k] * d[k][j];
  return c;
}

Results measure(const Arguments& a, const Progress& progress) {
  Results results;
  const std::int64_t W = a["width"], R = a["rank"];
  if (R > W) throw Refused(say("rank is {}, expected at most the width, {}", "rank 是 {}，最多为 width（{}）", R, W));
  MultiHeadAttention full({.width = W, .heads = 1}), factored({.width = W, .heads = 1, .value_rank = R});
  full.initialise(1);
  factored.initialise(1);
  // The product of the two factors as one W_V: the layer is to compute the same.
  const Rows product = product_of(factored.parameters().wv, factored.parameters().wv_down);
  MultiHeadAttention merged({.width = W, .heads = 1});
  for (auto part :
       {&MultiHeadAttentionParameters::wq, &MultiHeadAttentionParameters::wk, &MultiHeadAttentionParameters::wo})
    std::memcpy((merged.parameters().*part).data<float>(), (factored.parameters().*part).data<float>(),
                static_cast<std::size_t>((merged.parameters().*part).bytes()));
  for (std::int64_t i = 0; i < W; ++i)
    for (std::int64_t j = 0; j < W; ++j)
      merged.parameters().wv.data<float>()[i * W + j] =
          static_cast<float>(product[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)]);
  const Tensor x = random_tensor({1, 1, 10, W}, 2);
  const Tensor y = factored.forward(x), z = merged.forward(x);
  results.put("merged_difference", largest_difference(y, z) / largest(y));
  progress(0.2);
  const std::vector<double> of_full = singular_values(rows_of(full.parameters().wv));
  progress(0.6);
  const std::vector<double> of_product = singular_values(product);
  results.put("width", W);
  results.put("rank", R);
  results.put("full_parameters", full.parameters().wv.size());
  results.put("factored_parameters", factored.parameters().wv.size() + factored.parameters().wv_down.size());
  results.put("full_rank", rank_of(of_full));
  results.put("factored_rank", rank_of(of_product));
  results.put("lost_of_random", lost(of_full, R));
  results.put("lost_of_low_rank", lost(of_product, R));
  results.add(
      Table{say("W_V of one head over {} features", "一个头的 W_V，{} 个特征", W),
            {say("", "项目"), say("in full", "完整"), say("V↓ then V↑, rank {}", "先 V↓ 再 V↑，秩 {}", R)},
            {{say("parameters", "参数"), same("{}", full.parameters().wv.size()),
              same("{}", factored.parameters().wv.size() + factored.parameters().wv_down.size())},
             {say("rank, measured", "秩（实测）"), same("{}", rank_of(of_full)), same("{}", rank_of(of_product))}}});
  CurvesFigure figure{
      "lost",
      say("How much of W_V the best approximation of each rank lacks", "各种秩的最佳近似丢掉 W_V 的多少"),
      say("rank", "秩"),
      say("share of its norm lost", "丢失的范数比例"),
      {},
      false,
      false};
  figure.curves = {{say("a random W_V", "随机的 W_V"), {}}, {say("one that has rank {}", "秩为 {} 的 W_V", R), {}}};
  for (std::int64_t r = 1; r <= W; r += std::max<std::int64_t>(1, W / 16)) {
    figure.curves[0].points.emplace_back(r, lost(of_full, r));
    figure.curves[1].points.emplace_back(r, lost(of_product, r));
  }
  results.add(std::move(figure));
  // GPT-3: 96 layers of 96 heads, 12,288 features, heads of 128.
  const double width = 12288, head = 128, layers = 96, heads = 96;
  results.put("gpt3_full", width * width * heads * layers);
  results.put("gpt3_down", width * head * heads * layers);
  return results;
}

std::vector<Conclusion> judge(const Numbers& n) {
  std::vector<Conclusion> list;
  const double width = n.at("width"), rank = n.at("rank");
  list.push_back(
      conclude("parameters_by_formula",
               n.at("full_parameters") == width * width && n.at("factored_parameters") == 2 * width * rank,
               say("in full it has width² = {:.0f} parameters, factored 2·width·rank = {:.0f}: {:.0f} % of them.",
                   "完整的有 width² = {:.0f} 个参数，分解后有 2·width·rank = {:.0f} 个，是前者的 {:.0f} %。",
                   n.at("full_parameters"), n.at("factored_parameters"),
                   100 * n.at("factored_parameters") / n.at("full_parameters")),
               say("it has {:.0f} parameters in full and {:.0f} factored, not width² and 2·width·rank.",
                   "完整的有 {:.0f} 个参数，分解后有 {:.0f} 个，与公式不符。", n.at("full_parameters"),
                   n.at("factored_parameters"))));
  list.push_back(conclude(
      "rank_is_bounded", n.at("factored_rank") <= rank && n.at("full_rank") == width,
      say("the rank of the product is {:.0f}, never more than the {:.0f} dimensions between; the full one has {:.0f}.",
          "乘积的秩是 {:.0f}，不会超过中间的 {:.0f} 维；完整的秩是 {:.0f}。", n.at("factored_rank"), rank,
          n.at("full_rank")),
      say("the ranks are {:.0f} factored and {:.0f} in full.", "秩分别是 {:.0f}（分解）和 {:.0f}（完整）。",
          n.at("factored_rank"), n.at("full_rank"))));
  list.push_back(
      conclude("same_layer", n.at("merged_difference") < 1e-4,
               say("a layer with V↓ and V↑ computes what a layer with their product as W_V does (difference {:.0e}).",
                   "带 V↓、V↑ 的层，与直接用它们的乘积作 W_V 的层，结果相同（差 {:.0e}）。", n.at("merged_difference")),
               say("the factored layer and the one with the product differ by {:.2g}.",
                   "分解的层与用乘积的层相差 {:.2g}。", n.at("merged_difference"))));
  const bool all = rank >= width;
  list.push_back(conclude(
      "what_is_lost", n.at("lost_of_low_rank") < 1e-4 && (all || n.at("lost_of_random") > 0.01),
      say("of a random W_V the best rank-{:.0f} matrix lacks {:.0f} % (of its norm); of one that has that rank, "
          "nothing. What is lost depends on what the head would have used.",
          "对随机的 W_V，秩 {:.0f} 的最佳近似丢掉 {:.0f} %（按范数计）；如果它本来就是这个秩，就什么也不丢。"
          "丢多少取决于这个头本来会用到多少。",
          rank, 100 * n.at("lost_of_random")),
      say("a random W_V lost {:.2g}, one of that rank {:.2g}.", "随机 W_V 丢失 {:.2g}，同秩的丢失 {:.2g}。",
          n.at("lost_of_random"), n.at("lost_of_low_rank"))));
  list.push_back(conclude("gpt3_needs_it", n.at("gpt3_full") > 1e12 && n.at("gpt3_down") == 14495514624.0,
                          say("GPT-3 with a full W_V in every head would need {:.2e} parameters for values alone; V↓ "
                              "takes {:.0f} and V↑ as "
                              "many (in code V↑ of all heads side by side is W_O).",
                              "如果 GPT-3 每个头都用完整的 W_V，光是值就要 {:.2e} 个参数；V↓ 只要 {:.0f} 个，V↑ "
                              "也一样多（代码里，所有头的 V↑ "
                              "并排放在一起就是 W_O）。",
                              n.at("gpt3_full"), n.at("gpt3_down")),
                          say("GPT-3's counts came out as {:.3e} and {:.0f}.", "GPT-3 的计数结果是 {:.3e} 和 {:.0f}。",
                              n.at("gpt3_full"), n.at("gpt3_down"))));
  return list;
}

}  // namespace

Lab values_lab() {
  return {
      .name = "values",
      .title = say("Values through a narrow gate", "值矩阵：V↓ 与 V↑"),
      .question = say("Why is the value matrix of a head made of two narrow ones, and what does that lose?",
                      "为什么一个头的值矩阵要拆成两个窄矩阵的乘积？这样会丢掉什么？"),
      .lesson =
          say("\"The value map is factored into value-down and value-up, each as large as W_Q and W_K.\" True, and "
              "the code calls V↓ W_V and V↑ W_O.",
              "“值映射被分解成 V↓ 和 V↑，各与 W_Q、W_K 一样大。”这是对的，而代码里 V↓ 叫 W_V，V↑ 叫 W_O。"),
      .guess = say("How many parameters does the default pair save? What is the rank of the product? Is something "
                   "always lost?",
                   "默认的这一对能省多少参数？乘积的秩是多少？是不是总会丢掉东西？"),
      .why = {say("A product of a [width, rank] and a [rank, width] matrix can reach at most rank dimensions: what a "
                  "head moves from one token to another then lies in a subspace. The best approximation of rank r "
                  "keeps the r largest singular values (Eckart and Young); a random matrix has no small ones, a "
                  "learnt one often has.",
                  "[width, rank] 乘 [rank, width] 的矩阵最多只能到达 rank 个维度：一个头从一个词元搬到另一个词元的内容"
                  "就落在一个子空间里。秩为 r 的最佳近似保留最大的 r 个奇异值（Eckart–Young 定理）；随机矩阵没有小的"
                  "奇异值，学出来的矩阵往往有。")},
      .seconds = 2,
      .minutes = 7,
      .parameters = {{"width", 96, 2, 192, 24, say("features", "特征数")},
                     {"rank", 12, 1, 192, 6, say("dimensions between V↓ and V↑", "V↓ 与 V↑ 之间的维数")}},
      .measure = measure,
      .judge = judge};
}

}  // namespace attend::labs
