// Lab: softmax in floating point: overflow, what to fill masks with, rows that see nothing, and the online form.
#include <algorithm>
#include <cmath>
#include <limits>

#include "attend/attention.hpp"
#include "attend/softmax.hpp"
#include "labs/registry.hpp"
#include "labs/tools.hpp"

namespace attend::labs {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// As the formula has it, in f32, without the maximum.
std::vector<float> naive(const std::vector<float>& x) {
  std::vector<float> y;
  float sum = 0;
  for (const float v : x) {
    y.push_back(std::exp(v));
    sum += y.back();
  }
  for (float& v : y) v /= sum;
  return y;
}

std::vector<float> with_maximum(const std::vector<float>& x) {
  const float most = *std::max_element(x.begin(), x.end());
  std::vector<float> shifted;
  for (const float v : x) shifted.push_back(v - most);
  return naive(shifted);
}

std::vector<float> engine(std::vector<float> x) {
  const Shape shape{1, 1, 1, static_cast<std::int64_t>(x.size())};
  const MutableView view = view_of(x.data(), shape);
  softmax(view, view);
  return x;
}

bool has_nan(const std::vector<float>& x) {
  return std::any_of(x.begin(), x.end(), [](float v) { return std::isnan(v); });
}

Text row_text(const std::vector<float>& x) {
  std::string text;
  for (const float v : x)
    text += fmt::format("{}{}", text.empty() ? "" : "  ", std::isnan(v) ? "NaN" : fmt::format("{:.4g}", v));
  return {text, text};
}

// The largest score whose exponential is finite in f32, found by asking.
float largest_exponent() {
  float low = 0, high = 1000;
  for (int n = 0; n < 60; ++n) {
    const float middle = (low + high) / 2;
    (std::isinf(std::exp(middle)) ? high : low) = middle;
  }
  return low;
}

void online(const Arguments& a, Results& results) {
  const std::int64_t L = a["length"], block = a["block"];
  const Tensor s = random_tensor({1, 1, 1, L}, 5, 3), v = random_tensor({1, 1, 1, L}, 6);
  Table table{
      say("Online softmax over {} scores, {} at a time, for one value column. m: largest score so far, l: sum of "
          "exp(s − m), o: output so far.",
          "对 {} 个得分做在线 softmax，每次 {} 个，只看一列值。m：目前最大的得分；l：exp(s − m) 之和；o：目前的"
          "输出。",
          L, block),
      {say("block", "块"), same("m"), say("old sums ×", "旧的和 ×"), same("l"), same("o / l")},
      {}};
  double m = -std::numeric_limits<double>::infinity(), l = 0, o = 0, rescales = 0;
  for (std::int64_t first = 0; first < L; first += block) {
    const std::int64_t end = std::min(L, first + block);
    double most = m;
    for (std::int64_t j = first; j < end; ++j) most = std::max(most, static_cast<double>(s.data<float>()[j]));
    const double factor = std::isinf(m) ? 0 : std::exp(m - most);
    if (factor < 1 && first > 0) ++rescales;
    l *= factor;
    o *= factor;
    m = most;
    for (std::int64_t j = first; j < end; ++j) {
      const double p = std::exp(static_cast<double>(s.data<float>()[j]) - m);
      l += p;
      o += p * static_cast<double>(v.data<float>()[j]);
    }
    table.rows.push_back(
        {same("{}..{}", first, end - 1), number_text(m), number_text(factor), number_text(l), number_text(o / l)});
  }
  results.add(std::move(table));
  const std::vector<double> p = softmax_of(doubles_of(s));
  double whole = 0;
  for (std::int64_t j = 0; j < L; ++j)
    whole += p[static_cast<std::size_t>(j)] * static_cast<double>(v.data<float>()[j]);
  results.put("online_difference", std::abs(o / l - whole));
  results.put("rescales", rescales);
}

Results measure(const Arguments& a, const Progress&) {
  Results results;
  const auto score = static_cast<float>(a["score"]);
  const std::vector<float> x = {score, score - 1, score - 2};
  Table overflow{say("softmax of {}, {}, {} in f32", "f32 下对 {}、{}、{} 求 softmax", x[0], x[1], x[2]),
                 {say("how", "算法"), say("weights", "权重")},
                 {{say("exp(x) / sum", "直接 exp(x) / 求和"), row_text(naive(x))},
                  {say("maximum subtracted", "先减最大值"), row_text(with_maximum(x))},
                  {say("the engine", "本引擎"), row_text(engine(x))}}};
  results.add(std::move(overflow));
  results.put("score", a["score"]);
  results.put("largest_exponent", static_cast<double>(largest_exponent()));
  results.put("naive_nan", has_nan(naive(x)) ? 1 : 0);
  double sum = 0;
  for (const float w : engine(x)) sum += static_cast<double>(w);
  results.put("engine_sum_error", std::abs(sum - 1));

  const std::vector<float> one_hidden = {1.0F, 2.0F, -kInfinity}, one_billion = {1.0F, 2.0F, 3.0F - 1e9F};
  const std::vector<float> none(3, -kInfinity), none_billion = {1.0F - 1e9F, 2.0F - 1e9F, 3.0F - 1e9F};
  Table fill{
      say("Hiding keys by −∞ or by adding −1e9: the last key alone, then all three (scores 1, 2, 3)",
          "用 −∞ 或加 −1e9 来屏蔽键：先只屏蔽最后一个，再屏蔽全部三个（得分为 1、2、3）"),
      {say("hidden", "屏蔽"), say("−∞, formula", "−∞，按公式"), same("−1e9"), say("−∞, the engine", "−∞，本引擎")},
      {{say("one", "一个"), row_text(with_maximum(one_hidden)), row_text(with_maximum(one_billion)),
        row_text(engine(one_hidden))},
       {say("all", "全部"), row_text(with_maximum(none)), row_text(with_maximum(none_billion)),
        row_text(engine(none))}}};
  results.add(std::move(fill));
  results.put("one_hidden_difference",
              std::abs(static_cast<double>(with_maximum(one_hidden)[1] - with_maximum(one_billion)[1])));
  results.put("all_hidden_nan", has_nan(with_maximum(none)) ? 1 : 0);
  const std::vector<float> uniform = with_maximum(none_billion);
  results.put("billion_spread", static_cast<double>(*std::max_element(uniform.begin(), uniform.end()) -
                                                    *std::min_element(uniform.begin(), uniform.end())));
  results.put("billion_sum", static_cast<double>(uniform[0] + uniform[1] + uniform[2]));
  // The same through attention: a query whose keys are all padding, beside one that sees some.
  const Tensor q = random_tensor({2, 1, 1, 8}, 1), k = random_tensor({2, 1, 4, 8}, 2),
               v = random_tensor({2, 1, 4, 8}, 3);
  const AttentionResult r = attention(q, k, v, {.mask = padding({0, 3})});
  results.put("engine_masked_largest", largest(slice(r.out, 0, 0, 1)));
  results.put("f16_of_billion", std::isinf(to_float(to_float16(-1e9F))) ? 1 : 0);
  online(a, results);
  return results;
}

std::vector<Conclusion> judge(const Numbers& n) {
  std::vector<Conclusion> list;
  const bool over = n.at("score") > n.at("largest_exponent");
  list.push_back(conclude(
      "naive_overflows", (n.at("naive_nan") != 0) == over && n.at("engine_sum_error") < 1e-5,
      say("exp overflows f32 beyond {:.2f}: with a largest score of {:.0f} the plain formula gives {}; with the "
          "maximum subtracted the weights sum to 1.",
          "f32 的 exp 超过 {:.2f} 就溢出：最大得分为 {:.0f} 时，直接按公式算得到 {}；先减去最大值，权重之和就是 1。",
          n.at("largest_exponent"), n.at("score"), n.at("naive_nan") != 0 ? "NaN" : "0..1"),
      say("with a largest score of {:.0f} (exp overflows beyond {:.2f}) the plain formula gave NaN: {}; the engine's "
          "sum "
          "is off by {:.1g}.",
          "最大得分 {:.0f}（exp 在 {:.2f} 以上溢出），直接算是否出现 NaN：{}；本引擎的权重和偏差为 {:.1g}。",
          n.at("score"), n.at("largest_exponent"), n.at("naive_nan") != 0, n.at("engine_sum_error"))));
  list.push_back(conclude("fills_agree_on_one", n.at("one_hidden_difference") < 1e-6,
                          say("for a row that sees something, −1e9 and −∞ hide a key equally well.",
                              "只要这一行还能看到别的键，−1e9 和 −∞ 的屏蔽效果相同。"),
                          say("−1e9 and −∞ differ by {:.2g} on a row that sees something.",
                              "在还能看到键的一行上，−1e9 与 −∞ 相差 {:.2g}。", n.at("one_hidden_difference"))));
  list.push_back(conclude(
      "infinity_gives_nan", n.at("all_hidden_nan") != 0,
      say("a row that sees nothing gives NaN under −∞ by the formula: −∞ − (−∞) has no value.",
          "一行什么都看不到时，按公式用 −∞ 会得到 NaN：−∞ − (−∞) 没有意义。"),
      say("a row that sees nothing gave no NaN under −∞ on this machine.", "这台机器上，全 −∞ 的一行没有得到 NaN。")));
  list.push_back(conclude(
      "billion_gives_uniform", n.at("billion_spread") < 1e-6 && std::abs(n.at("billion_sum") - 1) < 1e-5,
      say("under −1e9 the same row silently becomes uniform: it averages exactly the keys it was to ignore, and even "
          "their scores are lost, because f32 cannot hold 3 − 1e9 and 2 − 1e9 apart.",
          "用 −1e9 时，同一行悄悄变成了均匀分布：它平均的恰恰是本该忽略的那些键，连得分的差别也丢了，因为 f32 分不清 "
          "3 − 1e9 和 2 − 1e9。"),
      say("under −1e9 the weights of that row differ by {:.2g} and sum to {:.2g}: not uniform.",
          "用 −1e9 时这一行权重相差 {:.2g}，和为 {:.2g}：不是均匀的。", n.at("billion_spread"), n.at("billion_sum"))));
  list.push_back(conclude("engine_gives_zeros", n.at("engine_masked_largest") == 0,
                          say("this engine gives zeros for such a row: no NaN, and nothing leaks.",
                              "本引擎对这样的行输出全零：没有 NaN，也不会泄漏任何东西。"),
                          say("this engine gave {:.2g} for a row that sees nothing; it should be 0.",
                              "本引擎对看不到任何键的行输出了 {:.2g}，本应为 0。", n.at("engine_masked_largest"))));
  list.push_back(
      conclude("billion_is_no_f16", n.at("f16_of_billion") != 0,
               say("in f16 −1e9 is −∞ anyway (f16 ends at 65,504), so that trick comes back as NaN in half precision.",
                   "在 f16 里 −1e9 本来就是 −∞（f16 最大到 65,504），所以半精度下这个技巧又会变回 NaN。"),
               say("f16 held −1e9 as a finite number.", "f16 竟然能把 −1e9 表示成有限的数。")));
  list.push_back(conclude("online_is_exact", n.at("online_difference") < 1e-9,
                          say("block by block, with {:.0f} rescalings, gives the same as all at once (difference "
                              "{:.0e}): that is how Flash "
                              "attention never stores a row.",
                              "一块一块地算，中间重新缩放了 {:.0f} 次，结果与一次算完相同（差 {:.0e}）：Flash "
                              "注意力就是这样做到不保存整行的。",
                              n.at("rescales"), n.at("online_difference")),
                          say("block by block differs from all at once by {:.2g}.", "分块计算与一次算完相差 {:.2g}。",
                              n.at("online_difference"))));
  return list;
}

}  // namespace

