// Lab: attention by hand, on "The cat sat on the mat", every step with its shape.
#include <algorithm>
#include <cmath>
#include <map>

#include "attend/attention.hpp"
#include "attend/error.hpp"
#include "attend/linear.hpp"
#include "labs/registry.hpp"
#include "labs/tools.hpp"

namespace attend::labs {
namespace {

Text title_with_shape(const char* symbol, const Rows& rows) {
  return same("{}  [{}, {}]", symbol, rows.size(), rows.front().size());
}

Rows product(const Rows& a, const Rows& b_rows, bool transposed) {  // a . b^T, or a . b
  Rows c(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    const std::size_t columns = transposed ? b_rows.size() : b_rows.front().size();
    for (std::size_t j = 0; j < columns; ++j) {
      double sum = 0;
      for (std::size_t d = 0; d < a[i].size(); ++d) sum += a[i][d] * (transposed ? b_rows[j][d] : b_rows[d][j]);
      c[i].push_back(sum);
    }
  }
  return c;
}

double difference(const Rows& a, const Rows& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t d = 0; d < a[i].size(); ++d) most = largest_of({most, std::abs(a[i][d] - b[i][d])});
  return most;
}

// How far an output leaves the box of the values that it mixes: 0 for any weighted mean.
double outside_of_values(const Rows& out, const Rows& v) {
  double most = 0;
  for (std::size_t i = 0; i < out.size(); ++i)
    for (std::size_t d = 0; d < out[i].size(); ++d) {
      double low = v[0][d], high = v[0][d];
      for (std::size_t j = 0; j <= i; ++j) {
        low = smallest_of({low, v[j][d]});
        high = largest_of({high, v[j][d]});
      }
      most = largest_of({most, low - out[i][d], out[i][d] - high});
    }
  return most;
}

// The embedding of each word, [1, 1, words, dim]: a word has the same vector wherever it is, "The" and "the" too.
Tensor embed(const std::vector<std::string>& words, std::int64_t dim, std::uint64_t seed) {
  Tensor x = random_tensor({1, 1, std::ssize(words), dim}, seed);
  std::map<std::string, const float*> rows;
  for (std::size_t n = 0; n < words.size(); ++n) {
    std::string word = words[n];
    std::transform(word.begin(), word.end(), word.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
    float* row = x.data<float>() + static_cast<std::int64_t>(n) * dim;
    const auto [known, fresh] = rows.try_emplace(word, row);
    if (!fresh) std::copy_n(known->second, dim, row);
  }
  return x;
}

// A dictionary of `count` entries asked for one of them: how far the answer is from the entry, by sharpness.
double lookup_error(std::int64_t count, double sharpness) {
  Tensor q(DType::f32, {1, 1, 1, count}), k(DType::f32, {1, 1, count, count});
  const Tensor v = random_tensor({1, 1, count, 4}, 9);
  for (std::int64_t n = 0; n < count; ++n) k.data<float>()[n * count + n] = 1;
  const std::int64_t wanted = count / 2;
  q.data<float>()[wanted] = 1;
  const AttentionResult r = attention(q, k, v, {.scale = sharpness});
  return largest_difference(r.out, slice(v, 2, wanted, 1));
}

Results measure(const Arguments& arguments, const Progress&) {
  Results results;
  const std::vector<std::string> words = words_in(arguments.words("words"));
  if (words.empty() || words.size() > 24)
    throw Refused(say("words holds {} words, expected 1 to 24", "words 中有 {} 个词，应为 1 到 24 个", words.size()));
  const auto L = static_cast<std::int64_t>(words.size());
  const std::int64_t D = arguments["dim"];
  const auto seed = static_cast<std::uint64_t>(arguments["seed"]);
  const Tensor x = embed(words, D, seed);
  Tensor projected[3];
  for (std::size_t n = 0; n < 3; ++n) {
    projected[n] = Tensor(DType::f32, {1, 1, L, D});
    const Tensor w = random_tensor({1, 1, D, D}, seed + n + 1, 1 / std::sqrt(static_cast<double>(D)));
    linear(x, w, {}, projected[n]);
  }
  const Tensor &q = projected[0], &k = projected[1], &v = projected[2];
  const Rows Q = rows_of(q), K = rows_of(k), V = rows_of(v);
  const auto labels = labels_of(words);

  Rows scores = product(Q, K, true);
  results.add(
      say("Each word is a vector of {} random numbers (an embedding that has learnt nothing yet), the same one "
          "wherever the word is. Three matrices make of each a query (what it looks for), a key (what it offers to be "
          "found by) and a "
          "value (what it hands over): Q, K and V are [{}, {}].",
          "每个词先变成 {} "
          "个随机数组成的向量（还没有学过任何东西的词嵌入），同一个词的向量处处相同。三个矩阵把它分别变成查询（我想找"
          "什么）、键（别人凭什么找到我）和值（找到以后我交出什么）：Q、K、V 的形状都是 [{}, {}]。",
          D, L, D));
  results.add(matrix("scores", title_with_shape("1. Q·Kᵀ", scores), scores, labels, labels));
  for (auto& row : scores)
    for (double& s : row) s /= std::sqrt(static_cast<double>(D));
  results.add(matrix("scaled", title_with_shape("2. Q·Kᵀ / √d", scores), scores, labels, labels));
  for (std::size_t i = 0; i < scores.size(); ++i)
    for (std::size_t j = i + 1; j < scores.size(); ++j) scores[i][j] = -std::numeric_limits<double>::infinity();
  results.add(matrix("masked", title_with_shape("3. + mask (· = −∞)", scores), scores, labels, labels));
  Rows weights;
  double worst_sum = 0;
  for (const auto& row : scores) {
    weights.push_back(softmax_of(row));
    double sum = 0;
    for (const double w : weights.back()) sum += w;
    worst_sum = largest_of({worst_sum, std::abs(sum - 1)});
  }
  results.add(matrix("weights", title_with_shape("4. softmax", weights), weights, labels, labels));
  const Rows out = product(weights, V, false);
  MapFigure last = matrix("output", title_with_shape("5. softmax·V", out), out, labels);
  last.columns_are = say("feature", "特征");
  results.add(std::move(last));

  const AttentionResult engine = attention(q, k, v, {.mask = causal()}, {.weights = true});
  double engine_sum = 0;
  for (const auto& row : rows_of(engine.weights)) {
    double sum = 0;
    for (const double w : row) sum += w;
    engine_sum = largest_of({engine_sum, std::abs(sum - 1)});
  }
  results.put("row_sum_error", largest_of({worst_sum, engine_sum}));
  results.put("engine_difference", difference(out, rows_of(engine.out)));
  results.put("first_row_difference", difference({out.front()}, {V.front()}));
  results.put("outside_of_values", outside_of_values(out, V));
  Table table{say("A dictionary of 8 entries asked for one: how far the answer is from the entry, by how sharp the "
                  "scores are.",
                  "一本 8 个词条的字典，查其中一条：得分越尖锐，答案离那条词条越近。"),
              {say("score of the match", "匹配项的得分"), say("error", "误差")},
              {}};
  for (const double sharpness : {1.0, 4.0, 16.0, 64.0}) {
    table.rows.push_back({number_text(sharpness, 0), number_text(lookup_error(8, sharpness), 6)});
    results.put(fmt::format("lookup_error_{:.0f}", sharpness), lookup_error(8, sharpness));
  }
  results.add(std::move(table));
  return results;
}

std::vector<Conclusion> judge(const Numbers& n) {
  std::vector<Conclusion> list;
  list.push_back(conclude(
      "rows_sum_to_one", n.at("row_sum_error") < 1e-5,
      say("every row of weights sums to 1 (off by {:.0e} at most): softmax shares out one unit of attention.",
          "每一行权重之和都是 1（最大偏差 {:.0e}）：softmax 是在分配一份总量为 1 的注意力。", n.at("row_sum_error")),
      say("a row of weights is off 1 by {:.2g}; it should sum to 1.", "有一行权重之和与 1 相差 {:.2g}，本应恰好为 1。",
          n.at("row_sum_error"))));
  list.push_back(conclude(
      "engine_agrees", n.at("engine_difference") < 1e-4,
      say("the five steps by hand and one call of the engine give the same output (largest difference {:.0e}).",
          "手算的五个步骤和引擎的一次调用结果相同（最大差 {:.0e}）。", n.at("engine_difference")),
      say("the five steps and the engine differ by {:.2g}.", "手算与引擎相差 {:.2g}。", n.at("engine_difference"))));
  list.push_back(
      conclude("first_word_sees_itself", n.at("first_row_difference") < 1e-6,
               say("under the causal mask the first word sees only itself, so its output is its own value.",
                   "有因果掩码时，第一个词只能看到自己，所以它的输出就是它自己的值。"),
               say("the first word's output is {:.2g} away from its own value: it saw more than itself.",
                   "第一个词的输出与它自己的值相差 {:.2g}：它看到了自己以外的东西。", n.at("first_row_difference"))));
  list.push_back(conclude(
      "output_is_a_mean", n.at("outside_of_values") < 1e-6,
      say("no output leaves the range of the values it mixes: attention takes weighted means, it invents nothing.",
          "没有任何输出超出它所混合的那些值的范围：注意力只做加权平均，不会凭空造出东西。"),
      say("an output lies {:.2g} outside the values that it mixes.", "有输出超出了被混合的值 {:.2g}。",
          n.at("outside_of_values"))));
  const bool lookup = n.at("lookup_error_64") < 1e-6 && n.at("lookup_error_1") > 0.1;
  list.push_back(conclude(
      "sharp_scores_look_up", lookup,
      say("with sharp scores attention looks up one entry (error {:.0e}); with soft ones it blends (error {:.2f}): a "
          "library that hands you every book in proportion to how well its title fits.",
          "得分很尖锐时，注意力就是查字典（误差 {:.0e}）；得分平缓时它把词条混在一起（误差 {:.2f}）：像一座图书馆，"
          "按书名与你的问题的匹配程度，把每本书按比例都给你一点。",
          n.at("lookup_error_64"), n.at("lookup_error_1")),
      say("sharp scores gave an error of {:.2g}, soft ones {:.2g}: the picture of a library does not fit this run.",
          "尖锐得分的误差是 {:.2g}，平缓得分的误差是 {:.2g}：图书馆的比喻和这次运行对不上。", n.at("lookup_error_64"),
          n.at("lookup_error_1"))));
  return list;
}

}  // namespace

Lab by_hand_lab() {
  return {
      .name = "by-hand",
      .title = say("Attention by hand", "手算一遍注意力"),
      .question = say("What happens, step by step, between a sentence and the output of attention?",
                      "从一句话到注意力的输出，中间每一步到底发生了什么？"),
      .lesson = say("A query is what you ask the librarian, keys are the titles on the spines, values are what the "
                    "books say. softmax(Q·Kᵀ/√d)·V.",
                    "查询像你向图书管理员提的问题，键像书脊上的书名，值像书里的内容。公式是 softmax(Q·Kᵀ/√d)·V。"),
      .guess = say("What does each row of weights sum to? What is the first word's output under a causal mask? Can "
                   "an output be larger than every value it was made from?",
                   "每一行权重加起来是多少？有因果掩码时第一个词的输出是什么？输出会不会比它用到的所有值都大？"),
      .why = {say("Scores are dot products, so they grow when query and key point the same way. Softmax turns a row of "
                  "scores into positive shares that sum to 1, and the output is the mean of the values with those "
                  "shares. A hidden key gets −∞, whose exponential is 0: it takes no share at all. The embeddings "
                  "here are random, so the pattern means nothing yet; only training gives it a meaning.",
                  "得分是点积，查询与键方向越一致就越大。softmax 把一行得分变成和为 1 的正数份额，输出就是按这些份额"
                  "对值求平均。被屏蔽的键得分是 −∞，取 exp 之后是 "
                  "0，一点份额也拿不到。这里的词向量是随机的，所以这些注意力图还没有"
                  "含义，含义要靠训练才会出现。")},
      .seconds = 1,
      .minutes = 10,
      .parameters = {{"dim", 4, 1, 64, 4, say("numbers in each vector", "每个向量有多少个数")},
                     {"seed", 1, 0, 1000000, 1, say("other random numbers", "换一组随机数")},
                     {"words", 0, 0, 0, 0, say("the sentence, words parted by spaces", "句子，词与词之间用空格分开"),
                      true, "The cat sat on the mat"}},
      .measure = measure,
      .judge = judge};
}

}  // namespace attend::labs
