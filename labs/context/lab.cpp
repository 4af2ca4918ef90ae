// Lab: context moves meaning: one word in two contexts, layer by layer, in a model trained here.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "base/random.hpp"
#include "labs/registry.hpp"
#include "labs/tiny_model.hpp"
#include "labs/tools.hpp"

namespace attend::labs {
namespace {

constexpr std::int64_t kLayers = 2, kHeads = 4, kWidth = 64;
constexpr std::size_t kPlace = 2, kNoun = 5;  // the word that decides, and the word that is moved

// Two nouns with two senses each. Only the word after "in the" tells which; the adjectives are shared.
struct Sense {
  const char* noun;
  std::array<const char*, 3> places, adjectives, verbs;
  std::array<const char*, 3> end;
};
const std::array<Sense, 4> kSenses = {{
    {"model",
     {"studio", "show", "magazine"},
     {"new", "small", "famous"},
     {"walked", "posed", "smiled"},
     {"in", "red", "silk"}},
    {"model",
     {"lab", "paper", "course"},
     {"new", "small", "famous"},
     {"learned", "computed", "predicted"},
     {"from", "long", "text"}},
    {"tower",
     {"capital", "city", "harbour"},
     {"old", "high", "famous"},
     {"rises", "shines", "stands"},
     {"over", "the", "river"}},
    {"tower",
     {"nursery", "bedroom", "playroom"},
     {"old", "high", "famous"},
     {"fell", "broke", "tumbled"},
     {"among", "the", "toys"}},
}};

class Words {
 public:
  Words() {
    for (const Sense& s : kSenses)
      for (int n = 0; n < 3; ++n) (void)sentence(s, n, n, n);
  }
  // "in the studio the new model walked in red silk"
  std::vector<std::int64_t> sentence(const Sense& s, int place, int adjective, int verb) {
    const auto at = [](const auto& list, int n) { return list[static_cast<std::size_t>(n)]; };
    std::vector<std::int64_t> ids;
    for (const char* word : {"in", "the", at(s.places, place), "the", at(s.adjectives, adjective), s.noun,
                             at(s.verbs, verb), s.end[0], s.end[1], s.end[2]})
      ids.push_back(ids_.emplace(word, static_cast<std::int64_t>(ids_.size())).first->second);
    return ids;
  }
  std::int64_t count() const { return static_cast<std::int64_t>(ids_.size()); }

 private:
  std::map<std::string, std::int64_t> ids_;
};

void append(TinyBatch& batch, const std::vector<std::int64_t>& ids, bool noun_alone) {
  ++batch.batch;
  for (std::size_t n = 0; n < ids.size(); ++n) {
    batch.tokens.push_back(ids[n]);
    const bool asked = n + 1 < ids.size() && (!noun_alone || n == kNoun);
    batch.targets.push_back(asked ? ids[n + 1] : kNoTarget);
  }
}

TinyBatch random_sentences(Words& words, std::int64_t count, std::uint64_t seed, bool noun_alone) {
  TinyBatch batch;
  for (std::int64_t n = 0; n < count; ++n) {
    const auto pick = [&](int which, int options) {
      return static_cast<int>(uniform(seed, static_cast<std::uint64_t>(4 * n + which)) * options);
    };
    append(batch, words.sentence(kSenses[static_cast<std::size_t>(pick(0, 4))], pick(1, 3), pick(2, 3), pick(3, 3)),
           noun_alone);
  }
  return batch;
}

double angle_distance(const std::vector<double>& a, const std::vector<double>& b) {  // 1 - cosine
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t n = 0; n < a.size(); ++n) {
    ab += a[n] * b[n];
    aa += a[n] * a[n];
    bb += b[n] * b[n];
  }
  return 1 - ab / std::sqrt(aa * bb);
}

// The noun's vector in row `b` of a batch.
std::vector<double> noun_vector(const Tensor& states, std::int64_t b, std::int64_t head = 0) {
  return rows_of(states, b, head)[kNoun];
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t n = 0; n < a.size(); ++n) sum += (a[n] - b[n]) * (a[n] - b[n]);
  return std::sqrt(sum);
}

// Rows: the noun in sense one (two different places), then in sense two; everything else alike.
TinyBatch three_contexts(Words& words, std::size_t first) {
  TinyBatch batch;
  append(batch, words.sentence(kSenses[first], 0, 0, 0), false);
  append(batch, words.sentence(kSenses[first], 1, 0, 0), false);
  append(batch, words.sentence(kSenses[first + 1], 0, 0, 0), false);
  return batch;
}

