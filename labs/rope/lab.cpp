// Lab: RoPE: scores depend on distances alone, two layouts of one rotation, and what YaRN changes.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "attend/rope.hpp"
#include "labs/registry.hpp"
#include "labs/tools.hpp"

namespace attend::labs {
namespace {

Tensor rotated(const Tensor& x, std::int64_t position, RopeStyle style, double theta) {
  Tensor y(DType::f32, x.shape());
  rope(x, y, {.style = style, .theta = theta, .positions = {position}});
  return y;
}

double dot(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (std::int64_t d = 0; d < a.size(); ++d)
    sum += static_cast<double>(a.data<float>()[d]) * static_cast<double>(b.data<float>()[d]);
  return sum;
}

// Features of one layout in the order of the other: pair i is (i, i + D/2) there and (2i, 2i + 1) here.
Tensor interleaved_order(const Tensor& x) {
  Tensor y(DType::f32, x.shape());
  const std::int64_t D = x.shape()[3];
  for (std::int64_t i = 0; i < D / 2; ++i) {
    y.data<float>()[2 * i] = x.data<float>()[i];
    y.data<float>()[2 * i + 1] = x.data<float>()[i + D / 2];
  }
  return y;
}

void distance_part(const Arguments& a, Results& results) {
  const std::int64_t D = a["dim"];
  const auto theta = static_cast<double>(a["theta"]);
  const Tensor q = random_tensor({1, 1, 1, D}, 1), k = random_tensor({1, 1, 1, D}, 2);
  const std::int64_t offsets[] = {0, 10, 100, 1000};
  Table table{
      say("q·k after RoPE, for the same q and k at positions (i, j)", "同一对 q、k 放在位置 (i, j)，RoPE 之后的 q·k"),
      {same("i − j"), same("j = 0"), same("j = 10"), same("j = 100"), same("j = 1000")},
      {}};
  double spread = 0, across = 0, norm = 0, first = 0;
  for (const std::int64_t distance : {0, 1, 2, 5, 20}) {
    std::vector<Text> row = {same("{}", distance)};
    double low = 1e30, high = -1e30;
    for (const std::int64_t offset : offsets) {
      const Tensor qi = rotated(q, offset + distance, RopeStyle::half_split, theta);
      const double score = dot(qi, rotated(k, offset, RopeStyle::half_split, theta));
      low = smallest_of({low, score});
      high = largest_of({high, score});
      norm = largest_of({norm, std::abs(std::sqrt(dot(qi, qi) / dot(q, q)) - 1)});
      row.push_back(number_text(score, 4));
    }
    if (distance == 0) first = low;
    across = largest_of({across, std::abs(low - first)});
    spread = largest_of({spread, high - low});
    table.rows.push_back(std::move(row));
  }
  results.add(std::move(table));
  results.put("spread", spread);
  results.put("across", across);
  results.put("norm_change", norm);

  const auto score = [&](const Tensor& x, const Tensor& y, RopeStyle left, RopeStyle right) {
    return dot(rotated(x, 7, left, theta), rotated(y, 3, right, theta));
  };
  const double half = score(q, k, RopeStyle::half_split, RopeStyle::half_split);
  const double reordered =
      score(interleaved_order(q), interleaved_order(k), RopeStyle::interleaved, RopeStyle::interleaved);
  const double wrong = score(q, k, RopeStyle::interleaved, RopeStyle::interleaved);
  results.put("layouts_difference", std::abs(half - reordered));
  results.put("wrong_layout_difference", std::abs(half - wrong));
  results.add(Table{say("Two layouts of the same rotation, positions 7 and 3", "同一种旋转的两种排列，位置 7 和 3"),
                    {say("layout", "排列"), same("q·k")},
                    {{say("half-split: pairs (i, i + d/2)", "前后对半：(i, i + d/2)"), number_text(half, 4)},
                     {say("interleaved, features reordered", "相邻成对，特征同样重排"), number_text(reordered, 4)},
                     {say("interleaved on half-split weights", "把相邻成对用在对半的权重上"), number_text(wrong, 4)}}});
}

// Which pairs keep their speed, and from which on they rotate `factor` times slower.
struct Ramp {
  std::int64_t last_kept = -1, first_slowed = -1;
};
Ramp ramp_of(const std::vector<double>& before, const std::vector<double>& after, double factor) {
  Ramp ramp;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const double ratio = before[i] / after[i];
    if (std::abs(ratio - 1) < 1e-9) ramp.last_kept = static_cast<std::int64_t>(i);
    if (ramp.first_slowed < 0 && std::abs(ratio - factor) < 1e-9 * factor)
      ramp.first_slowed = static_cast<std::int64_t>(i);
  }
  return ramp;
}

void yarn_part(const Arguments& a, Results& results) {
  const std::int64_t D = a["dim"], trained = a["trained"];
  const double theta = 1e6;
  const auto factor = static_cast<double>(a["factor"]);
  const RopeScaling yarn{
      .kind = RopeScaling::Kind::yarn, .factor = factor, .original_length = trained, .attention_factor = 1.0};
  const std::vector<double> before = rope_frequencies(D, theta).per_position,
                            after = rope_frequencies(D, theta, yarn).per_position;
  const Ramp ramp = ramp_of(before, after, factor);
  const double longest = factor * static_cast<double>(trained);
  // A pair that made less than one turn in training has never shown its later angles; beyond it they are new.
  std::int64_t slow = 0, new_before = 0, new_after = 0;
  CurvesFigure figure{"turns",
                      say("Turns of each pair over {} tokens, where {} were trained (one turn: all angles seen)",
                          "各对在 {} 个词元内转的圈数，训练长度为 {}（转满一圈才见过所有角度）",
                          static_cast<std::int64_t>(longest), trained),
                      say("pair", "第几对"),
                      say("turns", "圈数"),
                      {},
                      false,
                      true};
  figure.curves = {
      {say("as trained", "原来的"), {}}, {say("YaRN", "YaRN（缩放后）"), {}}, {say("in training", "训练时"), {}}};
  for (std::size_t i = 0; i < before.size(); ++i) {
    const double in_training = before[i] * static_cast<double>(trained) / (2 * std::numbers::pi);
    const double plain = before[i] * longest / (2 * std::numbers::pi),
                 stretched = after[i] * longest / (2 * std::numbers::pi);
    figure.curves[0].points.emplace_back(i, plain);
    figure.curves[1].points.emplace_back(i, stretched);
    figure.curves[2].points.emplace_back(i, in_training);
    if (in_training >= 1) continue;
    ++slow;
    new_before += plain > in_training * 1.001 ? 1 : 0;
    new_after += stretched > in_training * 1.001 ? 1 : 0;
  }
  results.add(std::move(figure));
  results.put("pairs", D / 2);
  results.put("slow_pairs", slow);
  results.put("new_before", new_before);
  results.put("new_after", new_after);
  results.put("last_kept", ramp.last_kept);
  results.put("first_slowed", ramp.first_slowed);
  results.put("fastest_kept", std::abs(before.front() - after.front()) < 1e-12 ? 1 : 0);
  // MiniMind's own numbers: factor 16, trained with 2048, theta 1e6.
  const RopeScaling minimind{
      .kind = RopeScaling::Kind::yarn, .factor = 16, .original_length = 2048, .attention_factor = 1.0};
  for (const std::int64_t dim : {64, 96}) {
    const Ramp own =
        ramp_of(rope_frequencies(dim, theta).per_position, rope_frequencies(dim, theta, minimind).per_position, 16);
    results.put(fmt::format("minimind_low_{}", dim), own.last_kept);
    results.put(fmt::format("minimind_high_{}", dim), own.first_slowed);
  }
}

Results measure(const Arguments& a, const Progress&) {
  if (a["dim"] % 2 != 0) throw Refused(say("dim is {}, expected an even number", "dim 是 {}，应为偶数", a["dim"]));
  Results results;
  distance_part(a, results);
  yarn_part(a, results);
  return results;
}

std::vector<Conclusion> judge(const Numbers& n) {
  std::vector<Conclusion> list;
  list.push_back(conclude("distance_alone", n.at("spread") < 1e-2 && n.at("across") > 0.1,
                          say("q·k depends on i − j alone: moved by 10, 100, 1,000 places a score changes by {:.0e} at "
                              "most (rounding of the "
                              "angles), while distances change it by up to {:.1f}.",
                              "q·k 只取决于 i − j：整体平移 10、100、1000 个位置，得分最多变 "
                              "{:.0e}（角度的舍入），而距离不同，得分可差 {:.1f}。",
                              n.at("spread"), n.at("across")),
                          say("moving both changed scores by {:.2g}, distances by {:.2g}.",
                              "整体平移使得分变化 {:.2g}，距离不同使其变化 {:.2g}。", n.at("spread"), n.at("across"))));
  list.push_back(conclude("length_is_kept", n.at("norm_change") < 1e-5,
                          say("a rotation keeps the length of every vector (changed by {:.0e} at most).",
                              "旋转不改变向量的长度（最多变 {:.0e}）。", n.at("norm_change")),
                          say("lengths changed by {:.2g}.", "长度变化了 {:.2g}。", n.at("norm_change"))));
  list.push_back(conclude(
      "two_layouts_of_one_thing", n.at("layouts_difference") < 1e-3 && n.at("wrong_layout_difference") > 1e-2,
      say("half-split and interleaved are the same rotation with features in another order (difference {:.0e}); but a "
          "model's weights know one order: the wrong one is off by {:.2f}.",
          "前后对半与相邻成对是同一种旋转，只是特征的排列不同（差 {:.0e}）；但一个模型的权重只认一种排列，用错就差 "
          "{:.2f}。",
          n.at("layouts_difference"), n.at("wrong_layout_difference")),
      say("reordered layouts differ by {:.2g}, the wrong one by {:.2g}.", "重排后相差 {:.2g}，用错排列相差 {:.2g}。",
          n.at("layouts_difference"), n.at("wrong_layout_difference"))));
  list.push_back(
      conclude("yarn_keeps_seen_angles", n.at("fastest_kept") != 0 && n.at("new_after") < n.at("new_before"),
               say("beyond the trained length {:.0f} of the {:.0f} pairs that made less than a turn in training reach "
                   "angles never "
                   "seen; with YaRN {:.0f} do. The fastest pairs, which tell neighbours apart, keep their speed.",
                   "超出训练长度后，训练时不满一圈的 {1:.0f} 对里，有 {0:.0f} 对会转到从没见过的角度；用 YaRN 后只剩 "
                   "{2:.0f} 对。最快"
                   "的那些对负责区分相邻的词元，速度不变。",
                   n.at("new_before"), n.at("slow_pairs"), n.at("new_after")),
               say("pairs with angles never seen: {:.0f} before YaRN, {:.0f} after.",
                   "转到未见角度的对数：YaRN 之前 {:.0f}，之后 {:.0f}。", n.at("new_before"), n.at("new_after"))));
  list.push_back(conclude(
      "minimind_ramp",
      n.at("minimind_low_64") == 5 && n.at("minimind_high_64") == 14 && n.at("minimind_low_96") == 8 &&
          n.at("minimind_high_96") == 21,
      say("MiniMind's ramp (factor 16 from 2,048) runs over pairs {:.0f} to {:.0f} for d = 64 and {:.0f} to {:.0f} for "
          "d = 96.",
          "MiniMind 的过渡区（从 2,048 扩到 16 倍）：d = 64 时是第 {:.0f} 到 {:.0f} 对，d = 96 时是第 {:.0f} 到 {:.0f} "
          "对。",
          n.at("minimind_low_64"), n.at("minimind_high_64"), n.at("minimind_low_96"), n.at("minimind_high_96")),
      say("MiniMind's ramp came out as {:.0f}..{:.0f} and {:.0f}..{:.0f}, expected 5..14 and 8..21.",
          "MiniMind 的过渡区算得 {:.0f}..{:.0f} 和 {:.0f}..{:.0f}，应为 5..14 和 8..21。", n.at("minimind_low_64"),
          n.at("minimind_high_64"), n.at("minimind_low_96"), n.at("minimind_high_96"))));
  return list;
}

}  // namespace

