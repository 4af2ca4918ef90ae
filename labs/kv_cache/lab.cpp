// Lab: the KV cache: the same bits as the full pass, what it saves, what it costs, what a window forgets.
#include <algorithm>
#include <cmath>

#include "attend/error.hpp"
#include "attend/multi_head_attention.hpp"
#include "labs/registry.hpp"
#include "labs/tools.hpp"

namespace attend::labs {
namespace {

Tensor token(const Tensor& x, std::int64_t i) {
  Tensor one(DType::f32, {1, 1, 1, x.shape()[3]});
  std::copy_n(x.data<float>() + i * x.shape()[3], x.shape()[3], one.data<float>());
  return one;
}

void bits_part(const MultiHeadAttention& layer, const Tensor& x, Results& results) {
  const std::int64_t L = x.shape()[2];
  const Tensor full = layer.forward(x, {.mask = causal()});
  KvCache cache(layer.config(), 1, L), chunks(layer.config(), 1, L);
  double different = 0, worst = 0;
  for (std::int64_t i = 0; i < L; ++i) {
    const Tensor y = layer.step(token(x, i), cache);
    if (!same_bits(y, slice(full, 2, i, 1))) ++different;
    worst = largest_of({worst, largest_difference(y, slice(full, 2, i, 1))});
  }
  const std::int64_t half = L / 2;
  (void)layer.step(slice(x, 2, 0, half), chunks);
  const Tensor rest = layer.step(slice(x, 2, half, L - half), chunks);
  results.put("steps_that_differ", different);
  results.put("step_difference", worst);
  results.put("chunk_bits", same_bits(rest, slice(full, 2, half, L - half)) ? 1 : 0);
  results.put("cache_bytes", cache.bytes());
  const auto& c = layer.config();
  results.put("formula_bytes", 2 * c.kv_heads * c.head_dim * 4 * L);
  results.add(
      say("{} tokens one by one through the cache: {} of the outputs differ in any bit from the full pass. The cache "
          "holds {} bytes.",
          "{} 个词元逐个通过缓存：与整段一次前向相比，有 {} 个输出出现了比特差异。缓存占 {} 字节。", L,
          static_cast<std::int64_t>(different), cache.bytes()));
}

void cost_part(const MultiHeadAttention& layer, std::int64_t longest, const Progress& progress, Results& results) {
  const std::int64_t W = layer.config().width;
  CurvesFigure figure{"time",
                      say("Time for the next token, with and without a cache", "生成下一个词元所需的时间，有无缓存"),
                      say("tokens before it", "之前的词元数"),
                      say("milliseconds", "毫秒"),
                      {},
                      true,
                      true};
  figure.curves = {{say("with the cache", "有缓存"), {}}, {say("everything again", "全部重算"), {}}};
  Table table{say("The next token of a text", "文本的下一个词元"),
              {say("tokens", "词元数"), say("with, ms", "有缓存（毫秒）"), say("without, ms", "无缓存（毫秒）"),
               say("multiply-adds with", "乘加次数（有）"), say("without", "乘加次数（无）")},
              {}};
  double ratio = 0, at_first = 0, at_last = 0;
  for (std::int64_t L = 64; L <= longest; L *= 2) {
    const Tensor x = random_tensor({1, 1, L, W}, 7);
    KvCache cache(layer.config(), 1, L);
    (void)layer.step(slice(x, 2, 0, L - 1), cache);
    const Tensor last = token(x, L - 1);
    const double with = seconds_of(
        [&] {
          (void)layer.step(last, cache);
          cache.truncate(L - 1);
        },
        5);
    const double without = seconds_of([&] { (void)layer.forward(x, {.mask = causal()}); }, 2);
    const auto w = static_cast<double>(W), l = static_cast<double>(L);
    const double projections =
        2 * w * w + 2 * w * static_cast<double>(layer.config().kv_heads * layer.config().head_dim);
    const double macs_with = projections + 2 * l * w, macs_without = l * projections + l * (l + 1) * w;
    figure.curves[0].points.emplace_back(L, 1e3 * with);
    figure.curves[1].points.emplace_back(L, 1e3 * without);
    table.rows.push_back({same("{}", L), number_text(1e3 * with), number_text(1e3 * without), same("{:.2e}", macs_with),
                          same("{:.2e}", macs_without)});
    ratio = without / with;
    if (L == 64) at_first = with;
    at_last = with;
    progress(0.2 + 0.6 * static_cast<double>(L) / static_cast<double>(longest));
  }
  results.put("time_ratio", ratio);
  results.put("growth", at_last / at_first);
  results.put("longest", longest);
  results.add(std::move(figure));
  results.add(std::move(table));
}

void window_part(const MultiHeadAttention& layer, std::int64_t window_size, Results& results) {
  const std::int64_t L = 64, W = layer.config().width;
  const Tensor x = random_tensor({1, 1, L, W}, 8);
  Tensor changed = x.clone();
  for (std::int64_t n = 0; n < (L - window_size) * W; ++n) changed.data<float>()[n] += 1;
  const auto last_row = [&](const Tensor& in, const Mask& mask) { return layer.forward(in, {.mask = mask}); };
  const Mask windowed = causal() & window(window_size - 1, 0);
  const auto moved = [&](const Mask& mask) {
    return largest_difference(slice(last_row(x, mask), 2, L - 1, 1), slice(last_row(changed, mask), 2, L - 1, 1));
  };
  results.put("window", window_size);
  results.put("moved_with_window", moved(windowed));
  results.put("moved_without_window", moved(causal()));
}

Results measure(const Arguments& a, const Progress& progress) {
  Results results;
  const std::int64_t W = a["width"], H = a["heads"], K = a["kv-heads"];
  if (W % H != 0 || H % K != 0)
    throw Refused(say("width {}, heads {}, kv-heads {}: expected each to divide the one before",
                      "width {}、heads {}、kv-heads {}：后一个应能整除前一个", W, H, K));
  MultiHeadAttention layer({.width = W, .heads = H, .kv_heads = K, .rope = RopeStyle::half_split});
  layer.initialise(1);
  bits_part(layer, random_tensor({1, 1, a["length"], W}, 2), results);
  progress(0.2);
  cost_part(layer, a["longest"], progress, results);
  window_part(layer, 16, results);
  return results;
}

std::vector<Conclusion> judge(const Numbers& n) {
  std::vector<Conclusion> list;
  list.push_back(
      conclude("step_equals_full", n.at("steps_that_differ") == 0 && n.at("chunk_bits") != 0,
               say("token by token, or in two chunks, the cache gives exactly the bits of the full pass.",
                   "逐词元也好，分两块也好，用缓存得到的结果与整段前向逐位相同。"),
               say("{:.0f} steps differ from the full pass, by up to {:.2g}.",
                   "有 {:.0f} 步与整段前向不同，最多差 {:.2g}。", n.at("steps_that_differ"), n.at("step_difference"))));
  list.push_back(conclude("bytes_by_formula", n.at("cache_bytes") == n.at("formula_bytes"),
                          say("it holds 2·kv_heads·head_dim·4 bytes a token and layer: {:.0f} bytes here.",
                              "每层每个词元占 2·kv_heads·head_dim·4 字节：这里共 {:.0f} 字节。", n.at("cache_bytes")),
                          say("it holds {:.0f} bytes, the formula says {:.0f}.", "它占 {:.0f} 字节，公式给出 {:.0f}。",
                              n.at("cache_bytes"), n.at("formula_bytes"))));
  list.push_back(conclude(
      "cache_is_faster", n.at("time_ratio") > 2,
      say("at {:.0f} tokens the next one takes {:.0f} times as long without a cache.",
          "有 {:.0f} 个词元时，不用缓存生成下一个要花 {:.0f} 倍的时间。", n.at("longest"), n.at("time_ratio")),
      say("at {:.0f} tokens the next one takes {:.1f} times as long without a cache: no gain worth naming.",
          "有 {:.0f} 个词元时，不用缓存只是 {:.1f} 倍的时间：没有明显好处。", n.at("longest"), n.at("time_ratio"))));
  list.push_back(conclude(
      "next_token_is_not_constant", n.at("growth") > 1.3,
      say("but not O(1): at {:.0f} tokens the next one takes {:.1f} times as long as at 64, because attention reads "
          "all "
          "that is cached.",
          "但并不是 O(1)：有 {:.0f} 个词元时，生成下一个的时间是 64 个时的 {:.1f} 倍，因为注意力要读一遍全部缓存。",
          n.at("longest"), n.at("growth")),
      say("at {:.0f} tokens the next one takes {:.1f} times as long as at 64: over these lengths the projections cost "
          "more than the cache. A larger --longest shows the growth.",
          "有 {:.0f} 个词元时，生成下一个的时间是 64 个时的 {:.1f} 倍：在这些长度上，投影的代价盖过了读缓存；把 "
          "--longest 调大就能看到增长。",
          n.at("longest"), n.at("growth"))));
  list.push_back(conclude(
      "window_forgets", n.at("moved_with_window") == 0 && n.at("moved_without_window") > 1e-4,
      say("with a window of {:.0f} what lies further back has no effect, to the bit, so a cache may forget it; without "
          "one the output moves by {:.2f}. (Through several layers a window still sees further: each layer adds its "
          "own.)",
          "窗口为 {:.0f} 时，更早的内容毫无影响（逐位相同），缓存可以把它忘掉；没有窗口时输出会变 "
          "{:.2f}。（叠上多层以后，窗口"
          "仍能间接看得更远：每层再往前推一个窗口。）",
          n.at("window"), n.at("moved_without_window")),
      say("with a window the output moved by {:.2g}, without one by {:.2g}.",
          "有窗口时输出变动 {:.2g}，没有时 {:.2g}。", n.at("moved_with_window"), n.at("moved_without_window"))));
  return list;
}

}  // namespace

Lab kv_cache_lab() {
  return {
      .name = "kv-cache",
      .title = say("The KV cache", "KV 缓存"),
      .question = say("A decoder keeps the keys and values of the past. Is the result really the same, what does it "
                      "save, and what does it cost?",
                      "解码器把过去的键和值存起来。结果真的一样吗？省了什么，又花了什么？"),
      .lesson = say("\"With a KV cache each new token costs O(1).\" The projections do; attention still reads all that "
                    "is cached.",
                    "“有了 KV 缓存，每个新词元的代价是 O(1)。”投影确实如此，但注意力仍要读一遍全部缓存。"),
      .guess =
          say("Do the outputs agree to the bit or only nearly? How many bytes does a token take? Is the cost of the "
              "next token constant?",
              "输出是逐位相同还是只是近似？一个词元占多少字节？下一个词元的代价是常数吗？"),
      .why = {say(
          "Under a causal mask the keys and values of a token depend on it and what came before it alone, so they "
          "never "
          "change again: what was computed once can be kept. The new token needs one row of projections and "
          "one row of scores over all that is kept: linear in the length, instead of the quadratic whole. "
          "Keys are kept after RoPE, each rotated by its own position.",
          "在因果掩码下，一个词元的键和值只取决于它自己和之前的内容，之后再也不会变：算过一次就可以留着。新词元只需要一"
          "行"
          "投影，以及对全部缓存的一行得分：代价与长度成正比，而不是重算时的平方。键是在 RoPE 之后存的，各按自己的"
          "位置旋转。")},
      .seconds = 5,
      .minutes = 8,
      .parameters = {{"length", 96, 4, 2048, 24, say("tokens compared bit by bit", "逐位比较的词元数")},
                     {"longest", 2048, 64, 16384, 1024, say("longest text timed", "计时的最长文本")},
                     {"width", 256, 8, 2048, 64, say("hidden size", "隐藏维度")},
                     {"heads", 8, 1, 32, 4, say("query heads", "查询头数")},
                     {"kv-heads", 2, 1, 32, 2, say("KV heads", "KV 头数")}},
      .measure = measure,
      .judge = judge};
}

}  // namespace attend::labs
