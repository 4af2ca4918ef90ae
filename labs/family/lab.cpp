// Lab: the family of attentions on one text: what each sees, what it costs, what it gets wrong.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "attend/adaptive_span.hpp"
#include "attend/attention.hpp"
#include "attend/error.hpp"
#include "attend/latent_attention.hpp"
#include "attend/linear_attention.hpp"
#include "attend/linformer.hpp"
#include "attend/multi_head_attention.hpp"
#include "attend/patterns.hpp"
#include "attend/reformer.hpp"
#include "labs/registry.hpp"
#include "labs/tools.hpp"

namespace attend::labs {
namespace {

constexpr std::int64_t kDim = 32;

struct Inputs {
  std::vector<std::string> words;
  Tensor q, k, v, shared;  // shared: q scaled to length 1, the keys of Reformer
};

// Vectors from the words themselves: a word is always the same direction, plus a slow drift with its place. Equal words
// find each other, near words a little.
Inputs inputs_of(const std::string& text, std::int64_t length) {
  Inputs in;
  const std::vector<std::string> once = words_in(text);
  if (once.empty()) throw Refused(say("text is empty, expected some words", "text 是空的，请给出几个词"));
  while (static_cast<std::int64_t>(in.words.size()) < length) in.words.push_back(once[in.words.size() % once.size()]);
  const Shape shape{1, 1, length, kDim};
  in.q = Tensor(DType::f32, shape);
  in.v = Tensor(DType::f32, shape);
  std::map<std::string, std::uint64_t> numbers;
  for (std::int64_t i = 0; i < length; ++i) {
    const std::uint64_t word = numbers.emplace(in.words[static_cast<std::size_t>(i)], numbers.size() + 1).first->second;
    const Tensor x = random_tensor({1, 1, 1, kDim}, 1000 + word), y = random_tensor({1, 1, 1, kDim}, 5000 + word);
    for (std::int64_t d = 0; d < kDim; ++d) {
      const double drift = std::cos(0.05 * static_cast<double>(i) * static_cast<double>(d % 5 + 1));
      in.q.data<float>()[i * kDim + d] = x.data<float>()[d] + static_cast<float>(0.7 * drift);
      in.v.data<float>()[i * kDim + d] = y.data<float>()[d];
    }
  }
  in.k = in.q.clone();
  in.shared = in.q.clone();
  for (std::int64_t i = 0; i < length; ++i) {
    float* row = in.shared.data<float>() + i * kDim;
    double square = 0;
    for (std::int64_t d = 0; d < kDim; ++d) square += static_cast<double>(row[d]) * static_cast<double>(row[d]);
    for (std::int64_t d = 0; d < kDim; ++d) row[d] = static_cast<float>(row[d] / std::sqrt(square));
  }
  return in;
}

double relative_error(const View& got, const View& exact) {
  const std::vector<double> a = doubles_of(got), b = doubles_of(exact);
  double difference = 0, size = 0;
  for (std::size_t n = 0; n < a.size(); ++n) {
    difference += (a[n] - b[n]) * (a[n] - b[n]);
    size += b[n] * b[n];
  }
  return std::sqrt(difference / size);
}

std::int64_t pairs_seen(std::int64_t L, const Mask& mask) {
  const Tensor zero(DType::f32, {1, 1, L, 1});
  const AttentionResult r = attention(zero, zero, zero, {.mask = mask}, {.weights = true});
  std::int64_t seen = 0;
  for (std::int64_t n = 0; n < r.weights.size(); ++n) seen += r.weights.data<float>()[n] > 0 ? 1 : 0;
  return seen;
}

// K and V in blocks that arrive one after the other, as from the ring's neighbours, merged by their log-sum-exps.
Tensor by_blocks(const Inputs& in, std::int64_t blocks) {
  const std::int64_t L = in.q.shape()[2];
  std::vector<double> sums(static_cast<std::size_t>(L * kDim)), weight(static_cast<std::size_t>(L)),
      most(static_cast<std::size_t>(L), -1e300);
  for (std::int64_t n = 0; n < blocks; ++n) {
    const std::int64_t first = n * L / blocks, count = (n + 1) * L / blocks - first;
    // Query i stands at key i - first of this block: those before it see nothing of it.
    const AttentionResult r = attention(in.q, slice(in.k, 2, first, count), slice(in.v, 2, first, count),
                                        {.mask = causal(Diagonal::at({-first}))}, {.lse = true});
    for (std::int64_t i = first; i < L; ++i) {
      const auto row = static_cast<std::size_t>(i);
      const auto lse = static_cast<double>(r.lse.data<float>()[i]);
      const double top = std::max(most[row], lse), old = std::exp(most[row] - top), now = std::exp(lse - top);
      most[row] = top;
      weight[row] = weight[row] * old + now;
      for (std::int64_t d = 0; d < kDim; ++d) {
        double& sum = sums[row * kDim + static_cast<std::size_t>(d)];
        sum = sum * old + now * static_cast<double>(r.out.data<float>()[i * kDim + d]);
      }
    }
  }
  Tensor out(DType::f32, in.q.shape());
  for (std::int64_t n = 0; n < out.size(); ++n)
    out.data<float>()[n] =
        static_cast<float>(sums[static_cast<std::size_t>(n)] / weight[static_cast<std::size_t>(n / kDim)]);
  return out;
}

struct Family {
  Results& results;
  const Inputs& in;
  Tensor exact, full;  // causal, and without a mask
  Table table;