Lab rope_lab() {
  return {
      .name = "rope",
      .title = say("RoPE: positions as rotations", "RoPE：用旋转表示位置"),
      .question = say("How can rotating q and k by their own positions make scores depend on the distance alone, and "
                      "what happens beyond the trained length?",
                      "q 和 k 各自按自己的位置旋转，得分为什么就只取决于距离？超出训练长度又会怎样？"),
      .lesson =
          say("\"RoPE encodes absolute positions by rotation and relative ones by the dot product.\" Right; which "
              "features form a pair differs between models.",
              "“RoPE 用旋转编码绝对位置，点积里自然出现相对位置。”说得对；但哪两个特征成一对，各模型并不相同。"),
      .guess =
          say("Move q and k on by 1,000 places together: does their score change? How many pairs reach angles that "
              "training never showed, at 16 times the length?",
              "把 q、k 一起后移 1000 个位置，得分会变吗？长度变成 16 倍时，有多少对会转到训练中没见过的角度？"),
      .why = {say(
          "Each pair of features is a point in a plane, rotated by position × speed. The dot product of two "
          "rotated points depends on the difference of their angles, (i − j) × speed. Fast pairs tell near "
          "places apart, slow ones far places. A slow pair that did not finish one turn in training meets new "
          "angles later; YaRN slows those down until the longer text fits into what was seen, and leaves the "
          "fast ones alone.",
          "每两个特征构成平面上的一个点，旋转的角度是位置 × 速度。两个旋转后的点的点积只取决于角度之差，即 "
          "(i − j) × 速度。快的对区分近处，慢的对区分远处。训练时没转满一圈的慢对，文本更长时会遇到没见过的角度；"
          "YaRN 让它们转得更慢，使更长的文本落在见过的范围里，而不动快的对。")},
      .seconds = 1,
      .minutes = 8,
      .parameters = {{"dim", 64, 2, 256, 64, say("head dimension, even", "头维度，偶数")},
                     {"theta", 10000, 2, 100000000, 10000, say("theta of the first part", "第一部分的 theta")},
                     {"trained", 2048, 16, 1000000, 2048, say("trained length (YaRN)", "训练长度（YaRN）")},
                     {"factor", 16, 2, 64, 16, say("how many times longer (YaRN)", "扩展倍数（YaRN）")}},
      .measure = measure,
      .judge = judge};
}

}  // namespace attend::labs
