// Lab: Flash attention against the way that stores the matrix: memory, time, the same numbers.
#include <algorithm>
#include <cmath>
#include <limits>

#include "attend/attention.hpp"
#include "attend/linear.hpp"
#include "attend/softmax.hpp"
#include "io/readable.hpp"
#include "labs/registry.hpp"
#include "labs/tools.hpp"

namespace attend::labs {
namespace {

constexpr std::int64_t kHeadDim = 64;

// Scores, mask, softmax, times V: each a matrix in memory, made by the engine's own products.
void naive(const Tensor& q, const Tensor& k, const Tensor& v, Tensor& out) {
  const std::int64_t L = q.shape()[2];
  Tensor scores(DType::f32, {1, 1, L, L});
  linear(q, k, {}, scores);
  const float scale = 1 / std::sqrt(static_cast<float>(kHeadDim));
  for (std::int64_t i = 0; i < L; ++i) {
    float* row = scores.data<float>() + i * L;
    for (std::int64_t j = 0; j <= i; ++j) row[j] *= scale;
    std::fill(row + i + 1, row + L, -std::numeric_limits<float>::infinity());
  }
  softmax(scores, scores);
  const View values = v;
  const View turned{DType::f32, values.data, {1, 1, kHeadDim, L}, {0, 0, 1, kHeadDim}};
  linear(scores, turned, {}, out);
}

Results measure(const Arguments& a, const Progress& progress) {
  Results results;
  const std::int64_t longest = a["longest"], largest_naive = std::min(longest, a["naive"]);
  CurvesFigure time{"time",
                    say("Time of one head, causal, d = 64", "单头、因果、d = 64 的耗时"),
                    say("tokens", "词元数"),
                    say("seconds", "秒"),
                    {{say("matrix in memory", "把矩阵存下来"), {}}, {same("Flash"), {}}},
                    true,
                    true};
  CurvesFigure memory{"memory",
                      say("Memory beyond inputs and output", "除输入输出以外的内存"),
                      say("tokens", "词元数"),
                      say("bytes", "字节"),
                      {{say("matrix in memory", "把矩阵存下来"), {}}, {same("Flash"), {}}},
                      true,
                      true};
  Table table{say("One head of 64, causal", "一个 64 维的头，因果掩码"),
              {say("tokens", "词元数"), say("matrix: time", "存矩阵：时间"), say("Flash: time", "Flash：时间"),
               say("matrix: memory", "存矩阵：内存"), say("Flash: memory", "Flash：内存"), say("difference", "差值")},
              {}};
  double worst = 0, flash_bytes = 0, naive_bytes = 0, matrix_bytes = 0, ratio = 0;
  bool measured = true;
  for (std::int64_t L = std::min<std::int64_t>(1024, longest); L <= longest; L *= 2) {
    const Tensor q = random_tensor({1, 1, L, kHeadDim}, 1), k = random_tensor({1, 1, L, kHeadDim}, 2),
                 v = random_tensor({1, 1, L, kHeadDim}, 3);
    Tensor fast(DType::f32, q.shape()), slow(DType::f32, q.shape());
    double flash_seconds = 0;
    const double peak = peak_bytes_of(
        [&] { flash_seconds = seconds_of([&] { attention(q, k, v, fast, {.mask = causal()}); }, L > 8192 ? 1 : 2); });
    measured = measured && peak >= 0;
    flash_bytes = std::max(0.0, peak);
    time.curves[1].points.emplace_back(L, flash_seconds);
    memory.curves[1].points.emplace_back(L, std::max(4096.0, peak));
    std::vector<Text> row = {same("{}", L),
                             same("-"),
                             same("{}", io::readable_time(flash_seconds)),
                             same("-"),
                             peak < 0 ? same("?") : same("{}", io::readable_bytes(peak)),
                             same("-")};
    if (L <= largest_naive) {
      double naive_seconds = 0;
      const double naive_peak = peak_bytes_of([&] { naive_seconds = seconds_of([&] { naive(q, k, v, slow); }, 1); });
      measured = measured && naive_peak >= 0;
      naive_bytes = naive_peak;
      matrix_bytes = static_cast<double>(L) * static_cast<double>(L) * 4;
      ratio = naive_seconds / flash_seconds;
      worst = largest_of({worst, largest_difference(fast, slow)});
      time.curves[0].points.emplace_back(L, naive_seconds);
      memory.curves[0].points.emplace_back(L, std::max(4096.0, naive_peak));
      row[1] = same("{}", io::readable_time(naive_seconds));
      row[3] = naive_peak < 0 ? same("?") : same("{}", io::readable_bytes(naive_peak));
      row[5] = number_text(largest_difference(fast, slow), 7);
      results.put("flash_bytes_beside_naive", flash_bytes);
    } else {
      row[3] = say("({} by formula)", "（按公式 {}）",
                   io::readable_bytes(static_cast<double>(L) * static_cast<double>(L) * 4));
    }
    table.rows.push_back(std::move(row));
    progress(static_cast<double>(L) / static_cast<double>(longest) / 1.1);
  }
  results.put("measured", measured ? 1 : 0);
  results.put("difference", worst);
  results.put("flash_bytes", flash_bytes);
  results.put("naive_bytes", naive_bytes);
  results.put("matrix_bytes", matrix_bytes);
  results.put("time_ratio", ratio);
  results.put("longest", longest);
  results.put("longest_naive", largest_naive);
  results.put("longest_matrix", static_cast<double>(longest) * static_cast<double>(longest) * 4);
  results.put("io_bytes", 4 * longest * kHeadDim * 4);
  results.add(std::move(table));
  results.add(std::move(time));
  results.add(std::move(memory));
  return results;
}

std::vector<Conclusion> judge(const Numbers& n) {
  std::vector<Conclusion> list;
  const auto bytes = [&](const char* name) { return io::readable_bytes(std::max(0.0, n.at(name))); };
  list.push_back(
      conclude("same_numbers", n.at("difference") < 1e-4,
               say("both give the same output (largest difference {:.0e}): Flash is exact, not an approximation.",
                   "两者输出相同（最大差 {:.0e}）：Flash 是精确的，不是近似。", n.at("difference")),
               say("they differ by {:.2g}.", "两者相差 {:.2g}。", n.at("difference"))));
  list.push_back(conclude(
      "matrix_is_quadratic", n.at("measured") != 0 && n.at("naive_bytes") > 0.9 * n.at("matrix_bytes"),
      say("storing the matrix took {} at {:.0f} tokens (4·L² bytes are {}); at {:.0f} tokens it would be {} a head.",
          "存下矩阵在 {1:.0f} 个词元时占了 {0}（4·L² 字节是 {2}）；到 {3:.0f} 个词元，每个头要 {4}。",
          bytes("naive_bytes"), n.at("longest_naive"), bytes("matrix_bytes"), n.at("longest"), bytes("longest_matrix")),
      say("the matrix should take {}, measured were {}{}.", "矩阵应占 {}，实测为 {}{}。", bytes("matrix_bytes"),
          bytes("naive_bytes"), n.at("measured") != 0 ? "" : " (?)")));
  list.push_back(
      conclude("flash_is_linear", n.at("measured") != 0 && n.at("flash_bytes") < 64.0 * (1 << 20),
               say("Flash took {} beyond inputs and output at {:.0f} tokens.",
                   "Flash 在 {1:.0f} 个词元时，除输入输出外只用了 {0}。", bytes("flash_bytes"), n.at("longest")),
               say("Flash took {} at {:.0f} tokens: more than the 64 MiB promised.",
                   "Flash 在 {1:.0f} 个词元时用了 {0}，超过承诺的 64 MiB。", bytes("flash_bytes"), n.at("longest"))));
  list.push_back(conclude(
      "flash_is_faster", n.at("time_ratio") > 1,
      say("and it is {:.1f} times as fast at {:.0f} tokens: it does the same sums, but its tiles stay in the "
          "processor's cache, and what the causal mask hides is skipped.",
          "而且在 {1:.0f} 个词元时，速度是前者的 {0:.1f} 倍：算的是同样的和，但数据块一直留在高速缓存里，被因果掩码"
          "屏蔽的部分直接跳过。",
          n.at("time_ratio"), n.at("longest_naive")),
      say("at {1:.0f} tokens it was {0:.2f} times as fast: no gain on this run.",
          "在 {1:.0f} 个词元时速度是 {0:.2f} 倍：这次没有变快。", n.at("time_ratio"), n.at("longest_naive"))));
  return list;
}

}  // namespace

Lab flash_lab() {
  return {
      .name = "flash",
      .title = say("Flash attention", "Flash 注意力"),
      .question = say("What does attention cost in memory and time when the L×L matrix is stored, and when it never "
                      "exists?",
                      "把 L×L 的矩阵存下来，和让它从不存在，注意力在内存和时间上各要花多少？"),
      .lesson = say("\"Flash attention is an approximation that trades accuracy for speed.\" It is neither an "
                    "approximation nor less accurate.",
                    "“Flash 注意力是用精度换速度的近似。”它既不是近似，也没有损失精度。"),
      .guess = say("How large is the matrix of one head at 64k tokens? How far apart are the two outputs?",
                   "64k 个词元时，一个头的矩阵有多大？两种算法的输出差多少？"),
      .why = {say(
          "Softmax can be summed block by block (lab softmax), so a tile of scores may be made, used and "
          "thrown away. The number of multiplications is the same; what is saved is the writing and reading of "
          "L² numbers, and memory that grows with L² becomes memory that grows with L.",
          "softmax 可以一块一块地累加（见 softmax 实验），所以一小块得分算出来、用掉就可以扔。乘法次数没有减少；省下"
          "的是 L² 个数的写入和读出，随 L² 增长的内存也变成了随 L 增长。")},
      .seconds = 20,
      .minutes = 6,
      .parameters = {{"longest", 16384, 256, 65536, 512, say("longest text, up to 65536", "最长文本，可到 65536")},
                     {"naive", 8192, 256, 32768, 512, say("longest text for the matrix", "存矩阵时的最长文本")}},
      .measure = measure,
      .judge = judge};
}

}  // namespace attend::labs