void movement_part(const TinyModel& model, Words& words, Results& results) {
  Table table{say("How far the word's vector lies from itself in another context (1 − cosine), layer by layer",
                  "同一个词在不同语境里，向量相距多远（1 − 余弦），逐层测量"),
              {say("after", "位置"), say("model: other sense", "model：另一词义"), say("same sense", "同一词义"),
               say("tower: other sense", "tower：另一词义"), say("same sense", "同一词义")},
              {}};
  for (std::int64_t n = 0; n <= kLayers; ++n) {
    std::vector<Text> row = {n == 0 ? say("embedding", "词嵌入") : say("layer {}", "第 {} 层", n)};
    for (const std::size_t first : {std::size_t{0}, std::size_t{2}}) {
      const Tensor states = model.states(three_contexts(words, first), n);
      const double other = angle_distance(noun_vector(states, 0), noun_vector(states, 2));
      const double same_sense = angle_distance(noun_vector(states, 0), noun_vector(states, 1));
      row.push_back(number_text(other, 4));
      row.push_back(number_text(same_sense, 4));
      const char* noun = first == 0 ? "model" : "tower";
      results.put(fmt::format("{}_other_{}", noun, n), largest_of({0.0, other}));
      results.put(fmt::format("{}_same_{}", noun, n), largest_of({0.0, same_sense}));
    }
    table.rows.push_back(std::move(row));
  }
  results.add(std::move(table));
}

void heads_part(const TinyModel& model, Words& words, Results& results) {
  const TinyBatch pair = three_contexts(words, 0);
  const TinyBatch test = random_sentences(words, 128, 424242, true);
  Table table{
      say("Which heads moved \"model\": how far apart what each adds lies in the two senses, its weight on the word "
          "that decides, and the loss of the next word without it",
          "是哪些头移动了 model：两种词义下各头添加的向量相距多远、它放在决定性词上的权重，以及敲除它之后预测下一个词的"
          "损失"),
      {say("head", "头"), say("moved by", "移动"), say("weight on the place", "对地点词的权重"),
       say("loss without it", "敲除后的损失")},
      {}};
  const double whole = model.loss(test);
  double most = 0, sum = 0, harm_of_mover = 0, weight_of_mover = 0, most_harm = 0;
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    const Tensor outputs = model.head_outputs(pair, layer), weights = model.weights(pair, layer);
    for (std::int64_t h = 0; h < kHeads; ++h) {
      const double moved = distance(noun_vector(outputs, 0, h), noun_vector(outputs, 2, h));
      const double weight = noun_vector(weights, 0, h)[kPlace];
      TinyModel without = model.clone();
      without.knock_out(layer, h);
      const double harm = without.loss(test) - whole;
      most_harm = largest_of({most_harm, harm});
      sum += moved;
      if (moved > most) {
        most = moved;
        harm_of_mover = harm;
        weight_of_mover = weight;
      }
      table.rows.push_back({say("layer {}, head {}", "第 {} 层第 {} 头", layer + 1, h + 1), number_text(moved),
                            number_text(weight, 2), number_text(whole + harm)});
    }
  }
  results.add(std::move(table));
  results.put("most_moved", most);
  results.put("mean_moved", sum / static_cast<double>(kLayers * kHeads));
  results.put("mover_weight", weight_of_mover);
  results.put("mover_harm", harm_of_mover);
  results.put("most_harm", most_harm);
  results.put("loss", whole);
}

Results measure(const Arguments& a, const Progress& progress) {
  Results results;
  Words words;
  TinyModel model({.vocabulary = words.count(), .width = kWidth, .layers = kLayers, .heads = kHeads});
  const std::int64_t steps = a["steps"];
  for (std::int64_t step = 1; step <= steps; ++step) {
    (void)model.train(random_sentences(words, 32, static_cast<std::uint64_t>(step), false), 3e-3);
    progress(0.9 * static_cast<double>(step) / static_cast<double>(steps));
  }
  results.add(say(
      "A model of {} layers and {} parameters, trained here for {} steps on sentences like \"in the studio the new "
      "model walked in red silk\" and \"in the lab the new model learned from long text\". Up to the noun they "
      "differ in one word.",
      "一个 {} 层、{} 个参数的模型，当场训练 {} 步，句子形如 “in the studio the new model walked in red silk”（秀场里的"
      "模特）和 “in the lab the new model learned from long text”（实验室里的模型）。到名词为止，两句只差一个词。",
      kLayers, model.parameter_count(), steps));
  movement_part(model, words, results);
  heads_part(model, words, results);
  return results;
}