Lab softmax_lab() {
  return {
      .name = "softmax",
      .title = say("Softmax in floating point", "浮点数里的 softmax"),
      .question = say("What goes wrong when softmax is computed as it is written, and how do kernels do it?",
                      "照着公式直接算 softmax 会出什么问题？真正的内核又是怎么算的？"),
      .lesson =
          say("\"Fill the mask with −1e9.\" \"Fill it with −inf.\" Both are said, as if they were the same; what "
              "becomes of a row that sees nothing is not said at all.",
              "有的教程说“掩码填 −1e9”，有的说“填 −inf”，好像两者没有区别；而一行什么都看不到时会怎样，根本没有提。"),
      .guess = say("Up to which score is exp finite in f32? What does a row that sees no key at all give, under −1e9 "
                   "and under −∞?",
                   "f32 下，得分到多大 exp 还是有限的？一行什么键都看不到时，用 −1e9 和用 −∞ 各会得到什么？"),
      .why = {say(
          "Softmax does not change when a constant is added to all scores, so the maximum may be subtracted: "
          "then the largest exponential is 1 and nothing overflows. The maximum need not be known in "
          "advance: when a larger one comes along, what was summed so far is multiplied by exp(old − new). "
          "A row without any visible key has no softmax at all; zeros are the only answer that adds "
          "nothing to what follows.",
          "所有得分同加一个常数，softmax 不变，所以可以减去最大值：这样最大的 exp 值是 1，不会溢出。最大值也不必"
          "事先知道：遇到更大的，就把已经累加的和乘以 exp(旧 − 新)。一行若没有任何可见的键，就根本没有 softmax "
          "可言；只有全零不会给后面添乱。")},
      .seconds = 1,
      .minutes = 8,
      .parameters = {{"score", 100, 1, 1000, 100, say("the largest of three scores", "三个得分中最大的一个")},
                     {"length", 16, 2, 256, 12, say("scores of the online part", "在线部分的得分个数")},
                     {"block", 4, 1, 64, 4, say("scores a step", "每步处理几个得分")}},
      .measure = measure,
      .judge = judge};
}

}  // namespace attend::labs
