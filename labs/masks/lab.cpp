// Lab: masks: causal right and inverted, what a wrong one leaks, padding, batches, and the two alignments.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "attend/attention.hpp"
#include "base/random.hpp"
#include "labs/registry.hpp"
#include "labs/tiny_model.hpp"
#include "labs/tools.hpp"

namespace attend::labs {
namespace {

constexpr std::int64_t kTokens = 8;  // of the language that nobody can predict

Mask inverted() {  // each token sees the future alone: the lesson's mask
  return except(causal());
}

// The weights that a mask leaves when all scores are equal: 1 / (keys seen), NaN where hidden.
Rows visible(std::int64_t M, std::int64_t N, const Mask& mask) {
  const Tensor q(DType::f32, {1, 1, M, 4}), k(DType::f32, {1, 1, N, 4});
  const AttentionResult r = attention(q, k, k, {.mask = mask}, {.weights = true});
  Rows rows = rows_of(r.weights);
  for (auto& row : rows)
    for (double& w : row)
      if (w == 0) w = std::nan("");
  return rows;
}

std::int64_t seen_in_row(const Rows& rows, std::size_t i) {
  return std::count_if(rows[i].begin(), rows[i].end(), [](double w) { return !std::isnan(w); });
}

// Row i of softmax over scores with hidden ones at -1e9, as the lesson computes it.
std::vector<double> lesson_row(const std::vector<double>& scores, std::size_t i) {
  std::vector<double> row;
  for (std::size_t j = 0; j < scores.size(); ++j)
    row.push_back(static_cast<double>(j > i ? static_cast<float>(scores[j]) : static_cast<float>(scores[j]) - 1e9F));
  return softmax_of(row);
}

// How far outputs of earlier tokens move when only the last one changes.
double leak(const Mask& mask, std::int64_t L) {
  const std::int64_t D = 16;
  const Tensor q = random_tensor({1, 2, L, D}, 1), k = random_tensor({1, 2, L, D}, 2),
               v = random_tensor({1, 2, L, D}, 3);
  Tensor k2 = k.clone(), v2 = v.clone();
  for (std::int64_t h = 0; h < 2; ++h)
    for (std::int64_t d = 0; d < D; ++d) {
      k2.data<float>()[(h * L + L - 1) * D + d] += 3;
      v2.data<float>()[(h * L + L - 1) * D + d] += 3;
    }
  const AttentionResult a = attention(q, k, v, {.mask = mask}), b = attention(q, k2, v2, {.mask = mask});
  return largest_difference(slice(a.out, 2, 0, L - 1), slice(b.out, 2, 0, L - 1));
}

// Random tokens, each to be predicted from those before it: nobody can, unless the answer leaks.
TinyBatch coin_flips(std::int64_t batch, std::int64_t L, std::uint64_t seed) {
  TinyBatch b{batch, {}, {}};
  for (std::int64_t n = 0; n < batch * L; ++n)
    b.tokens.push_back(static_cast<std::int64_t>(uniform(seed, static_cast<std::uint64_t>(n)) * kTokens));
  for (std::int64_t n = 0; n < batch * L; ++n)
    b.targets.push_back(n % L == L - 1 ? kNoTarget : b.tokens[static_cast<std::size_t>(n + 1)]);
  return b;
}

double trained_loss(const Mask& mask, std::int64_t steps, const Progress& progress, double from) {
  TinyShape shape{.vocabulary = kTokens, .width = 32, .layers = 1, .heads = 2};
  shape.options.mask = mask;
  TinyModel model(shape);
  for (std::int64_t step = 1; step <= steps; ++step) {
    (void)model.train(coin_flips(16, 16, static_cast<std::uint64_t>(step)), 5e-3);
    progress(from + 0.45 * static_cast<double>(step) / static_cast<double>(steps));
  }
  return model.loss(coin_flips(64, 16, 987654));
}

void padding_part(Results& results) {
  const std::int64_t L = 6, D = 8;
  const std::int64_t lengths[] = {6, 4, 2};
  const Tensor q = random_tensor({3, 2, L, D}, 11), k = random_tensor({3, 2, L, D}, 12),
               v = random_tensor({3, 2, L, D}, 13);
  const AttentionResult both = attention(q, k, v, {.mask = causal() & padding({6, 4, 2})});
  const AttentionResult only_causal = attention(q, k, v, {.mask = causal()});
  const AttentionResult only_padding = attention(q, k, v, {.mask = padding({6, 4, 2})});
  const AttentionResult unpadded = attention(q, k, v);
  double worst = 0, without = 0, causal_alone = 0;
  bool bits = true;
  for (std::int64_t b = 0; b < 3; ++b) {
    const auto cut = [&](View view) { return slice(slice(view, 0, b, 1), 2, 0, lengths[b]); };
    const AttentionResult alone = attention(cut(q), cut(k), cut(v), {.mask = causal()});
    worst = largest_of({worst, largest_difference(alone.out, cut(both.out))});
    bits = bits && same_bits(alone.out, cut(both.out));
    without = largest_of({without, largest_difference(cut(only_padding.out), cut(unpadded.out))});
    causal_alone = largest_of({causal_alone, largest_difference(cut(only_causal.out), cut(both.out))});
  }
  results.put("padded_batch_difference", worst);
  results.put("padded_batch_bits", bits ? 1 : 0);
  results.put("no_padding_mask_difference", without);
  results.put("causal_alone_difference", causal_alone);
  results.add(
      say("Three texts of 6, 4 and 2 tokens in one batch, padded on the right. Causal & padding: the largest "
          "difference from each text run alone is {:.0e}. Leaving out the padding mask moves the outputs of real "
          "tokens by {:.2f} where there is no causal mask, and by {:.0e} where there is one.",
          "长度为 6、4、2 的三段文本放进一个批次，在右侧填充。因果掩码与填充掩码同时使用：与单独运行每段文本的最大差是 "
          "{:.0e}。去掉填充掩码，真实词元的输出在没有因果掩码时变动 {:.2f}，有因果掩码时变动 {:.0e}。",
          worst, without, causal_alone));
}

void alignment_part(Results& results) {
  const std::int64_t M = 3, N = 7;
  const Rows first = visible(M, N, causal(Align::first_key)), last = visible(M, N, causal(Align::last_key));
  results.add(matrix("first_key",
                     say("3 queries, 7 keys: aligned to the first key (PyTorch's is_causal)",
                         "3 个查询、7 个键：对齐到第一个键（PyTorch 的 is_causal）"),
                     first));
  results.add(
      matrix("last_key", say("the same aligned to the last key (a KV cache)", "对齐到最后一个键（KV 缓存）"), last));
  results.put("first_seen_first_key", seen_in_row(first, 0));
  results.put("first_seen_last_key", seen_in_row(last, 0));
  // The last M rows of a causal pass over all N tokens are what a decoder with a cache has to give.
  const Tensor q = random_tensor({1, 1, N, 8}, 21), k = random_tensor({1, 1, N, 8}, 22),
               v = random_tensor({1, 1, N, 8}, 23);
  const AttentionResult whole = attention(q, k, v, {.mask = causal()});
  const View tail = slice(q, 2, N - M, M), wanted = slice(whole.out, 2, N - M, M);
  results.put("last_key_difference", largest_difference(attention(tail, k, v, {.mask = causal()}).out, wanted));
  results.put("first_key_difference",
              largest_difference(attention(tail, k, v, {.mask = causal(Align::first_key)}).out, wanted));
}

Results measure(const Arguments& a, const Progress& progress) {
  Results results;
  const std::int64_t L = a["length"];
  results.add(matrix("causal",
                     say("A causal mask: each token sees itself and what came before (equal scores)",
                         "因果掩码：每个词元看到自己和之前的词元（得分全相等）"),
                     visible(L, L, causal())));
  const std::vector<double> scores = doubles_of(random_tensor({1, 1, 1, L}, 4));
  Rows lesson;
  for (std::int64_t i = 0; i < L; ++i) lesson.push_back(lesson_row(scores, static_cast<std::size_t>(i)));
  results.add(matrix(
      "inverted",
      say("The same mask inverted, hidden ones at −1e9 as the lesson has it", "掩码写反了，像那份教程一样用 −1e9 填充"),
      lesson));
  const std::vector<double>& last = lesson.back();
  results.put("inverted_last_row_spread",
              *std::max_element(last.begin(), last.end()) - *std::min_element(last.begin(), last.end()));
  double past = 0;  // the most weight that a row but the last gives to itself or the past
  for (std::size_t i = 0; i + 1 < lesson.size(); ++i)
    for (std::size_t j = 0; j <= i; ++j) past = largest_of({past, lesson[i][j]});
  results.put("inverted_past_weight", past);
  results.put("causal_leak", leak(causal(), L));
  results.put("inverted_leak", leak(inverted(), L));
  const double blind = std::log(static_cast<double>(kTokens));
  results.put("blind_loss", blind);
  results.put("causal_loss", trained_loss(causal(), a["steps"], progress, 0.1));
  results.put("inverted_loss", trained_loss(inverted(), a["steps"], progress, 0.55));
  results.add(
      Table{say("Next-token prediction on random tokens, where nobody can do better than {:.3f} without seeing the "
                "answer; {} training steps",
                "在随机词元上预测下一个：不偷看答案，谁也不可能好于 {:.3f}；训练 {} 步", blind, a["steps"]),
            {say("mask", "掩码"), say("earlier outputs move by", "之前的输出变动"), say("loss", "损失")},
            {{say("causal", "因果"), number_text(results.numbers.at("causal_leak"), 4),
              number_text(results.numbers.at("causal_loss"), 3)},
             {say("inverted", "写反"), number_text(results.numbers.at("inverted_leak"), 4),
              number_text(results.numbers.at("inverted_loss"), 3)}}});
  padding_part(results);
  alignment_part(results);
  return results;
}

std::vector<Conclusion> judge(const Numbers& n) {
  std::vector<Conclusion> list;
  list.push_back(
      conclude("causal_leaks_nothing", n.at("causal_leak") == 0,
               say("under the causal mask a change of the last token moves no earlier output, not by one bit.",
                   "因果掩码下，改动最后一个词元，之前的输出一个比特都不变。"),
               say("under the causal mask earlier outputs moved by {:.2g}: it leaks.",
                   "因果掩码下，之前的输出变动了 {:.2g}：有泄漏。", n.at("causal_leak"))));
  list.push_back(conclude(
      "inverted_sees_the_future", n.at("inverted_leak") > 1e-3 && n.at("inverted_past_weight") < 1e-6,
      say("under the inverted mask each token but the last sees only the future: no weight on itself or the past, and "
          "a change of the last token moves earlier outputs by {:.2f}.",
          "掩码写反后，除最后一个以外，每个词元只看到未来：对自己和过去毫无权重，改动最后一个词元会让之前的输出变动 "
          "{:.2f}。",
          n.at("inverted_leak")),
      say("under the inverted mask earlier outputs moved by {:.2g}, and up to {:.2g} of a row's weight was on the "
          "past.",
          "掩码写反后，之前的输出变动 {:.2g}，一行中最多有 {:.2g} 的权重在过去。", n.at("inverted_leak"),
          n.at("inverted_past_weight"))));
  list.push_back(conclude(
      "inverted_last_row_is_uniform", n.at("inverted_last_row_spread") < 1e-6,
      say("and its last row, which sees nothing, comes out uniform under −1e9: a sign to look for in printed masks.",
          "而最后一行什么都看不到，用 −1e9 时变成了均匀分布：看到别人打印的掩码时，要留意这个迹象。"),
      say("its last row spreads by {:.2g}: not uniform.", "最后一行的差异为 {:.2g}：不是均匀的。",
          n.at("inverted_last_row_spread"))));
  list.push_back(conclude(
      "the_leak_is_learnt", n.at("inverted_loss") < 0.5 * n.at("blind_loss"),
      say("training finds the leak: the loss on unpredictable tokens falls to {:.3f}, while {:.3f} is the best an "
          "honest model can do. A loss too good to be true is a mask to be checked.",
          "训练会发现这个漏洞：在无法预测的词元上，损失降到了 {:.3f}，而不偷看的模型最好也只能到 "
          "{:.3f}。损失好得不像真的，"
          "就该去查掩码。",
          n.at("inverted_loss"), n.at("blind_loss")),
      say("with the inverted mask the loss is {:.3f}, blind guessing is {:.3f}: the leak was not learnt on this run.",
          "掩码写反时损失是 {:.3f}，瞎猜是 {:.3f}：这次没有学会利用漏洞。", n.at("inverted_loss"),
          n.at("blind_loss"))));
  list.push_back(
      conclude("honest_model_stays_blind", n.at("causal_loss") > 0.95 * n.at("blind_loss"),
               say("the causal model stays at {:.3f}: it cannot cheat.", "因果模型停在 {:.3f}：它作不了弊。",
                   n.at("causal_loss")),
               say("the causal model reached {:.3f}, below {:.3f}: something leaks.",
                   "因果模型达到了 {:.3f}，低于 {:.3f}：有东西泄漏了。", n.at("causal_loss"), n.at("blind_loss"))));
  list.push_back(conclude(
      "padding_is_invisible", n.at("padded_batch_bits") != 0 && n.at("no_padding_mask_difference") > 1e-3,
      say("with causal & padding every text of a batch gets the bits it gets alone; where tokens see both ways, "
          "leaving out the padding mask moves them by {:.2f}.",
          "同时使用因果与填充掩码时，批次里每段文本的结果与单独运行逐位相同；在双向注意力里不加填充掩码，输出会变动 "
          "{:.2f}。",
          n.at("no_padding_mask_difference")),
      say("texts in a batch differ from texts alone by {:.2g}; leaving out the padding mask moves outputs by {:.2g} "
          "where tokens see both ways.",
          "批次中的文本与单独运行相差 {:.2g}；在双向注意力里不加填充掩码时输出变动 {:.2g}。",
          n.at("padded_batch_difference"), n.at("no_padding_mask_difference"))));
  list.push_back(conclude(
      "causal_hides_right_padding", n.at("causal_alone_difference") == 0,
      say("padding on the right lies in every real token's future, so the causal mask alone already hides it: there "
          "the padding mask changes no real token, not by one bit. Padding on the left is another matter.",
          "右侧的填充对每个真实词元来说都是“未来”，单靠因果掩码就已经屏蔽了它：这时填充掩码不会改变任何真实词元，一个"
          "比特都不变。填充在左侧就是另一回事了。"),
      say("under the causal mask, leaving out the padding mask moved real tokens by {:.2g}.",
          "有因果掩码时，去掉填充掩码使真实词元变动了 {:.2g}。", n.at("causal_alone_difference"))));
  list.push_back(conclude(
      "alignment_matters", n.at("last_key_difference") < 1e-6 && n.at("first_key_difference") > 1e-3,
      say("when M ≠ N the two alignments differ (the first of 3 queries sees {:.0f} or {:.0f} of 7 keys), and only "
          "last-key gives what a decoder with a cache needs (off by {:.0e}; first-key by {:.2f}).",
          "M ≠ N 时两种对齐方式不同（3 个查询中的第一个能看到 7 个键中的 {:.0f} 个或 {:.0f} 个），只有对齐到最后一个键"
          "才是带缓存的解码器需要的（偏差 {:.0e}；对齐到第一个键偏差 {:.2f}）。",
          n.at("first_seen_first_key"), n.at("first_seen_last_key"), n.at("last_key_difference"),
          n.at("first_key_difference")),
      say("last-key is off by {:.2g}, first-key by {:.2g}.", "对齐到最后一个键偏差 {:.2g}，对齐到第一个键偏差 {:.2g}。",
          n.at("last_key_difference"), n.at("first_key_difference"))));
  return list;
}

}  // namespace

Lab masks_lab() {
  return {
      .name = "masks",
      .title = say("Masks, right and wrong", "掩码：对的和错的"),
      .question = say("Which keys may a query see, and what happens when the mask is the wrong way round?",
                      "一个查询可以看到哪些键？掩码写反了会怎样？"),
      .lesson = say("One lesson prints a causal mask that is inverted: each token sees only the future, and the last "
                    "row is uniform. It looks like a triangle, too.",
                    "有一份教程打印的因果掩码是反的：每个词元只看得到未来，最后一行是均匀的。它看上去也是个三角形。"),
      .guess = say("With the inverted mask, how low can the loss on purely random tokens fall? For 3 queries and 7 "
                   "keys, how many keys may the first query see?",
                   "掩码写反时，在纯随机词元上损失能降到多低？3 个查询、7 个键时，第一个查询能看到几个键？"),
      .why = {say(
          "A language model is asked for the next token at every place at once; the causal mask is all that "
          "keeps it from reading the answer. Padding hides keys of a batch, causal hides keys of the future, "
          "and a key is visible when both allow it. Where queries are the last M of N tokens, as in decoding, "
          "query i stands at key N − M + i, not at key i.",
          "语言模型在每个位置上同时预测下一个词元，防止它偷看答案的只有因果掩码。填充掩码屏蔽批次里补齐用的键，"
          "因果掩码屏蔽未来的键，两者都允许时才可见。解码时查询是 N 个词元中的最后 M 个，第 i 个查询对应的位置是"
          "键 N − M + i，而不是键 i。")},
      .seconds = 10,
      .minutes = 10,
      .parameters = {{"length", 6, 2, 16, 5, say("tokens of the drawn masks", "画出的掩码有几个词元")},
                     {"steps", 150, 1, 2000, 20, say("training steps", "训练步数")}},
      .measure = measure,
      .judge = judge};
}

}  // namespace attend::labs
