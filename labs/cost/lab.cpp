// Lab: what attention costs against length, fitted; and a recurrent network beside it.
#include <algorithm>
#include <cmath>

#include "attend/attention.hpp"
#include "attend/linear.hpp"
#include "attend/linear_attention.hpp"
#include "attend/multi_head_attention.hpp"
#include "labs/registry.hpp"
#include "labs/tools.hpp"

namespace attend::labs {
namespace {

constexpr std::int64_t kHeads = 2, kDim = 64, kWindow = 128;

// h_t = tanh(W x_t + U h_(t-1)): each step waits for the one before.
void recurrent(const Tensor& x, const Tensor& w, const Tensor& u, Tensor& h) {
  const std::int64_t L = x.shape()[2], W = x.shape()[3];
  Tensor inputs(DType::f32, {1, 1, L, W}), part(DType::f32, {1, 1, 1, W});
  linear(x, w, {}, inputs);
  for (std::int64_t t = 0; t < L; ++t) {
    float* row = h.data<float>() + t * W;
    if (t > 0) linear(slice(h, 2, t - 1, 1), u, {}, part);
    for (std::int64_t n = 0; n < W; ++n)
      row[n] = std::tanh(inputs.data<float>()[t * W + n] + (t > 0 ? part.data<float>()[n] : 0));
  }
}

// How many positions one layer can carry information over, tried: the first output that a change of token 0 moves
// nothing of, or the length.
std::int64_t reach(const std::function<Tensor(const Tensor& x)>& layer, std::int64_t L, std::int64_t W) {
  const Tensor x = random_tensor({1, 1, L, W}, 3);
  Tensor changed = x.clone();
  for (std::int64_t n = 0; n < W; ++n) changed.data<float>()[n] += 1;
  const Tensor a = layer(x), b = layer(changed);
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < L; ++i)
    if (largest_difference(slice(a, 2, i, 1), slice(b, 2, i, 1)) > 0) last = i + 1;
  return last;
}

Results measure(const Arguments& a, const Progress& progress) {
  Results results;
  const std::int64_t longest = a["longest"];
  struct Way {
    const char* key;
    Text name;
    std::function<void(const Tensor&, const Tensor&, const Tensor&, Tensor&)> run;
    std::vector<std::pair<double, double>> points{};
  };
  std::vector<Way> ways;
  ways.push_back(
      {"full", say("full causal", "完整因果"), [](const Tensor& q, const Tensor& k, const Tensor& v, Tensor& out) {
         attention(q, k, v, out, {.mask = causal()});
       }});
  ways.push_back({"window", say("window {}", "窗口 {}", kWindow),
                  [](const Tensor& q, const Tensor& k, const Tensor& v, Tensor& out) {
                    attention(q, k, v, out, {.mask = causal() & window(kWindow - 1, 0)});
                  }});
  ways.push_back(
      {"linear", say("linear attention", "线性注意力"),
       [](const Tensor& q, const Tensor& k, const Tensor& v, Tensor& out) { linear_attention(q, k, v, out); }});
  Table table{
      say("Seconds of CPU on one thread, {} heads of {}", "单线程 CPU 时间（秒），{} 个头，每头 {} 维", kHeads, kDim),
      {say("tokens", "词元数"), ways[0].name, ways[1].name, ways[2].name, say("recurrent network", "循环网络（RNN）")},
      {}};
  const std::int64_t W = kHeads * kDim;
  const Tensor w = random_tensor({1, 1, W, W}, 5, 0.5 / std::sqrt(static_cast<double>(W)));
  std::vector<std::pair<double, double>> rnn;
  for (std::int64_t L = longest / 8; L <= longest; L *= 2) {
    const Shape shape{1, kHeads, L, kDim};
    const Tensor q = random_tensor(shape, 1), k = random_tensor(shape, 2), v = random_tensor(shape, 3);
    Tensor out(DType::f32, shape), h(DType::f32, {1, 1, L, W});
    std::vector<Text> row = {same("{}", L)};
    for (Way& way : ways) {
      const double seconds = work_seconds_of([&] { way.run(q, k, v, out); });
      way.points.emplace_back(L, seconds);
      row.push_back(same("{:.5f}", seconds));
    }
    const Tensor x = random_tensor({1, 1, L, W}, 4);
    rnn.emplace_back(L, work_seconds_of([&] { recurrent(x, w, w, h); }, 2));
    row.push_back(same("{:.5f}", rnn.back().second));
    table.rows.push_back(std::move(row));
    progress(static_cast<double>(L) / static_cast<double>(longest));
  }
  results.add(std::move(table));
  CurvesFigure figure{
      "time", say("Time against length", "耗时与长度"), say("tokens", "词元数"), say("seconds", "秒"), {}, true, true};
  for (const Way& way : ways) {
    results.put(std::string("exponent_") + way.key, fitted_exponent(way.points));
    figure.curves.push_back({way.name, way.points});
  }
  results.put("exponent_rnn", fitted_exponent(rnn));
  figure.curves.push_back({say("recurrent network", "循环网络（RNN）"), rnn});
  results.add(std::move(figure));
  results.put("longest", longest);

  MultiHeadAttention layer({.width = W, .heads = kHeads});
  layer.initialise(1);
  const std::int64_t L = 64;
  const std::int64_t attention_reach =
      reach([&](const Tensor& x) { return layer.forward(x, {.mask = causal()}); }, L, W);
  results.put("attention_reach", attention_reach);
  results.put("window_reach",
              reach([&](const Tensor& x) { return layer.forward(x, {.mask = causal() & window(7, 0)}); }, L, W));
  results.put("reach_length", L);
  results.put("rnn_steps", longest);
  results.put("attention_steps", 1);
  results.add(
      Table{say("For {} tokens, one layer", "一层处理 {} 个词元", longest),
            {say("", "项目"), say("attention", "注意力"), say("recurrent network", "循环网络")},
            {{say("steps that wait for each other", "必须依次进行的步数"), same("1"), same("{}", longest)},
             {say("steps from the first token to the last", "从第一个词元到最后一个的路径"), same("1"),
              same("{}", longest - 1)},
             {say("multiply-adds, projections too", "乘加次数（含投影）"),
              same("{:.2e}", static_cast<double>(longest) * static_cast<double>(longest + 1) * static_cast<double>(W) +
                                 4.0 * static_cast<double>(longest * W * W)),
              same("{:.2e}", 2.0 * static_cast<double>(longest * W * W))}}});
  return results;
}

std::vector<Conclusion> judge(const Numbers& n) {
  std::vector<Conclusion> list;
  const double full = n.at("exponent_full");
  list.push_back(conclude(
      "full_is_quadratic", full > 1.6 && full < 2.4,
      say("full attention's time grows as L^{:.2f}: quadratic.", "完整注意力的耗时按 L^{:.2f} 增长：平方级。", full),
      say("full attention's time grew as L^{:.2f} over these lengths: small sizes or a busy machine hide the square.",
          "在这些长度上，完整注意力的耗时按 L^{:.2f} 增长：长度太短或机器太忙，掩盖了平方。", full)));
  list.push_back(conclude(
      "window_is_linear", n.at("exponent_window") < 1.4 && n.at("exponent_linear") < 1.4,
      say("a window grows as L^{:.2f}, linear attention as L^{:.2f}: both about linear.",
          "窗口注意力按 L^{:.2f} 增长，线性注意力按 L^{:.2f} 增长：都接近线性。", n.at("exponent_window"),
          n.at("exponent_linear")),
      say("a window grew as L^{:.2f}, linear attention as L^{:.2f} on this run.",
          "这次窗口按 L^{:.2f} 增长，线性注意力按 L^{:.2f} 增长。", n.at("exponent_window"), n.at("exponent_linear"))));
  list.push_back(conclude("rnn_is_linear_but_serial",
                          n.at("exponent_rnn") < 1.4 && n.at("rnn_steps") > n.at("attention_steps"),
                          say("a recurrent network is linear, too (L^{:.2f}), but takes {:.0f} steps that wait for "
                              "each other, where attention "
                              "takes one.",
                              "循环网络也是线性的（L^{:.2f}），但有 {:.0f} 步必须一步等一步，而注意力只要一步。",
                              n.at("exponent_rnn"), n.at("rnn_steps")),
                          say("the recurrent network grew as L^{:.2f} with {:.0f} serial steps.",
                              "循环网络按 L^{:.2f} 增长，串行 {:.0f} 步。", n.at("exponent_rnn"), n.at("rnn_steps"))));
  list.push_back(
      conclude("attention_reaches_all",
               n.at("attention_reach") == n.at("reach_length") && n.at("window_reach") < n.at("reach_length"),
               say("one layer of attention carries a change of the first token to all {:.0f} places; one with a window "
                   "of 8 to {:.0f}.",
                   "一层注意力能把第一个词元的变化传到全部 {:.0f} 个位置；窗口为 8 的一层只能传到 {:.0f} 个。",
                   n.at("attention_reach"), n.at("window_reach")),
               say("the change of the first token reached {:.0f} of {:.0f} places, {:.0f} with a window of 8.",
                   "第一个词元的变化传到了 {:.0f} / {:.0f} 个位置，窗口为 8 时是 {:.0f} 个。", n.at("attention_reach"),
                   n.at("reach_length"), n.at("window_reach"))));
  return list;
}

}  // namespace