std::vector<Conclusion> judge(const Numbers& n) {
  std::vector<Conclusion> list;
  const double start = largest_of({n.at("model_other_0"), n.at("tower_other_0")});
  list.push_back(
      conclude("one_embedding", start < 1e-6,
               say("before the first layer the word has one vector, whatever stands around it (distance {:.0e}).",
                   "进入第一层之前，不管周围是什么，这个词只有一个向量（距离 {:.0e}）。", start),
               say("before the first layer the vectors already differ by {:.2g}.",
                   "进入第一层之前，向量已经相差 {:.2g}。", start)));
  const double model_end = n.at("model_other_2"), tower_end = n.at("tower_other_2");
  list.push_back(
      conclude("context_moves_it", model_end > 0.01 && tower_end > 0.01,
               say("after the last layer the two senses lie {:.3f} (model) and {:.3f} (tower) apart.",
                   "最后一层之后，两种词义相距 {:.3f}（model）和 {:.3f}（tower）。", model_end, tower_end),
               say("after the last layer the two senses lie only {:.3g} and {:.3g} apart: this model has not learnt to "
                   "tell them.",
                   "最后一层之后，两种词义只相距 {:.3g} 和 {:.3g}：这个模型还没学会区分。", model_end, tower_end)));
  const double model_ratio = model_end / largest_of({1e-9, n.at("model_same_2")}),
               tower_ratio = tower_end / largest_of({1e-9, n.at("tower_same_2")});
  list.push_back(conclude(
      "by_meaning_not_by_words", model_ratio > 1.5 && tower_ratio > 1.5,
      say("another sense moves the word {:.1f} (model) and {:.1f} (tower) times as far as another word of the same "
          "sense: it "
          "is moved by meaning.",
          "换一个词义，向量移动的距离是换一个同义语境的 {:.1f} 倍（model）和 {:.1f} 倍（tower）：是意思在推动它。",
          model_ratio, tower_ratio),
      say("another sense moves the word {:.1f} and {:.1f} times as far as another word of the same sense: words count "
          "as much "
          "as meaning here.",
          "换词义移动的距离是换同义语境的 {:.1f} 倍和 {:.1f} 倍：这里换词与换义的影响差不多。", model_ratio,
          tower_ratio)));
  list.push_back(
      conclude("some_heads_did_it", n.at("most_moved") > 1.5 * n.at("mean_moved"),
               say("one head moved it {:.1f} times as far as the average one; it has {:.0f} % of its weight on the "
                   "word that decides.",
                   "有一个头的推动是平均的 {:.1f} 倍；它把 {:.0f} % 的权重放在决定性的词上。",
                   n.at("most_moved") / n.at("mean_moved"), 100 * n.at("mover_weight")),
               say("the strongest head moved it {:.1f} times as far as the average one: the work is shared.",
                   "最强的头只有平均的 {:.1f} 倍：是大家一起推动的。", n.at("most_moved") / n.at("mean_moved"))));
  const double knows = std::log(3.0), blind = std::log(6.0);
  list.push_back(conclude(
      "the_model_knows_the_sense", n.at("loss") < (knows + blind) / 2,
      say("the loss of the word after the noun is {:.2f}: near ln 3 = {:.2f} for one that knows the sense, not ln 6 = "
          "{:.2f}.",
          "名词之后那个词的损失是 {:.2f}：接近知道词义时的 ln 3 = {:.2f}，而不是不知道时的 ln 6 = {:.2f}。",
          n.at("loss"), knows, blind),
      say("the loss of the word after the noun is {:.2f}; a model that knows the sense has {:.2f}, one that does not "
          "{:.2f}.",
          "名词之后那个词的损失是 {:.2f}；知道词义应为 {:.2f}，不知道为 {:.2f}。", n.at("loss"), knows, blind)));
  return list;
}

}  // namespace

Lab context_lab() {
  return {
      .name = "context",
      .title = say("Context moves meaning", "语境推动词义"),
      .question =
          say("\"model\" in a studio and in a lab, \"tower\" in a capital and in a nursery: how far does attention "
              "move the vector of the word, layer by layer, and which heads do it?",
              "秀场里的 model 和实验室里的 model，首都的 tower 和儿童房里的 "
              "tower：注意力逐层把这个词的向量推开多远？是哪些头"
              "做的？"),
      .lesson = say("\"The embedding of a word is updated by its context.\" Said often, measured rarely.",
                    "“词的嵌入会根据上下文更新。”常听人说，很少有人测。"),
      .guess = say(
          "How far apart are the two vectors before the first layer? Does a different word with the same sense move "
          "it as far as a different sense?",
          "第一层之前两个向量相距多远？换一个意思相同的语境，会像换词义一样把它推得那么远吗？"),
      .why = {say(
          "The embedding table has one row for a word. Everything that sets two uses of it apart has to be carried "
          "there by attention, and the feed-forward network can only work on what has arrived. Distances of one "
          "small model trained on four templates say how it works, not how large models arrange meanings.",
          "词嵌入表里一个词只有一行。区分两种用法的一切信息都要由注意力搬过来，前馈网络只能加工已经到达的东西。这里只是"
          "一"
          "个在四种句式上训练的小模型，它说明机制，并不说明大模型里词义是怎样排布的。")},
      .seconds = 15,
      .minutes = 8,
      .parameters = {{"steps", 300, 1, 3000, 120, say("training steps", "训练步数")}},
      .measure = measure,
      .judge = judge};
}

}  // namespace attend::labs
