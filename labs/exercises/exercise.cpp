// The exercises, their cases and their known mistakes.
#include "labs/exercises/exercise.hpp"

#include <cmath>
#include <limits>

#include "base/random.hpp"
#include "labs/exercises/answers.hpp"

namespace attend::labs {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

Array random_array(std::vector<std::int64_t> shape, std::uint64_t seed, double size = 1) {
  Array a{std::move(shape), {}, Kind::real};
  std::int64_t count = 1;
  for (const std::int64_t side : a.shape) count *= side;
  for (std::int64_t n = 0; n < count; ++n)
    a.data.push_back(static_cast<float>(size * normal(seed, static_cast<std::uint64_t>(n))));
  return a;
}

Array wholes(std::vector<float> values) {
  const auto count = static_cast<std::int64_t>(values.size());
  return {{count}, std::move(values), Kind::whole};
}

Array truths(std::int64_t rows, std::int64_t columns, const std::vector<float>& values) {
  return {{rows, columns}, values, Kind::truth};
}

Exercise softmax_exercise() {
  Exercise e{"softmax",
             "softmax",
             say("softmax(x): along the last axis. Large numbers must not overflow; a row of −inf gives zeros.",
                 "softmax(x)：沿最后一个轴计算。很大的数不能溢出；整行 −inf 输出全零。"),
             "softmax",
             {},
             {},
             answer_softmax};
  e.cases.push_back(
      {.what = say("small numbers, [3, 5]", "普通大小的数，[3, 5]"), .arrays = {{"x", random_array({3, 5}, 1)}}});
  e.cases.push_back({.what = say("numbers around 1000, [2, 4]", "1000 左右的数，[2, 4]"),
                     .arrays = {{"x", random_array({2, 4}, 2)}}});
  for (float& x : e.cases.back().arrays["x"].data) x += 1000;
  e.cases.push_back({.what = say("rows of very different size, [3, 3]", "各行大小悬殊，[3, 3]"),
                     .arrays = {{"x", random_array({3, 3}, 3)}}});
  for (std::size_t n = 0; n < 3; ++n) e.cases.back().arrays["x"].data[n] -= 2000;  // exp of it is 0 in float64 too
  e.cases.push_back(
      {.what = say("a row of −inf, [3, 3]", "有一行全是 −inf，[3, 3]"), .arrays = {{"x", random_array({3, 3}, 4)}}});
  for (std::size_t n = 3; n < 6; ++n) e.cases.back().arrays["x"].data[n] = -kInfinity;
  e.cases.push_back({.what = say("three axes, [2, 3, 4]", "三个轴，[2, 3, 4]"),
                     .arrays = {{"x", random_array({2, 3, 4}, 5)}},
                     .for_cpp = false});
  e.mistakes = {
      {"no_max",
       say("the maximum is not subtracted: exp overflows for large numbers. Subtract the row's maximum first.",
           "没有减去最大值：数一大 exp 就溢出。先减去这一行的最大值。")},
      {"nan_row", say("a row of −inf gives NaN (−inf − (−inf), or 0 / 0). Give zeros for such a row.",
                      "整行 −inf 时得到 NaN（−inf − (−inf)，或 0 / 0）。这样的行应输出全零。")},
      {"axis_0", say("softmax runs along the first axis. It belongs along the last one.",
                     "softmax 沿第一个轴做了，应沿最后一个轴。")},
      {"axis_before_last", say("softmax runs along the axis before the last. It belongs along the last one.",
                               "softmax 沿倒数第二个轴做了，应沿最后一个轴。")},
      {"flattened", say("softmax runs over all numbers at once: sums and maxima need axis=-1, keepdims=True.",
                        "对所有数一起做了 softmax：求最大值与求和要用 axis=-1, keepdims=True。")},
      {"global_max",
       say("the maximum of the whole array is subtracted: rows far below it underflow to 0 / 0. Use each row's own.",
           "减的是整个数组的最大值：远小于它的行会下溢成 0 / 0。应减各行自己的最大值。")},
      {"not_normalised", say("the exponentials are not divided by their sum.", "取 exp 之后没有除以它们的和。")},
      {"log_softmax", say("this is the logarithm of softmax.", "这是 softmax 的对数（log-softmax）。")},
      {"base_two", say("powers of 2 instead of e.", "底数用了 2，应为 e。")},
  };
  return e;
}

Exercise attention_exercise() {
  Exercise e{"scaled_dot_product_attention",
             "sdpa",
             say("scaled_dot_product_attention(q, k, v, mask=None): q [B, H, M, D], k [B, H, N, D], v [B, H, N, E], "
                 "mask [M, N] "
                 "with True where a query may look. A row that may look nowhere gives zeros.",
                 "scaled_dot_product_attention(q, k, v, mask=None)：q [B, H, M, D]，k [B, H, N, D]，v [B, H, N, "
                 "E]，mask [M, N]，True "
                 "表示可以看。哪里都不能看的行输出全零。"),
             "by-hand",
             {},
             {},
             answer_attention};
  const auto inputs = [](std::uint64_t seed, std::int64_t M, std::int64_t N, std::int64_t D, std::int64_t E) {
    return std::map<std::string, Array>{{"q", random_array({2, 2, M, D}, seed)},
                                        {"k", random_array({2, 2, N, D}, seed + 1)},
                                        {"v", random_array({2, 2, N, E}, seed + 2)}};
  };
  e.cases.push_back(
      {.what = say("no mask, 4 queries, 6 keys", "无掩码，4 个查询，6 个键"), .arrays = inputs(10, 4, 6, 3, 5)});
  e.cases.push_back(
      {.what = say("as many queries as keys, D = 8", "查询与键一样多，D = 8"), .arrays = inputs(20, 5, 5, 8, 8)});
  e.cases.push_back({.what = say("a causal mask", "因果掩码"), .arrays = inputs(30, 4, 4, 6, 6)});
  e.cases.back().arrays["mask"] = truths(4, 4, {1, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1});
  e.cases.push_back(
      {.what = say("a query that may look nowhere", "有一个查询哪里都不能看"), .arrays = inputs(40, 3, 4, 6, 6)});
  e.cases.back().arrays["mask"] = truths(3, 4, {1, 1, 0, 1, 0, 0, 0, 0, 0, 1, 1, 0});
  // Query i matches key i: exp of that score overflows in float64 too, with √d or without.
  e.cases.push_back({.what = say("scores in the thousands", "分数上千"), .arrays = inputs(50, 3, 5, 16, 4)});
  for (const char* name : {"q", "k"}) {
    Array& a = e.cases.back().arrays[name];
    for (std::int64_t row = 0; row < a.size() / 16; ++row)
      a.data[static_cast<std::size_t>(row * 16 + row % a.shape[2])] += 120;
  }
  e.mistakes = {
      {"no_scaling", say("the scores are not divided by √d.", "得分没有除以 √d。")},
      {"scaled_by_d", say("the scores are divided by d instead of √d.", "得分除以了 d，应除以 √d。")},
      {"multiplied_by_root", say("the scores are multiplied by √d instead of divided.", "得分乘了 √d，应该是除。")},
      {"scaled_by_length",
       say("the scores are divided by the root of the number of keys; it is the head dimension that counts.",
           "得分除以了键的个数的平方根，应该用头维度。")},
      {"scaled_after_softmax", say("the weights are divided by √d after softmax; scale the scores before it.",
                                   "在 softmax 之后才除以 √d；应在之前对得分缩放。")},
      {"softmax_over_queries", say("softmax runs over the queries; each query's row over the keys has to sum to 1.",
                                   "softmax 沿查询做了；应让每个查询对所有键的权重之和为 1。")},
      {"no_softmax", say("there is no softmax: raw scores multiply the values.", "没有做 softmax：直接用得分乘了值。")},
      {"mask_ignored", say("the mask is ignored.", "没有使用掩码。")},
      {"mask_inverted",
       say("the mask is inverted: True means that the query may look.", "掩码用反了：True 表示可以看。")},
      {"mask_after_softmax",
       say("the mask is applied after softmax: the rows no longer sum to 1. Hide scores before it.",
           "掩码加在 softmax 之后：各行之和不再是 1。应在 softmax 之前屏蔽得分。")},
      {"mask_multiplied", say("hidden scores are set to 0, and exp(0) = 1 still takes weight. Set them to −inf.",
                              "把被屏蔽的得分设成了 0，而 exp(0) = 1 仍会分走权重。应设为 −inf。")},
      {"minus_billion",
       say("hidden scores get −1e9: a row that may look nowhere becomes uniform. It should give zeros.",
           "被屏蔽的得分用了 −1e9：哪里都不能看的行变成了均匀分布，应输出全零。")},
      {"minus_billion_added",
       say("−1e9 is added to hidden scores in float64: a row that may look nowhere gets the softmax of its scores. It "
           "should give zeros.",
           "在 float64 下给被屏蔽的分数加了 −1e9：哪里都不能看的行得到了分数本来的 softmax，应输出全零。")},
      {"nan_row",
       say("a row that may look nowhere gives NaN. It should give zeros.", "哪里都不能看的行得到了 NaN，应输出全零。")},
      {"no_max", say("the maximum is not subtracted: large scores overflow.", "没有减去最大值：得分大时会溢出。")},
      {"key_reshaped", say("k is reshaped to [D, N] instead of transposed: that mixes up its numbers.",
                           "k 用 reshape 变成 [D, N]，而不是转置：数都错位了。")},
      {"returns_weights", say("the weights are returned instead of the output.", "返回的是权重，应返回输出。")},
  };
  return e;
}

Exercise multi_head_exercise() {
  Exercise e{
      "multi_head_attention",
      "mha",
      say("multi_head_attention(x, wq, wk, wv, wo, heads): x [B, L, W], weights [out, in], so a projection is x @ w.T. "
          "No mask.",
          "multi_head_attention(x, wq, wk, wv, wo, heads)：x [B, L, W]，权重 [out, in]，即投影为 x @ w.T。不用掩码。"),
      "heads",
      {},
      {},
      answer_multi_head};
  const auto one = [&](Text what, std::uint64_t seed, std::int64_t B, std::int64_t L, std::int64_t W,
                       std::int64_t heads) {
    Case c{.what = std::move(what), .arrays = {{"x", random_array({B, L, W}, seed)}}, .wholes = {{"heads", heads}}};
    for (const char* name : {"wq", "wk", "wv", "wo"})
      c.arrays[name] = random_array({W, W}, ++seed, 1 / std::sqrt(static_cast<double>(W)));
    e.cases.push_back(std::move(c));
  };
  one(say("2 texts of 5 tokens, 4 heads", "2 段文本各 5 个词元，4 个头"), 60, 2, 5, 8, 4);
  one(say("3 tokens, 2 heads", "3 个词元，2 个头"), 70, 1, 3, 6, 2);
  one(say("one head", "1 个头"), 80, 2, 4, 4, 1);
  e.mistakes = {
      {"split_without_transpose",
       say("heads are split wrongly: reshape to [B, L, heads, D], then transpose; straight to [B, heads, L, D] mixes "
           "tokens and heads.",
           "多头拆错了：应先 reshape 成 [B, L, heads, D] 再转置；直接变成 [B, heads, L, D] 会把词元和头混在一起。")},
      {"merged_without_transpose",
       say("the output is not concatenated in order: transpose back to [B, L, heads, D] before the reshape.",
           "输出没有按顺序拼接：reshape 之前要先转置回 [B, L, heads, D]。")},
      {"heads_interleaved", say("heads take every H-th feature; head h owns features h·D to (h+1)·D − 1.",
                                "每个头隔着取特征；第 h 个头应占特征 h·D 到 (h+1)·D − 1。")},
      {"heads_reversed", say("the heads are concatenated in reverse order.", "各个头的拼接顺序反了。")},
      {"no_output_projection",
       say("W_O is missing: the concatenated heads have to be projected.", "漏了 W_O：拼接之后还要投影。")},
      {"weights_not_transposed", say("the weights are used as [in, out]: they are [out, in], so write x @ w.T.",
                                     "把权重当成 [in, out] 用了：它是 [out, in]，应写 x @ w.T。")},
      {"scaled_by_width", say("the scores are divided by the root of the width; it is the head dimension that counts.",
                              "得分除以了整个宽度的平方根，应该用头维度。")},
      {"no_scaling", say("the scores are not divided by √d.", "得分没有除以 √d。")},
      {"one_head", say("there is only one head: x was not split.", "只有一个头：没有拆分。")},
      {"swapped_k_and_v", say("keys and values are swapped.", "键和值用反了。")},
      {"softmax_over_queries",
       say("softmax runs over the queries instead of the keys.", "softmax 沿查询做了，应沿键。")},
  };
  return e;
}

Exercise repeat_kv_exercise() {
  Exercise e{"repeat_kv",
             "repeat_kv",
             say("repeat_kv(k, groups): [B, Hk, L, D] → [B, Hk·groups, L, D]; query head h reads KV head h // groups.",
                 "repeat_kv(k, groups)：[B, Hk, L, D] → [B, Hk·groups, L, D]；查询头 h 读 KV 头 h // groups。"),
             "gqa",
             {},
             {},
             answer_repeat_kv};
  e.cases.push_back({.what = say("2 KV heads, 3 groups", "2 个 KV 头，3 组"),
                     .arrays = {{"k", random_array({2, 2, 4, 3}, 90)}},
                     .wholes = {{"groups", 3}}});
  e.cases.push_back({.what = say("3 KV heads, 2 groups", "3 个 KV 头，2 组"),
                     .arrays = {{"k", random_array({1, 3, 2, 4}, 91)}},
                     .wholes = {{"groups", 2}}});
  e.mistakes = {
      {"tiled", say("the groups are interleaved (k0 k1 k0 k1): query head h would read KV head h % Hk. Repeat each "
                    "head before the next: k0 k0 k1 k1.",
                    "各组交错了（k0 k1 k0 k1）：查询头 h 会读 KV 头 h % Hk。应一个头重复完再到下一个：k0 k0 k1 k1。")},
      {"repeated_along_length", say("tokens are repeated instead of heads.", "重复的是词元，应重复头。")},
      {"repeated_along_dim", say("features are repeated instead of heads.", "重复的是特征，应重复头。")},
      {"nothing_repeated", say("k comes back as it was: nothing is repeated.", "k 原样返回：什么也没重复。")},
  };
  return e;
}

Exercise rope_exercise() {
  Exercise e{
      "rope",
      "rope",
      say("rope(x, positions, theta=10000.0): x [B, H, L, D]; pair (i, i + D/2) rotates by position · theta^(−2i/D).",
          "rope(x, positions, theta=10000.0)：x [B, H, L, D]；第 (i, i + D/2) 对旋转 position · theta^(−2i/D)。"),
      "rope",
      {},
      {},
      answer_rope};
  e.cases.push_back({.what = say("positions 0 to 4", "位置 0 到 4"),
                     .arrays = {{"x", random_array({2, 2, 5, 8}, 100)}, {"positions", wholes({0, 1, 2, 3, 4})}},
                     .reals = {{"theta", 10000.0}}});
  e.cases.push_back({.what = say("positions from 7 on, theta 100", "位置从 7 开始，theta 100"),
                     .arrays = {{"x", random_array({1, 3, 3, 6}, 101)}, {"positions", wholes({7, 8, 9})}},
                     .reals = {{"theta", 100.0}}});
  e.cases.push_back({.what = say("one token at position 3", "一个词元，位置 3"),
                     .arrays = {{"x", random_array({1, 1, 1, 4}, 102)}, {"positions", wholes({3})}},
                     .reals = {{"theta", 10000.0}}});
  e.mistakes = {
      {"interleaved", say("pairs are neighbours (2i, 2i + 1); here pair i is (i, i + D/2), as in Hugging Face's Llama "
                          "and Qwen and in MiniMind 2 and 3.",
                          "把相邻的 (2i, 2i + 1) 当成一对；这里第 i 对是 (i, i + D/2)，与 Hugging Face 版的 "
                          "Llama、Qwen 和 MiniMind 2/3 相同。")},
      {"backwards", say("it rotates backwards: the first half is x1·cos − x2·sin, the second x1·sin + x2·cos.",
                        "旋转方向反了：前一半是 x1·cos − x2·sin，后一半是 x1·sin + x2·cos。")},
      {"pairs_swapped", say("the halves of the result are swapped.", "结果的前后两半放反了。")},
      {"half_exponent", say("the exponent is −i/D; it is −2i/D.", "指数用了 −i/D，应为 −2i/D。")},
      {"one_frequency", say("all pairs rotate at the same speed; pair i rotates by position · theta^(−2i/D).",
                            "所有对都以同一速度旋转；第 i 对应旋转 position · theta^(−2i/D)。")},
      {"positions_ignored", say("positions are ignored: rows count from 0. In decoding they do not.",
                                "没有使用 positions，而是从 0 数起；解码时不是这样。")},
      {"positions_from_one", say("positions are off by one.", "位置差了 1。")},
      {"cos_sin_swapped", say("cosine and sine are swapped.", "cos 与 sin 用反了。")},
  };
  return e;
}

Exercise causal_mask_exercise() {
  Exercise e{"causal_mask",
             "causal_mask",
             say("causal_mask(m, n): [m, n], True where query i may see key j. The last query stands at the last key.",
                 "causal_mask(m, n)：[m, n]，True 表示查询 i 可以看键 j。最后一个查询对齐最后一个键。"),
             "masks",
             {},
             {},
             answer_causal_mask};
  for (const auto& [m, n] : {std::pair{4, 4}, std::pair{2, 5}, std::pair{1, 6}, std::pair{3, 4}})
    e.cases.push_back({.what = say("{} queries, {} keys", "{} 个查询，{} 个键", m, n), .wholes = {{"m", m}, {"n", n}}});
  e.mistakes = {
      {"inverted",
       say("the mask is inverted: True has to mean that the query may look.", "掩码反了：True 应表示可以看。")},
      {"strict", say("off by one: a token has to see itself.", "差了一格：词元应能看到自己。")},
      {"one_too_many", say("off by one: a token sees the next one, which is the answer it is to predict.",
                           "差了一格：词元看到了下一个，而那正是要预测的答案。")},
      {"first_key",
       say("aligned to the first key: with a cache the last of m queries stands at the last of n keys. Add n − m.",
           "对齐到了第一个键：有缓存时，m 个查询的最后一个对应 n 个键的最后一个。要加 n − m。")},
      {"upper", say("the triangle is upside down: each token sees itself and the future (triu instead of tril).",
                    "三角形上下颠倒：每个词元看到的是自己和未来（用了 triu，应为 tril）。")},
      {"all_visible", say("nothing is hidden.", "什么都没有屏蔽。")},
      {"additive", say("this is an additive mask (0 and −inf); True and False are asked for.",
                       "这是加性掩码（0 与 −inf）；这里要的是 True 与 False。")},
  };
  return e;
}

Exercise kv_cache_exercise() {
  Exercise e{
      "KVCache",
      "kv_cache",
      say("class KVCache with step(q, k, v, position, rope): the next T tokens, [B, H, T, D], the first at `position`, "
          "not yet "
          "rotated; rope(x, positions) is given. Returns attention over all tokens so far, causal, [B, H, T, D].",
          "类 KVCache，方法 step(q, k, v, position, rope)：接下来的 T 个词元 [B, H, T, D]，第一个在 position "
          "处，尚未旋转；rope(x, "
          "positions) 由外部给出。返回对目前为止全部词元的因果注意力 [B, H, T, D]。"),
      "kv-cache",
      {},
      {},
      answer_kv_cache};
  const auto one = [&](Text what, std::uint64_t seed, std::int64_t T, std::vector<float> chunks) {
    const std::vector<std::int64_t> shape = {2, 2, T, 4};
    e.cases.push_back({.what = std::move(what),
                       .arrays = {{"q", random_array(shape, seed)},
                                  {"k", random_array(shape, seed + 1)},
                                  {"v", random_array(shape, seed + 2)},
                                  {"chunks", wholes(std::move(chunks))}},
                       .reals = {{"theta", 100.0}}});
  };
  one(say("five tokens, one by one", "五个词元，一个一个来"), 110, 5, {1, 1, 1, 1, 1});
  one(say("three tokens, then two", "先三个词元，再两个"), 120, 5, {3, 2});
  one(say("a prompt of four, then one by one", "先四个词元的提示词，再逐个"), 130, 7, {4, 1, 1, 1});
  e.mistakes = {
      {"keys_not_rotated",
       say("keys go into the cache before the rotation: each has to be rotated by its own position first.",
           "键在旋转之前就放进了缓存：应先按各自的位置旋转。")},
      {"queries_not_rotated",
       say("queries are not rotated; the score needs both sides.", "查询没有旋转；得分需要两边都旋转。")},
      {"rotated_again", say("the whole cache is rotated again at every step: what was rotated once must stay as it is.",
                            "每一步都把整个缓存又旋转了一遍：旋转过一次就不能再动。")},
      {"positions_restart", say("positions begin at 0 again at every step; they go on from `position`.",
                                "每一步的位置又从 0 开始；应从 position 接着数。")},
      {"only_new", say("only the new tokens are attended to: the cache is not used.", "只看了新词元：没有用缓存。")},
      {"prepended", say("new keys are put before the old ones.", "新的键放到了旧的前面。")},
      {"no_mask", say("tokens of one chunk see each other's future: a chunk needs a causal mask.",
                      "同一批的词元看到了彼此的未来：一次多个词元时需要因果掩码。")},
      {"first_key",
       say("the causal mask of a chunk is aligned to the first key; its last query stands at the last key.",
           "这一批的因果掩码对齐到了第一个键；最后一个查询应对齐最后一个键。")},
      {"no_scaling", say("the scores are not divided by √d.", "得分没有除以 √d。")},
  };
  return e;
}

}  // namespace

const std::vector<Exercise>& all_exercises() {
  static const std::vector<Exercise> kExercises = {softmax_exercise(),   attention_exercise(), multi_head_exercise(),
                                                   repeat_kv_exercise(), rope_exercise(),      causal_mask_exercise(),
                                                   kv_cache_exercise()};
  return kExercises;
}

const Exercise* find_exercise(std::string_view name) {
  for (const Exercise& e : all_exercises())
    if (e.name == name || e.short_name == name) return &e;
  return nullptr;
}

}  // namespace attend::labs
