// Lab: grouped queries: who shares keys and values, what that saves, and what it costs in quality.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "attend/error.hpp"
#include "attend/multi_head_attention.hpp"
#include "labs/registry.hpp"
#include "labs/relations.hpp"
#include "labs/tools.hpp"

namespace attend::labs {
namespace {

constexpr std::int64_t kLength = 24;

// K or V copied once for each query head: what repeat_kv makes.
Tensor repeated(const Tensor& kv, std::int64_t groups) {
  const Shape& s = kv.shape();
  Tensor out(DType::f32, {s[0], s[1] * groups, s[2], s[3]});
  const std::int64_t head = s[2] * s[3];
  for (std::int64_t h = 0; h < s[0] * s[1] * groups; ++h)
    std::memcpy(out.data<float>() + h * head, kv.data<float>() + h / groups * head,
                static_cast<std::size_t>(head) * sizeof(float));
  return out;
}

void counting_part(const Arguments& a, Results& results) {
  const std::int64_t W = a["width"], H = a["heads"], K = a["kv-heads"], D = W / H, tokens = 1000;
  if (W % H != 0)
    throw Refused(say("width is {}, expected a multiple of heads, {}", "width 是 {}，应为 heads（{}）的倍数", W, H));
  if (H % K != 0)
    throw Refused(say("kv-heads is {}, expected a divisor of heads, {}", "kv-heads 是 {}，应能整除 heads（{}）", K, H));
  Rows shares;
  for (std::int64_t g = 0; g < K; ++g) {
    shares.emplace_back();
    for (std::int64_t h = 0; h < H; ++h) shares.back().push_back(h / (H / K) == g ? 1 : 0);
  }
  MapFigure who = matrix(
      "who", say("Which query heads (across) read which KV head (down)", "哪些查询头（横）读哪个 KV 头（竖）"), shares);
  who.rows_are = say("KV head", "KV 头");
  who.columns_are = say("query head", "查询头");
  results.add(std::move(who));
  const MultiHeadAttentionConfig mha{.width = W, .heads = H}, gqa{.width = W, .heads = H, .kv_heads = K};
  const auto qkv = [](const MultiHeadAttention& layer) {
    const auto& p = layer.parameters();
    return p.wq.size() + p.wk.size() + p.wv.size();
  };
  const MultiHeadAttention full(mha), grouped(gqa);
  const KvCache full_cache(full.config(), 1, tokens), grouped_cache(grouped.config(), 1, tokens);
  const std::int64_t kv_full = full.parameters().wk.size() + full.parameters().wv.size();
  const std::int64_t kv_grouped = grouped.parameters().wk.size() + grouped.parameters().wv.size();
  results.put("qkv_full", qkv(full));
  results.put("qkv_grouped", qkv(grouped));
  results.put("qkv_formula", W * (H + 2 * K) * D);
  results.put("kv_full", kv_full);
  results.put("kv_grouped", kv_grouped);
  results.put("output", grouped.parameters().wo.size());
  results.put("output_formula", H * D * W);
  results.put("cache_full", full_cache.bytes());
  results.put("cache_grouped", grouped_cache.bytes());
  results.put("cache_formula", 2 * K * D * 4 * tokens);
  results.put("heads", H);
  results.put("kv_heads", K);
  const std::int64_t all_full = qkv(full) + full.parameters().wo.size();
  const std::int64_t all_grouped = qkv(grouped) + grouped.parameters().wo.size();
  results.add(Table{
      say("Hidden {}, {} query heads of {}; {} or {} KV heads",
          "隐藏维度 {}，{} 个查询头，每头 {} 维；KV 头 {} 个或 {} 个", W, H, D, H, K),
      {say("", "项目"), say("MHA", "MHA（多头）"), say("GQA", "GQA（分组）"), say("saved", "节省")},
      {{say("parameters of Q, K, V", "Q、K、V 的参数"), same("{}", qkv(full)), same("{}", qkv(grouped)),
        same("{:.0f} %", 100 - 100 * static_cast<double>(qkv(grouped)) / static_cast<double>(qkv(full)))},
       {say("of K and V alone", "其中 K 和 V"), same("{}", kv_full), same("{}", kv_grouped),
        same("{:.0f} %", 100 - 100 * static_cast<double>(kv_grouped) / static_cast<double>(kv_full))},
       {say("of all four, W_O too", "四个矩阵合计（含 W_O）"), same("{}", all_full), same("{}", all_grouped),
        same("{:.1f} %", 100 - 100 * static_cast<double>(all_grouped) / static_cast<double>(all_full))},
       {say("KV cache of {} tokens, bytes", "{} 个词元的 KV 缓存（字节）", tokens), same("{}", full_cache.bytes()),
        same("{}", grouped_cache.bytes()),
        same("{:.0f} %",
             100 - 100 * static_cast<double>(grouped_cache.bytes()) / static_cast<double>(full_cache.bytes()))}}});
}

void repeat_part(const Arguments& a, Results& results) {
  const std::int64_t H = a["heads"], K = a["kv-heads"], D = a["width"] / H, L = a["length"];
  const Tensor q = random_tensor({1, H, L, D}, 1), k = random_tensor({1, K, L, D}, 2),
               v = random_tensor({1, K, L, D}, 3);
  const AttentionOptions options{.mask = causal()};
  Tensor shared(DType::f32, {1, H, L, D}), copied(DType::f32, {1, H, L, D});
  const double without = seconds_of([&] { attention(q, k, v, shared, options); });
  const double with = seconds_of([&] { attention(q, repeated(k, H / K), repeated(v, H / K), copied, options); });
  const std::int64_t bytes = repeated(k, H / K).bytes() + repeated(v, H / K).bytes();
  results.put("repeat_difference", largest_difference(shared, copied));
  results.put("repeat_bytes", bytes);
  results.put("kv_bytes", k.bytes() + v.bytes());
  results.put("seconds_shared", without);
  results.put("seconds_repeated", with);
  results.add(
      say("Over {} tokens: repeat_kv writes {} bytes of K and V where {} were; attention takes {:.2f} ms with the "
          "copies and {:.2f} ms when heads read the shared ones. Largest difference of the outputs: {:.0e}.",
          "在 {} 个词元上：repeat_kv 写出 {} 字节的 K 和 V，而原来只有 {} 字节；带复制的注意力用 {:.2f} 毫秒，直接共享"
          "用 {:.2f} 毫秒。输出的最大差：{:.0e}。",
          L, bytes, k.bytes() + v.bytes(), 1e3 * with, 1e3 * without, results.numbers.at("repeat_difference")));
}

void training_part(const Arguments& a, const Progress& progress, Results& results) {
  const std::int64_t steps = a["steps"];
  CurvesFigure figure{"training",
                      say("Trained alike: MHA, GQA, MQA (8, 2 and 1 KV heads, width 64)",
                          "同样训练：MHA、GQA、MQA（KV 头 8、2、1 个，宽度 64）"),
                      say("step", "训练步"),
                      say("loss", "损失"),
                      {},
                      false,
                      false};
  Table table{say("After {} steps", "训练 {} 步之后", steps),
              {say("", "模型"), say("KV heads", "KV 头"), say("parameters", "参数"), say("loss", "损失"),
               say("accuracy", "准确率")},
              {}};
  const char* names[] = {"MHA", "GQA", "MQA"};
  const std::int64_t kv_heads[] = {8, 2, 1};
  const TinyBatch test = relation_batch(64, kLength, 999983);
  for (std::size_t n = 0; n < 3; ++n) {
    TinyModel model({.vocabulary = kRelationClasses, .width = 64, .layers = 1, .heads = 8, .kv_heads = kv_heads[n]});
    Curve curve{same("{}", names[n]), {}};
    double mean = 0;
    for (std::int64_t step = 1; step <= steps; ++step) {
      const double loss = model.train(relation_batch(16, kLength, static_cast<std::uint64_t>(step)), 5e-3);
      mean = step == 1 ? loss : 0.9 * mean + 0.1 * loss;
      if (step % std::max<std::int64_t>(1, steps / 30) == 0) curve.points.emplace_back(step, mean);
      progress((static_cast<double>(n) + static_cast<double>(step) / static_cast<double>(steps)) / 3);
    }
    figure.curves.push_back(std::move(curve));
    const double loss = model.loss(test);
    results.put(std::string("loss_") + names[n], loss);
    results.put(std::string("parameters_") + names[n], model.parameter_count());
    table.rows.push_back({same("{}", names[n]), same("{}", kv_heads[n]), same("{}", model.parameter_count()),
                          number_text(loss), same("{:.1f} %", 100 * model.accuracy(test))});
  }
  results.add(std::move(figure));
  results.add(std::move(table));
  results.put("blind_loss", std::log(static_cast<double>(kRelationClasses)));
}

Results measure(const Arguments& a, const Progress& progress) {
  Results results;
  counting_part(a, results);
  repeat_part(a, results);
  training_part(a, progress, results);
  return results;
}

std::vector<Conclusion> judge(const Numbers& n) {
  std::vector<Conclusion> list;
  list.push_back(conclude(
      "parameters_by_formula", n.at("qkv_grouped") == n.at("qkv_formula") && n.at("output") == n.at("output_formula"),
      say("Q, K and V have hidden·(heads + 2·kv_heads)·head_dim = {:.0f} parameters, the output heads·head_dim·hidden "
          "= {:.0f}.",
          "Q、K、V 的参数是 hidden·(heads + 2·kv_heads)·head_dim = {:.0f}，输出是 heads·head_dim·hidden = {:.0f}。",
          n.at("qkv_grouped"), n.at("output")),
      say("Q, K and V have {:.0f} parameters, the formula says {:.0f}; the output {:.0f} against {:.0f}.",
          "Q、K、V 有 {:.0f} 个参数，公式给出 {:.0f}；输出 {:.0f}，公式 {:.0f}。", n.at("qkv_grouped"),
          n.at("qkv_formula"), n.at("output"), n.at("output_formula"))));
  const double ratio = n.at("kv_heads") / n.at("heads");
  const double saved_qkv = 1 - n.at("qkv_grouped") / n.at("qkv_full"),
               saved_kv = 1 - n.at("kv_grouped") / n.at("kv_full");
  list.push_back(conclude(
      "what_is_saved", std::abs(saved_kv - (1 - ratio)) < 1e-12 && std::abs(saved_qkv - 2 * (1 - ratio) / 3) < 1e-12,
      say("GQA {:.0f}/{:.0f} saves {:.0f} % of K and V, which is {:.0f} % of Q, K and V together: W_Q stays as it was.",
          "GQA {:.0f}/{:.0f} 省下 K、V 参数的 {:.0f} %，占 Q、K、V 总和的 {:.0f} %：W_Q 没有变。", n.at("heads"),
          n.at("kv_heads"), 100 * saved_kv, 100 * saved_qkv),
      say("it saved {:.1f} % of K and V and {:.1f} % of Q, K and V: not what the ratio of heads says.",
          "省下 K、V 的 {:.1f} %，Q、K、V 总和的 {:.1f} %：与头数之比不符。", 100 * saved_kv, 100 * saved_qkv)));
  list.push_back(conclude("cache_by_formula", n.at("cache_grouped") == n.at("cache_formula"),
                          say("the cache measures what 2·kv_heads·head_dim·4 bytes a token says: {:.0f} bytes for "
                              "1,000 tokens and one layer, "
                              "{:.0f} with MHA.",
                              "缓存的实测大小与公式一致（每个词元 2·kv_heads·head_dim·4 字节）：一层 1,000 个词元 "
                              "{:.0f} 字节，MHA 则是 {:.0f}。",
                              n.at("cache_grouped"), n.at("cache_full")),
                          say("the cache has {:.0f} bytes, the formula says {:.0f}.",
                              "缓存有 {:.0f} 字节，公式给出 {:.0f}。", n.at("cache_grouped"), n.at("cache_formula"))));
  list.push_back(conclude(
      "repeating_copies", n.at("repeat_bytes") > n.at("kv_bytes") || n.at("heads") == n.at("kv_heads"),
      n.at("heads") == n.at("kv_heads")
          ? say("with as many KV heads as query heads there is nothing to repeat ({:.0f} bytes).",
                "KV 头与查询头一样多时，没有什么可重复的（{:.0f} 字节）。", n.at("kv_bytes"))
          : say("repeat_kv copies: {:.0f} bytes instead of {:.0f}; it is not a view (lab shapes shows why it cannot "
                "be).",
                "repeat_kv 是要复制的：{:.0f} 字节，而原来是 {:.0f} 字节；它不是视图（为什么不可能是，见 shapes "
                "实验）。",
                n.at("repeat_bytes"), n.at("kv_bytes")),
      say("repeat_kv made {:.0f} bytes of {:.0f}: no copy.", "repeat_kv 得到 {:.0f} 字节，原来 {:.0f} 字节：没有复制。",
          n.at("repeat_bytes"), n.at("kv_bytes"))));
  list.push_back(
      conclude("repeating_is_not_needed", n.at("repeat_difference") < 1e-5,
               say("and it is not needed: heads that read shared K and V give the same output (difference {:.0e}).",
                   "而且没有必要：让各个头直接读共享的 K 和 V，输出相同（差 {:.0e}）。", n.at("repeat_difference")),
               say("sharing and repeating differ by {:.2g}.", "共享与复制相差 {:.2g}。", n.at("repeat_difference"))));
  const double gap = n.at("loss_MQA") - n.at("loss_MHA");
  const double learnt = n.at("blind_loss") - largest_of({n.at("loss_MHA"), n.at("loss_GQA"), n.at("loss_MQA")});
  list.push_back(conclude("all_three_learn", learnt > 0.25 * n.at("blind_loss"),
                          say("trained alike all three learn the task: losses {:.3f} (MHA), {:.3f} (GQA), {:.3f} "
                              "(MQA), where blind guessing "
                              "costs {:.2f}; MQA ends {:+.3f} from MHA.",
                              "同样训练，三者都学会了：损失 {:.3f}（MHA）、{:.3f}（GQA）、{:.3f}（MQA），瞎猜是 "
                              "{:.2f}；MQA 与 MHA 相差 {:+.3f}。",
                              n.at("loss_MHA"), n.at("loss_GQA"), n.at("loss_MQA"), n.at("blind_loss"), gap),
                          say("not all three learnt the task: {:.3f} (MHA), {:.3f} (GQA), {:.3f} (MQA), blind {:.2f}.",
                              "三者没有都学会：{:.3f}（MHA）、{:.3f}（GQA）、{:.3f}（MQA），瞎猜 {:.2f}。",
                              n.at("loss_MHA"), n.at("loss_GQA"), n.at("loss_MQA"), n.at("blind_loss"))));
  list.push_back(conclude("sharing_costs_little", gap < 0.1 * n.at("blind_loss"),
                          say("one KV head for all query heads costs {:.3f} of loss on this task.",
                              "在这个任务上，所有头共享一个 KV 头，损失只多 {:.3f}。", std::max(0.0, gap)),
                          say("one KV head for all query heads costs {:.3f} of loss: on this run sharing hurts.",
                              "共享一个 KV 头让损失多了 {:.3f}：这次共享有代价。", gap)));
  return list;
}

}  // namespace

Lab gqa_lab() {
  return {
      .name = "gqa",
      .title = say("Grouped queries (GQA)", "分组查询注意力（GQA）"),
      .question = say("If several query heads share one key and value head, what is saved, and what is lost?",
                      "多个查询头共用一个KV 头，能省下什么，又会损失什么？"),
      .lesson = say("MiniMind2 has 8 query heads and 2 KV heads. \"GQA saves 75 % of the attention parameters\" and "
                    "\"repeat_kv is free, it is a view\" are often said. Both are wrong.",
                    "MiniMind2 有 8 个查询头、2 个 KV 头。常有人说“GQA 省了 75 % 的注意力参数”，“repeat_kv 是视图，不占"
                    "内存”。两句都不对。"),
      .guess = say("With 8/2 at hidden 512: how much of Q, K, V is saved, how much of the cache? Does repeat_kv copy?",
                   "hidden 512、8/2 时：Q、K、V 的参数省多少？缓存省多少？repeat_kv 会不会复制？"),
      .why = {say(
          "Only W_K and W_V shrink with the KV heads; W_Q and W_O do not, so a quarter of the KV heads saves "
          "75 % of K and V and of the cache, but half of Q, K and V. A strided view can repeat a head "
          "(stride 0), but merging the repeated axis with the heads needs one stride for both, which does "
          "not exist: reshape copies. A kernel that knows about groups reads each K and V once for all heads "
          "that share it.",
          "随 KV 头减少的只有 W_K 和 W_V，W_Q 和 W_O 不变；所以 KV 头减到四分之一，K、V 和缓存省 75 %，Q、K、V 合计"
          "只省一半。视图可以用步长 0 来重复一个头，但要把重复的轴与头轴合并，就需要一个同时适用于两者的步长，而"
          "这样的步长不存在：reshape 只好复制。懂得分组的内核对每个 K、V 只读一次，供共享它的所有头使用。")},
      .seconds = 20,
      .minutes = 10,
      .parameters = {{"width", 512, 8, 4096, 64, say("hidden size, a multiple of the heads", "隐藏维度，头数的倍数")},
                     {"heads", 8, 1, 64, 8, say("query heads", "查询头数")},
                     {"kv-heads", 2, 1, 64, 2, say("KV heads, a divisor of the heads", "KV 头数，须整除头数")},
                     {"length", 1024, 8, 8192, 64, say("tokens of the timed part", "计时部分的词元数")},
                     {"steps", 100, 1, 4000, 80, say("training steps", "训练步数")}},
      .measure = measure,
      .judge = judge};
}

}  // namespace attend::labs
