// Questions about attention itself: scores, softmax, scale, masks, order.
#include <limits>

#include "attend/attention.hpp"
#include "attend/softmax.hpp"
#include "labs/quiz/ask.hpp"
#include "labs/tools.hpp"

namespace attend::labs {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> softmax_by_engine(std::vector<float> x) {
  const MutableView view = view_of(x.data(), {1, 1, 1, static_cast<std::int64_t>(x.size())});
  softmax(view, view);
  return x;
}

// Weights of one query of ones over keys that are c, 0, 0, ... times ones.
double first_weight(std::int64_t keys, std::int64_t dim, float c, std::optional<double> scale) {
  Tensor q(DType::f32, {1, 1, 1, dim}), k(DType::f32, {1, 1, keys, dim});
  for (std::int64_t d = 0; d < dim; ++d) {
    q.data<float>()[d] = 1;
    k.data<float>()[d] = c;
  }
  return static_cast<double>(attention(q, k, k, {.scale = scale}, {.weights = true}).weights.data<float>()[0]);
}

double keys_seen(std::int64_t M, std::int64_t N, std::int64_t row, const Mask& mask) {
  const Tensor q(DType::f32, {1, 1, M, 1}), k(DType::f32, {1, 1, N, 1});
  const AttentionResult r = attention(q, k, k, {.mask = mask}, {.weights = true});
  double seen = 0;
  for (std::int64_t j = 0; j < N; ++j) seen += r.weights.data<float>()[row * N + j] > 0 ? 1 : 0;
  return seen;
}

double all_pairs(std::int64_t L, const Mask& mask) {
  double sum = 0;
  for (std::int64_t i = 0; i < L; ++i) sum += keys_seen(L, L, i, mask);
  return sum;
}

// The mean of values 1, 2, 3, ... that the last query of a causal pass with equal scores prints.
double causal_mean(std::int64_t L, const Mask& mask) {
  const Tensor q(DType::f32, {1, 1, L, 1});
  Tensor v(DType::f32, {1, 1, L, 1});
  for (std::int64_t n = 0; n < L; ++n) v.data<float>()[n] = static_cast<float>(n + 1);
  return static_cast<double>(attention(q, q, v, {.mask = mask}).out.data<float>()[L - 1]);
}

void about_softmax(std::vector<Question>& list) {
  list.push_back(choose(
      "qkv-roles", "by-hand", say("In the library analogy, what is the key?", "在图书馆的比喻里，键（key）是什么？"),
      {say("what you ask for", "你提出的问题"), say("the title on the spine", "书脊上的书名"),
       say("what the book says", "书的内容"), say("the librarian", "图书管理员")},
      1,
      say("The query is compared with keys; values are what is handed over.", "查询与键比较；值是真正交出来的内容。")));
  list.push_back(compute("row-sum", "by-hand",
                         say("What does each row of attention weights sum to?", "每一行注意力权重之和是多少？"),
                         static_cast<double>(softmax_by_engine({3, 1, 4})[0] + softmax_by_engine({3, 1, 4})[1] +
                                             softmax_by_engine({3, 1, 4})[2]),
                         1e-3, say("Softmax shares out one unit.", "softmax 分配的总量是 1。")));
  list.push_back(
      predict("softmax-zeros", "softmax",
              say("softmax of [0, 0, 0, 0]: what is each weight?", "softmax([0, 0, 0, 0])：每个权重是多少？"),
              static_cast<double>(softmax_by_engine({0, 0, 0, 0})[0]), 1e-3,
              say("Equal scores share equally.", "得分相等，就平均分配。")));
  list.push_back(predict("softmax-shift", "softmax",
                         say("softmax([1, 2, 3]) gives 0.665 for the last. What is the last weight of softmax([1001, "
                             "1002, 1003]) as this engine computes it (3 digits)?",
                             "softmax([1, 2, 3]) 最后一个是 0.665。本引擎计算 softmax([1001, 1002, "
                             "1003])，最后一个权重是多少（三位小数）？"),
                         static_cast<double>(softmax_by_engine({1001, 1002, 1003})[2]), 2e-3,
                         say("A constant added to all scores changes nothing.", "所有得分同加一个常数，结果不变。")));
  list.push_back(compute(
      "exp-overflow", "softmax",
      say("Up to which whole number is exp(x) finite in f32?", "f32 下，exp(x) 在 x 不超过哪个整数时还是有限的？"),
      [] {
        int n = 0;
        while (!std::isinf(std::exp(static_cast<float>(n + 1)))) ++n;
        return n;
      }(),
      0.5, say("f32 ends at 3.4e38, and ln of that is 88.7.", "f32 最大约 3.4e38，取对数是 88.7。")));
  const std::vector<float> hidden = softmax_by_engine({-kInfinity, -kInfinity});
  list.push_back(
      predict("masked-row", "softmax",
              say("A query may see no key at all. What does this engine give for every output number?",
                  "一个查询什么键都看不到，本引擎输出的每个数是多少？"),
              static_cast<double>(hidden[0] + hidden[1]), 1e-9,
              say("Zeros: nothing to mix, nothing leaks, no NaN.", "零：没有可混合的，也不会泄漏，没有 NaN。")));
  const float billion = 2.0F - 1e9F, other = 1.0F - 1e9F;
  list.push_back(
      choose_true("minus-billion", "softmax",
                  say("All keys of a row are hidden by adding −1e9 in f32. What do its weights become?",
                      "f32 下用加 −1e9 的办法屏蔽一行的所有键，权重会变成什么？"),
                  {say("zeros", "全零"), say("NaN", "NaN（非数）"), say("uniform", "均匀分布"),
                   say("the softmax of the scores", "得分本来的 softmax")},
                  {false, std::isnan(softmax_by_engine({billion, other})[0]), billion == other, billion != other},
                  say("f32 cannot hold 2 − 1e9 and 1 − 1e9 apart: all are equal, so all get the same weight.",
                      "f32 分不清 2 − 1e9 与 1 − 1e9：全都相等，于是平均分配。")));
  list.push_back(choose(
      "formula-nan", "softmax",
      say("Why does a row of −∞ give NaN by the formula?", "为什么整行 −∞ 按公式会得到 NaN？"),
      {say("exp(−∞) is NaN", "exp(−∞) 是 NaN"), say("−∞ − (−∞) has no value", "−∞ − (−∞) 没有意义"),
       say("the sum overflows", "求和溢出了"), say("it does not", "不会得到 NaN")},
      1, say("The maximum is −∞, and subtracting it from itself is undefined.", "最大值是 −∞，它减自己没有定义。")));
  list.push_back(choose("online", "softmax",
                        say("In online softmax a larger maximum m' appears. What happens to the sums so far?",
                            "在线 softmax 遇到更大的最大值 m'，已有的和怎么办？"),
                        {say("they are thrown away", "扔掉重算"), say("multiplied by exp(m − m')", "乘以 exp(m − m')"),
                         say("multiplied by exp(m' − m)", "乘以 exp(m' − m)"), say("nothing", "不变")},
                        1,
                        say("Each summand held exp(s − m); it is to become exp(s − m').",
                            "原来每项是 exp(s − m)，要变成 exp(s − m')。")));
  list.push_back(
      choose("convex", "by-hand",
             say("Can an output of attention be larger than every value it mixes (no dropout)?",
                 "注意力的输出会不会比它混合的所有值都大（不用 dropout）？"),
             {say("yes, if scores are large", "会，得分大时"), say("no: it is a weighted mean", "不会：它是加权平均"),
              say("only without √d", "只有不除 √d 时会"), say("only in training", "只有训练时会")},
             1, say("Weights are positive and sum to 1.", "权重为正，且和为 1。")));
  list.push_back(predict("two-keys", "by-hand",
                         say("Two keys score 0 and ln 3 (after scaling). What weight does the second get?",
                             "两个键的（缩放后）得分是 0 和 ln 3，第二个的权重是多少？"),
                         static_cast<double>(softmax_by_engine({0, std::log(3.0F)})[1]), 5e-3,
                         say("1 against 3: three quarters.", "1 比 3：四分之三。")));
}

void about_scale(std::vector<Question>& list) {
  list.push_back(compute("sd-512", "scale",
                         say("q and k are standard normal, d = 512. What is the standard deviation of q·k (1 digit)?",
                             "q、k 为标准正态，d = 512。q·k 的标准差是多少（一位小数）？"),
                         std::sqrt(512.0), 0.1,
                         say("Variances of 512 products add up: √512.", "512 个乘积的方差相加：√512。")));
  list.push_back(compute("var-scaled", "scale",
                         say("q and k are standard normal, d = 512. What is the variance of q·k / √d?",
                             "q、k 为标准正态，d = 512。q·k / √d 的方差是多少？"),
                         512.0 / 512.0, 0.01, say("d / (√d)² = 1.", "d / (√d)² = 1。")));
  list.push_back(compute_percent("outside-one", "scale",
                                 say("About what percentage of the scores lies beyond ±1 after ÷√d (taken as normal)?",
                                     "除以 √d 之后的得分（视为正态分布）大约有百分之几超出 ±1？"),
                                 100 * (1 - std::erf(1 / std::sqrt(2.0))), 2,
                                 say("Variance 1 is no range: 31.7 % lie beyond one deviation.",
                                     "方差为 1 不是范围：有 31.7 % 超出一个标准差。")));
  list.push_back(choose(
      "why-root", "scale", say("Why √d and not d?", "为什么除以 √d 而不是 d？"),
      {say("d would make the variance 1/d: weights nearly uniform", "除以 d 方差变成 1/d，权重几乎均匀"),
       say("√d is cheaper", "√d 更省计算"), say("d overflows", "d 会溢出"), say("there is no reason", "没有理由")},
      0,
      say("The deviation grows as √d, so √d brings it back to 1 for every d.",
          "标准差按 √d 增长，所以 √d 恰好把它拉回 1。")));
  list.push_back(choose(
      "why-not-raw", "scale",
      say("What do unscaled scores of a large head do to training?", "大的头若不缩放，对训练有什么影响？"),
      {say("softmax becomes nearly one-hot and its gradient nearly 0", "softmax 接近独热，梯度接近 0"),
       say("weights become uniform", "权重变得均匀"), say("memory grows", "内存增加"), say("nothing", "没有影响")},
      0, say("Where a weight is 0 or 1, p(1 − p) is 0.", "权重为 0 或 1 时，p(1 − p) 为 0。")));
  list.push_back(predict(
      "scaled-weight", "scale",
      say("d = 16: q is all ones, key 0 all 0.25·ln 3 (so q·k = 4·ln 3), three other keys are zeros. What weight does "
          "attention with the default scale print for key 0?",
          "d = 16：q 全为 1，键 0 全为 0.25·ln 3（所以 q·k = 4·ln 3），另外三个键为零。用默认缩放，注意力给键 0 "
          "的权重是多少？"),
      first_weight(4, 16, 0.25F * std::log(3.0F), {}), 5e-3,
      say("4·ln 3 / √16 = ln 3: 3 against 1 + 1 + 1, one half.", "4·ln 3 / √16 = ln 3：3 比 1 + 1 + 1，即二分之一。")));
  list.push_back(
      predict("unscaled-weight", "scale",
              say("d = 16: q is all ones, key 0 all 0.25·ln 3 (so q·k = 4·ln 3), three other keys are zeros. What "
                  "weight does attention with scale 1, so without ÷√d, print for key 0 (3 digits)?",
                  "d = 16：q 全为 1，键 0 全为 0.25·ln 3（所以 q·k = 4·ln 3），另外三个键为零。scale = 1（即不除 √d）"
                  "时，注意力给键 0 的权重是多少（三位小数）？"),
              first_weight(4, 16, 0.25F * std::log(3.0F), 1.0), 3e-3,
              say("3⁴ = 81 against 3: 0.964.", "3⁴ = 81 比 3：0.964。")));
}

void about_masks(std::vector<Question>& list) {
  list.push_back(compute("causal-pairs", "masks",
                         say("How many query–key pairs does a causal mask leave for 6 tokens?",
                             "6 个词元时，因果掩码留下多少个查询–键对？"),
                         all_pairs(6, causal()), 0.1, say("6·7/2.", "6·7/2。")));
  list.push_back(
      compute("causal-last", "masks",
              say("3 queries, 7 keys, aligned to the last key: how many keys does the first query see?",
                  "3 个查询、7 个键，对齐到最后一个键：第一个查询能看到几个键？"),
              keys_seen(3, 7, 0, causal()), 0.1,
              say("It stands at key 4 (counted from 0): 7 − 3 + 1 = 5.", "它对应 4 号键（从 0 数）：7 − 3 + 1 = 5。")));
  list.push_back(compute(
      "causal-first", "masks",
      say("3 queries, 7 keys, aligned to the first key (PyTorch's is_causal): how many keys does the first query see?",
          "3 个查询、7 个键，对齐到第一个键（PyTorch 的 is_causal）：第一个查询能看到几个键？"),
      keys_seen(3, 7, 0, causal(Align::first_key)), 0.1, say("Query 0 stands at key 0.", "查询 0 对应键 0。")));
  list.push_back(choose_number(
      "which-align", "masks",
      say("A decoder has 7 tokens cached, its own among them, and asks with one query. How many keys must it see?",
          "解码器缓存了 7 个词元（含自己），用一个查询来问。它应看到几个键？"),
      {1, 6, 7, 8}, keys_seen(1, 7, 0, causal()),
      say("All of them: aligned to the last key. Aligned to the first it would see one.",
          "全部：对齐最后一个键。若对齐第一个键，就只看到一个。")));
  list.push_back(predict("window-seen", "masks",
                         say("causal & window(2, 0): how many keys does the tenth token see?",
                             "causal & window(2, 0)：第十个词元能看到几个键？"),
                         keys_seen(10, 10, 9, causal() & window(2, 0)), 0.1,
                         say("Its own and the two before.", "自己和前面两个。")));
  list.push_back(
      choose("inverted-mask", "masks",
             say("Weights printed under a \"causal\" mask are 0 on and below the diagonal, but for the last row, which "
                 "is uniform. What is wrong?",
                 "打印出来的“因果”注意力权重，对角线及以下都是 0，只有最后一行是均匀的。问题出在哪里？"),
             {say("nothing", "没有问题"), say("it is inverted: tokens see only the future", "写反了：词元只看得到未来"),
              say("softmax over the wrong axis", "softmax 的轴错了"), say("√d is missing", "漏了 √d")},
             1,
             say("The last token has no future, so its row has nothing to see, and −1e9 makes it uniform.",
                 "最后一个词元没有未来，那一行什么都看不到，−1e9 使它变成均匀。")));
  list.push_back(
      choose("leak-sign", "masks",
             say("Your training loss falls far below what seems possible. What do you check first?",
                 "训练损失低得不可思议，先查什么？"),
             {say("the learning rate", "学习率"),
              say("whether the mask lets tokens see their answer", "掩码是否让词元看到了答案"),
              say("the tokenizer", "分词器"), say("the batch size", "批量大小")},
             1, say("An inverted or off-by-one mask shows the next token.", "写反或差一的掩码会露出下一个词元。")));
  list.push_back(predict("causal-mean", "masks",
                         say("Equal scores, values 1, 2, 3, 4, causal mask. What does the last token print?",
                             "得分全相等，值为 1、2、3、4，因果掩码。最后一个词元输出多少？"),
                         causal_mean(4, causal()), 1e-3, say("The mean of all four.", "四个数的平均。")));
  list.push_back(predict("window-mean", "masks",
                         say("Equal scores, values 1, 2, 3, 4, causal & window(1, 0). What does the last token print?",
                             "得分全相等，值为 1、2、3、4，掩码为 causal & window(1, 0)。最后一个词元输出多少？"),
                         causal_mean(4, causal() & window(1, 0)), 1e-3,
                         say("The mean of 3 and 4.", "3 和 4 的平均。")));
  list.push_back(choose(
      "equivariant", "order",
      say("Attention without positions and mask is permutation…", "没有位置、没有掩码的注意力对置换是……"),
      {say("invariant", "不变的"), say("equivariant", "等变的"), say("neither", "都不是"), say("both", "两者都是")}, 1,
      say("Shuffle the tokens and the outputs shuffle alike.", "打乱词元，输出跟着同样打乱。")));
  list.push_back(choose(
      "causal-order", "order",
      say("Attention with a causal mask, without positions, is permutation…", "有因果掩码、没有位置的注意力对置换是……"),
      {say("invariant", "不变的"), say("equivariant", "等变的"), say("neither", "都不是"), say("both", "两者都是")}, 2,
      say("What a token sees depends on its place: the mask itself tells about order.",
          "词元能看到什么取决于位置：掩码本身就带有顺序信息。")));
  list.push_back(choose("pooled", "order",
                        say("Which of these is permutation invariant (no positions, no mask)?",
                            "下面哪个是置换不变的（无位置、无掩码）？"),
                        {say("the output, row by row", "逐行的输出"), say("the mean of the outputs", "输出的平均"),
                         say("the first output", "第一个输出"), say("none", "都不是")},
                        1, say("The rows move, their mean does not.", "各行换位置，平均不变。")));
}

}  // namespace

std::vector<Question> basic_questions() {
  std::vector<Question> list;
  about_softmax(list);
  about_scale(list);
  about_masks(list);
  return list;
}

}  // namespace attend::labs