  void row(const char* key, Text name, Text seen, const char* cost, double error, Text wrong) {
    table.rows.push_back({std::move(name), std::move(seen), same("{}", cost), number_text(error, 4), std::move(wrong)});
    results.put(std::string(key) + "_error", error);
  }
  void masked(const char* key, Text name, const Mask& mask, const char* cost, Text wrong) {
    const std::int64_t L = in.q.shape()[2];
    const double seen = static_cast<double>(pairs_seen(L, mask)) / static_cast<double>(pairs_seen(L, causal()));
    const AttentionResult r = attention(in.q, in.k, in.v, {.mask = mask});
    row(key, std::move(name), same("{:.0f} %", 100 * seen), cost, relative_error(r.out, exact), std::move(wrong));
    results.put(std::string(key) + "_seen", seen);
  }
};

void sparse_ones(Family& f, std::int64_t L) {
  const auto root = std::max<std::int64_t>(2, std::llround(std::sqrt(static_cast<double>(L))));
  f.masked("window", say("window of {}", "窗口 {}", root), causal() & window(root - 1, 0), "L·w",
           say("anything further back", "看不到更早的内容"));
  f.masked("strided", say("Sparse Transformer, strided {}", "Sparse Transformer，跨步 {}", root), strided(root), "L·√L",
           say("what lies between the steps", "看不到两步之间的内容"));
  f.masked("longformer", say("Longformer, {} and 2 global", "Longformer，{} 加 2 个全局", root),
           longformer(root - 1, 1, {0, 1}) & causal(), "L·w",
           say("far words that are not global", "看不到远处的非全局词"));
  f.masked("blockwise_sparse", say("local blocks of {}", "局部块 {}", root), causal() & chunks(root), "L·w",
           say("the block before", "看不到前一块"));
}

void others(Family& f, std::int64_t L) {
  const Inputs& in = f.in;
  Tensor out(DType::f32, in.q.shape());
  linear_attention(in.q, in.k, in.v, out);
  f.row("linear", say("linear attention, elu + 1", "线性注意力，elu + 1"), say("all, compressed", "全部（压缩过）"),
        "L·d²", relative_error(out, f.exact), say("sharp attention: it blurs", "做不到集中的注意力：会变模糊"));
  const std::int64_t rank = std::max<std::int64_t>(2, L / 8);
  const Tensor e = random_tensor({1, 1, rank, L}, 77, 1 / std::sqrt(static_cast<double>(L)));
  linformer(in.q, in.k, in.v, e, std::nullopt, out);
  f.row("linformer", say("Linformer, rank {}, untrained", "Linformer，秩 {}，未训练", rank),
        say("all, compressed", "全部（压缩过）"), "L·r", relative_error(out, f.full),
        say("causal order; single words", "做不了因果；分不清单个词"));
  const ReformerOptions reformer_options{.rounds = 4, .chunk = 16, .causal = true};
  reformer(in.q, in.v, out, reformer_options);
  Tensor met(DType::f32, in.q.shape());
  attention(in.q, in.shared, in.v, met, {.mask = causal(Diagonal::at({-1}))});
  f.row("reformer", say("Reformer, 4 rounds", "Reformer，4 轮哈希"),
        say("{:.0f} % of the weight", "{:.0f} % 的权重", 100 * reformer_recall(in.q, reformer_options)), "L·log L",
        relative_error(slice(out, 2, 1, L - 1), slice(met, 2, 1, L - 1)),
        say("pairs that no hash brought together", "哈希没撞到一起的词对"));
  Tensor span(DType::f32, {1, 1, 1, 1});
  span.data<float>()[0] = static_cast<float>(L / 4);
  adaptive_span(in.q, in.k, in.v, span, out, {.ramp = 8});
  const Mask reach = causal() & window(L / 4 + 7, 0);  // the span and its ramp
  f.row(
      "span", say("adaptive span of {}", "自适应跨度 {}", L / 4),
      same("{:.0f} %", 100 * static_cast<double>(pairs_seen(L, reach)) / static_cast<double>(pairs_seen(L, causal()))),
      "L·span", relative_error(out, f.exact), say("what lies beyond the learnt span", "超出学到的跨度的内容"));
  f.row("ring", say("ring / blockwise, 4 blocks", "环形／分块，4 块"), same("100 %"), "L²",
        relative_error(by_blocks(in, 4), f.exact),
        say("nothing: exact, spread over machines", "没有损失：精确，只是分到多台机器"));
}

void latent_part(Results& results) {
  const std::int64_t W = 128, H = 8, D = 16;
  LatentAttention latent({.width = W, .heads = H, .kv_rank = 32, .nope_dim = D, .rope_dim = 8, .value_dim = D});
  latent.initialise(1);
  const Tensor x = random_tensor({1, 1, 24, W}, 9);
  LatentCache cache(latent.config(), 1, 24);
  const Tensor full = latent.forward(x, {.mask = causal()});
  double worst = 0;
  for (std::int64_t i = 0; i < 24; ++i)
    worst = largest_of({worst, largest_difference(latent.step(slice(x, 2, i, 1), cache), slice(full, 2, i, 1))});
  results.put("mla_step_difference", worst / largest(full));
  results.put("mla_bytes", latent.bytes_per_token());
  results.put("mla_expanded_bytes", latent.expanded_bytes_per_token());
  results.add(
      say("MLA (multi-head latent attention): a token takes {} bytes of cache instead of {}; decoding from the cache "
          "differs "
          "from the full pass by {:.0e}.",
          "MLA（多头潜在注意力）：每个词元的缓存是 {} 字节，而不是 {} 字节；用缓存解码与整段前向相差 {:.0e}。",
          latent.bytes_per_token(), latent.expanded_bytes_per_token(), worst / largest(full)));
}

Results measure(const Arguments& a, const Progress& progress) {
  Results results;
  const std::int64_t L = a["length"];
  const Inputs in = inputs_of(a.words("text"), L);
  Family f{results,
           in,
           attention(in.q, in.k, in.v, {.mask = causal()}).out,
           attention(in.q, in.k, in.v).out,
           {say("{} words. \"Seen\": the share of the pairs of causal attention. Error: of the output, against exact "
                "attention over the same vectors.",
                "{} 个词。“看到”：占因果注意力全部词对的比例。误差：输出相对于同样向量上的精确注意力。", L),
            {say("attention", "注意力"), say("sees", "看到"), say("cost", "代价"), say("error", "误差"),
             say("what it misses", "漏掉什么")},
            {}}};
  f.masked("exact", say("exact, causal", "精确，因果"), causal(), "L²", say("nothing", "无"));
  sparse_ones(f, L);
  progress(0.5);
  others(f, L);
  results.add(std::move(f.table));
  latent_part(results);
  return results;
}

std::vector<Conclusion> judge(const Numbers& n) {
  std::vector<Conclusion> list;
  list.push_back(conclude(
      "ring_is_exact", n.at("ring_error") < 1e-5 && n.at("exact_error") < 1e-6,
      say("blockwise and ring attention are exact (error {:.0e}): keys may come block by block, and what each block "
          "gives is merged.",
          "分块与环形注意力是精确的（误差 {:.0e}）：键可以一块一块来，再把各块的结果合并。", n.at("ring_error")),
      say("blocks merged gave an error of {:.2g}.", "分块合并的误差是 {:.2g}。", n.at("ring_error"))));
  const double least = smallest_of(
      {n.at("window_error"), n.at("strided_error"), n.at("longformer_error"), n.at("blockwise_sparse_error")});
  const double seen =
      largest_of({n.at("window_seen"), n.at("strided_seen"), n.at("longformer_seen"), n.at("blockwise_sparse_seen")});
  list.push_back(conclude("sparse_ones_miss_something", least > 1e-3 && seen < 0.9,
                          say("every sparse pattern sees less ({:.0f} % of the pairs at most) and gives another "
                              "output, by {:.0f} % at least: "
                              "on weights that were not trained for it none of them is free.",
                              "每种稀疏模式都看得更少（最多 {:.0f} % 的词对），输出至少差 {:.0f} "
                              "%：没有为它训练过的权重，换上任何一种都有代价。",
                              100 * seen, 100 * least),
                          say("a sparse pattern saw {:.0f} % of the pairs and was off by {:.2g} only.",
                              "有一种稀疏模式看到了 {:.0f} % 的词对，误差只有 {:.2g}。", 100 * seen, least)));
  list.push_back(conclude("compressed_ones_are_other_functions",
                          n.at("linear_error") > 0.05 && n.at("linformer_error") > 0.05,
                          say("linear attention (off by {:.0f} %) and an untrained Linformer ({:.0f} %) are other "
                              "functions, not cheaper ways to "
                              "the same one: they have to be trained as what they are.",
                              "线性注意力（差 {:.0f} %）和未训练的 Linformer（差 {:.0f} "
                              "%）是另外的函数，而不是同一结果的便宜算法：必须按它们自己的"
                              "样子训练。",
                              100 * n.at("linear_error"), 100 * n.at("linformer_error")),
                          say("linear attention is off by {:.2g}, Linformer by {:.2g}: one of them came close here.",
                              "线性注意力差 {:.2g}，Linformer 差 {:.2g}：这里有一个很接近。", n.at("linear_error"),
                              n.at("linformer_error"))));
  list.push_back(conclude("mla_saves_cache",
                          n.at("mla_bytes") < 0.5 * n.at("mla_expanded_bytes") && n.at("mla_step_difference") < 1e-4,
                          say("MLA keeps {:.0f} bytes a token where keys and values of all heads would take {:.0f}, "
                              "and decodes to the same "
                              "result.",
                              "MLA 每个词元只存 {:.0f} 字节，而所有头的键和值要 {:.0f} 字节，解码结果相同。",
                              n.at("mla_bytes"), n.at("mla_expanded_bytes")),
                          say("MLA keeps {:.0f} bytes of {:.0f} and decodes with an error of {:.2g}.",
                              "MLA 存 {:.0f} 字节（全部为 {:.0f}），解码误差 {:.2g}。", n.at("mla_bytes"),
                              n.at("mla_expanded_bytes"), n.at("mla_step_difference"))));
  return list;
}

}  // namespace

Lab family_lab() {
  return {
      .name = "family",
      .title = say("The family of attentions", "注意力大家族"),
      .question =
          say("Sparse, Longformer, blockwise, linear, Linformer, Reformer, ring, adaptive span, MLA: what does each "
              "see, what does it cost, and what does it get wrong?",
              "稀疏、Longformer、分块、线性、Linformer、Reformer、环形、自适应跨度、MLA：各自看到什么、代价多少、会错在"
              "哪里？"),
      .lesson = say("They are listed side by side as \"efficient attention\", as if all computed the same.",
                    "它们常被并列称为“高效注意力”，好像算的都是同一个东西。"),
      .guess = say("Which of them are exact? Which only skip pairs, and which replace softmax by something else?",
                   "哪些是精确的？哪些只是跳过一部分词对？哪些把 softmax 换成了别的东西？"),
      .why = {say(
          "Three kinds: exact ones that only order the work differently (Flash, blockwise, ring); masks that leave "
          "out pairs (window, strided, Longformer, span; Reformer chooses them by a hash); and other functions "
          "(linear attention's kernel, Linformer's projection of the length). MLA changes how keys and values "
          "are made, and then attends exactly.",
          "分三类：精确的，只是换个顺序算（Flash、分块、环形）；掩码类，漏掉一部分词对（窗口、跨步、Longformer、跨度；"
          "Reformer 用哈希来挑）；换成别的函数的（线性注意力的核、Linformer 沿长度的投影）。MLA "
          "改变的是键和值的生成方式，"
          "之后的注意力是精确的。")},
      .seconds = 2,
      .minutes = 10,
      .parameters = {{"length", 256, 32, 2048, 64,
                      say("words: the text is repeated up to there", "词数：文本会重复到这么长")},
                     {"text", 0, 0, 0, 0, say("the text", "文本"), true,
                      "the cat sat on the mat and the dog lay by the door while rain fell on the old roof and the cat "
                      "dreamt of the sea"}},
      .measure = measure,
      .judge = judge};
}

}  // namespace attend::labs