Lab cost_lab() {
  return {
      .name = "cost",
      .title = say("What does length cost?", "长度要付出什么代价？"),
      .question =
          say("How do time and steps grow with the length, for full attention, a window, linear attention and a "
              "recurrent network?",
              "完整注意力、窗口注意力、线性注意力和循环网络，耗时和步数各随长度怎样增长？"),
      .lesson =
          say("\"Attention is O(n²), an RNN is O(n), so the RNN is faster.\" The count leaves out what can run at "
              "the same time.",
              "“注意力是 O(n²)，RNN 是 O(n)，所以 RNN 更快。”这笔账没有考虑哪些步骤可以同时进行。"),
      .guess =
          say("Which exponent will each show: time ∝ L^b? How many steps does a signal need from the first token to "
              "the last?",
              "各自的指数 b 会是多少（耗时 ∝ L^b）？信号从第一个词元传到最后一个需要几步？"),
      .why = {say(
          "Full attention computes L·(L+1)/2 scores under a causal mask; doubling the length quadruples the work. "
          "A window computes L·w, linear attention keeps a state of fixed size. A recurrent step cannot begin "
          "before the last one ended, so neither more cores nor a GPU shorten its chain of L steps; and a "
          "gradient has to travel that whole chain back.",
          "因果掩码下完整注意力要算 L·(L+1)/2 个得分，长度翻倍，工作量变四倍。窗口只算 L·w 个，线性注意力只保留固定大小"
          "的状态。循环网络的一步要等上一步算完，多核或 GPU 都缩短不了这条 L 步的链；梯度也得沿整条链传回去。")},
      .seconds = 8,
      .minutes = 7,
      .parameters = {{"longest", 8192, 1024, 32768, 1024,
                      say("longest text; an eighth of it is the shortest", "最长文本；最短是它的八分之一")}},
      .measure = measure,
      .judge = judge};
}

}  // namespace attend::labs
