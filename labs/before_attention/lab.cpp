// Lab: before attention: a GRU that reads and a GRU that writes, with attention between them and without.
#include <algorithm>
#include <cmath>

#include "labs/before_attention/phrases.hpp"
#include "labs/before_attention/seq2seq.hpp"
#include "labs/registry.hpp"
#include "labs/tools.hpp"

namespace attend::labs {
namespace {

constexpr std::int64_t kTrainedItems = 3, kTestedItems = 4, kBatch = 32;

struct Kind {
  const char* key;
  Text name;
  Bridge bridge;
};

std::vector<PhrasePair> pairs_of(std::int64_t count, std::int64_t items, std::uint64_t seed) {
  std::vector<PhrasePair> pairs;
  for (std::int64_t n = 0; n < count; ++n)
    pairs.push_back(random_pair(items, seed * 100003 + static_cast<std::uint64_t>(n)));
  return pairs;
}

// Of a date's digits, month and day: how many look most at their own word, or at one beside it (a GRU's state after a
// word also knows the word before).
struct Aligned {
  double exact = 0, near = 0;
};
Aligned alignment_of_dates(const Translator& model, bool to_chinese) {
  Aligned found;
  double asked = 0;
  for (int n = 0; n < 24; ++n) {
    const PhrasePair pair = date_pair(1900 + 7 * n, 1 + n % 9, 1 + n % 9);  // month and day of one character
    const Rows weights = rows_of(model.alignment(batch_of({pair}, to_chinese)));
    // english: month day y y y y; chinese: y y y y 年 m 月 d 日
    const std::pair<std::size_t, std::size_t> words[] = {{2, 0}, {3, 1}, {4, 2}, {5, 3}, {0, 5}, {1, 7}};
    for (const auto& [english, chinese] : words) {
      const auto& row = weights[to_chinese ? chinese : english];
      const auto at = std::max_element(row.begin(), row.end()) - row.begin();
      const auto wanted = static_cast<std::ptrdiff_t>(to_chinese ? english : chinese);
      found.exact += at == wanted ? 1 : 0;
      found.near += std::abs(at - wanted) <= 1 ? 1 : 0;
      asked += 1;
    }
  }
  return {found.exact / asked, found.near / asked};
}

MapFigure drawn_alignment(const Translator& model, const Kind& kind, bool to_chinese) {
  const PhrasePair pair = date_pair(2021, 3, 5);
  Phrase target = to_chinese ? pair.chinese : pair.english;
  target.emplace_back("<>");
  MapFigure map = matrix(std::string("alignment_") + kind.key,
                         {"Where each written word looks: " + kind.name.en, "每写一个词时看向哪里：" + kind.name.zh},
                         rows_of(model.alignment(batch_of({pair}, to_chinese))), labels_of(target),
                         labels_of(to_chinese ? pair.english : pair.chinese));
  map.rows_are = say("written", "写出");
  map.columns_are = say("read", "读入");
  return map;
}

Results measure(const Arguments& a, const Progress& progress) {
  Results results;
  const bool to_chinese = a["to-chinese"] != 0;
  const std::int64_t steps = a["steps"];
  const PhrasePair example = random_pair(2, 5);
  results.add(say("Dates and numbers, up to {} in a line, such as: {} = {}",
                  "日期和数字，一行最多 {} 个，例如：{} = {}", kTrainedItems,
                  fmt::format("{}", fmt::join(example.english, " ")),
                  fmt::format("{}", fmt::join(example.chinese, ""))));
  const Kind kinds[] = {{"none", say("no attention", "无注意力"), Bridge::none},
                        {"additive", say("Bahdanau (additive)", "Bahdanau（加性）"), Bridge::additive},
                        {"general", say("Luong (general)", "Luong（general，双线性）"), Bridge::general}};
  CurvesFigure losses{
      "training", say("Loss while training", "训练中的损失"), say("step", "训练步"), say("loss", "损失"), {}, false,
      false};
  CurvesFigure accuracy{
      "accuracy",
      say("Words translated right", "译对的词的比例"),
      say("items in a line ({} at most in training)", "一行里的条目数（训练时最多 {}）", kTrainedItems),
      say("share", "比例"),
      {},
      false,
      false};
  Table table{
      say("After {} steps of {} lines: lines without a mistake (and words that are right), by items in a line",
          "训练 {} 步（每步 {} 行）后，整行全对的比例（括号里是单个词的准确率），按一行里的条目数", steps, kBatch),
      {say("translator", "翻译器"), say("parameters", "参数"), same("1"), same("2"), same("3"), same("4")},
      {}};
  const PhraseWords english(false), chinese(true);
  for (std::size_t k = 0; k < 3; ++k) {
    Translator model({.source_words = (to_chinese ? english : chinese).count(),
                      .target_words = (to_chinese ? chinese : english).count(),
                      .width = a["width"],
                      .bridge = kinds[k].bridge});
    Curve curve{kinds[k].name, {}}, by_items{kinds[k].name, {}};
    double mean = 0;
    for (std::int64_t step = 1; step <= steps; ++step) {
      const double rate = 6e-3 * (1 - 0.9 * static_cast<double>(step) / static_cast<double>(steps));
      const double loss = model.train(
          batch_of(pairs_of(kBatch, 1 + step % kTrainedItems, static_cast<std::uint64_t>(step)), to_chinese), rate);
      mean = step == 1 ? loss : 0.9 * mean + 0.1 * loss;
      if (step % std::max<std::int64_t>(1, steps / 30) == 0) curve.points.emplace_back(step, mean);
      progress((static_cast<double>(k) + static_cast<double>(step) / static_cast<double>(steps)) / 3.1);
    }
    std::vector<Text> row = {kinds[k].name, same("{}", model.parameter_count())};
    for (std::int64_t items = 1; items <= kTestedItems; ++items) {
      const Translator::Score score =
          model.score(batch_of(pairs_of(64, items, 777000 + static_cast<std::uint64_t>(items)), to_chinese));
      row.push_back(same("{:.0f} % ({:.0f} %)", 100 * score.rows, 100 * score.words));
      by_items.points.emplace_back(items, score.words);
      results.put(fmt::format("{}_{}", kinds[k].key, items), score.rows);
      results.put(fmt::format("{}_words_{}", kinds[k].key, items), score.words);
    }
    results.put(std::string(kinds[k].key) + "_loss", mean);
    table.rows.push_back(std::move(row));
    losses.curves.push_back(std::move(curve));
    accuracy.curves.push_back(std::move(by_items));
    if (kinds[k].bridge == Bridge::none) continue;
    results.add(drawn_alignment(model, kinds[k], to_chinese));
    const Aligned aligned = alignment_of_dates(model, to_chinese);
    results.put(std::string(kinds[k].key) + "_aligned", aligned.exact);
    results.put(std::string(kinds[k].key) + "_aligned_near", aligned.near);
  }
  results.add(std::move(losses));
  results.add(std::move(accuracy));
  results.add(std::move(table));
  return results;
}

std::vector<Conclusion> judge(const Numbers& n) {
  std::vector<Conclusion> list;
  const double best = largest_of({n.at("additive_3"), n.at("general_3")}), none = n.at("none_3");
  list.push_back(
      conclude("attention_helps", best > none + 0.1,
               say("on lines of three items attention gets {:.0f} % fully right (Bahdanau {:.0f} %, Luong {:.0f} %), "
                   "the translator "
                   "without it {:.0f} %.",
                   "三个条目的行，带注意力的最好全对 {:.0f} %（Bahdanau {:.0f} %，Luong {:.0f} %），不带的 {:.0f} %。",
                   100 * best, 100 * n.at("additive_3"), 100 * n.at("general_3"), 100 * none),
               say("on lines of three items attention gets {:.0f} % fully right, the translator without it {:.0f} %: "
                   "no gain on this run.",
                   "三个条目的行，带注意力的全对 {:.0f} %，不带的 {:.0f} %：这次没有优势。", 100 * best, 100 * none)));
  list.push_back(conclude("one_vector_is_too_small", n.at("none_words_1") > n.at("none_words_3") + 0.05,
                          say("without attention the share of right words falls from {:.0f} % for one item to {:.0f} % "
                              "for three: one vector has to "
                              "hold the whole line. With attention it is {:.0f} % and {:.0f} %.",
                              "不带注意力时，译对的词从一个条目的 {:.0f} % 掉到三个条目的 {:.0f} "
                              "%：一个向量要装下整行。带注意力的最好成绩是 {:.0f} % 和 "
                              "{:.0f} %。",
                              100 * n.at("none_words_1"), 100 * n.at("none_words_3"),
                              100 * std::max(n.at("additive_words_1"), n.at("general_words_1")),
                              100 * std::max(n.at("additive_words_3"), n.at("general_words_3"))),
                          say("without attention {:.0f} % of the words of one item are right and {:.0f} % of three: "
                              "length did not hurt it on this run.",
                              "不带注意力时，一个条目译对 {:.0f} % 的词，三个条目 {:.0f} %：这次长度没有影响。",
                              100 * n.at("none_words_1"), 100 * n.at("none_words_3"))));
  const double aligned = largest_of({n.at("additive_aligned_near"), n.at("general_aligned_near")});
  list.push_back(
      conclude("alignment_is_found", aligned > 0.6,
               say("nobody told them which word belongs to which, and yet {:.0f} % (Bahdanau) and {:.0f} % (Luong) of "
                   "the digits, months "
                   "and days look most at their own word or one beside it.",
                   "没有人告诉它们哪个词对应哪个词，可是 {:.0f} %（Bahdanau）和 {:.0f} "
                   "%（Luong）的数字、月、日最关注的正是自己对应的词或其相邻"
                   "的词。",
                   100 * n.at("additive_aligned_near"), 100 * n.at("general_aligned_near")),
               say("only {:.0f} % (Bahdanau) and {:.0f} % (Luong) of the digits, months and days look at their own "
                   "word or one beside it.",
                   "只有 {:.0f} %（Bahdanau）和 {:.0f} %（Luong）的数字、月、日看向自己对应的词或其相邻的词。",
                   100 * n.at("additive_aligned_near"), 100 * n.at("general_aligned_near"))));
  const double longer = largest_of({n.at("additive_4"), n.at("general_4")});
  list.push_back(
      conclude("longer_than_trained_is_hard", longer < best,
               say("lines longer than any trained on are hard for all of them: {:.0f} % of four items at best, {:.0f} "
                   "% of three.",
                   "比训练时更长的行对谁都难：四个条目最多 {:.0f} %，三个条目 {:.0f} %。", 100 * longer, 100 * best),
               say("lines of four items, longer than any trained on, gave {:.0f} %, three {:.0f} %.",
                   "比训练时更长的四个条目是 {:.0f} %，三个条目是 {:.0f} %。", 100 * longer, 100 * best)));
  return list;
}

}  // namespace

Lab before_attention_lab() {
  return {
      .name = "before-attention",
      .title = say("Before attention", "注意力之前"),
      .question =
          say("How did machines translate before attention, where did that break, and what did attention repair?",
              "在有注意力之前机器怎么翻译？问题出在哪里？注意力修好了什么？"),
      .lesson =
          say("\"An RNN forgets long sentences; attention was invented in 2017.\" It was invented in 2014, for these "
              "very networks.",
              "“RNN 记不住长句；注意力是 2017 年发明的。”其实是 2014 年，而且正是为这种网络发明的。"),
      .guess =
          say("Three translators with states of the same size learn dates and numbers. How many lines of one and of "
              "three items "
              "does each get fully right? Which word will be looked at when the year is written?",
              "三个状态一样大的翻译器学习翻译日期和数字。一个条目和三个条目的行，各能全对多少？写年份时会看向哪个词？"),
      .why =
          {say("Without attention the encoder hands over its last state: a fixed number of numbers for a line of any "
               "length. Attention lets the decoder look back at every state of the encoder, with weights it learns "
               "from the loss alone. Bahdanau's score is a small network, computed before each decoder step; Luong's "
               "is "
               "a product, computed after it: the way that leads to the dot products of today.",
               "没有注意力时，编码器只交出最后一个状态：不管句子多长，都是固定数量的数。注意力让解码器能回看编码器的每"
               "一个状态，权重只靠损失学出来。Bahdanau 的打分函数是一个小网络，在解码器每一步之前计算；Luong 的是乘积，"
               "在每一步之后计算，今天的点积注意力就是沿着这条路来的。"),
           say("The gradients of these networks are written here by hand and checked against central differences in "
               "the tests.",
               "这些网络的梯度是这里手写的，测试中与中心差分核对过。")},
      .seconds = 50,
      .minutes = 12,
      .parameters = {{"steps", 450, 1, 5000, 6, say("training steps for each", "每个翻译器的训练步数")},
                     {"width", 64, 8, 256, 16, say("numbers in a state", "状态里有多少个数")},
                     {"to-chinese", 1, 0, 1, 1,
                      say("1: English to Chinese, 0: Chinese to English", "1：英译中；0：中译英")}},
      .measure = measure,
      .judge = judge};
}

}  // namespace attend::labs
