// Questions about layers: heads, values, grouped queries, shapes, RoPE.
#include <numbers>

#include "attend/attention.hpp"
#include "attend/multi_head_attention.hpp"
#include "attend/rope.hpp"
#include "labs/quiz/ask.hpp"
#include "labs/tools.hpp"

namespace attend::labs {
namespace {

double parameters(std::int64_t width, std::int64_t heads, std::int64_t kv_heads = 0, std::int64_t rank = 0) {
  return static_cast<double>(
      MultiHeadAttention({.width = width, .heads = heads, .kv_heads = kv_heads, .value_rank = rank}).parameter_count());
}

double qkv(std::int64_t width, std::int64_t heads, std::int64_t kv_heads) {
  const MultiHeadAttention layer({.width = width, .heads = heads, .kv_heads = kv_heads});
  return static_cast<double>(layer.parameters().wq.size() + layer.parameters().wk.size() +
                             layer.parameters().wv.size());
}

double kv(std::int64_t width, std::int64_t heads, std::int64_t kv_heads) {
  const MultiHeadAttention layer({.width = width, .heads = heads, .kv_heads = kv_heads});
  return static_cast<double>(layer.parameters().wk.size() + layer.parameters().wv.size());
}

// Which KV head query head h reads: found by giving each KV head's values its own number.
double kv_head_of(std::int64_t heads, std::int64_t kv_heads, std::int64_t h) {
  const Tensor q(DType::f32, {1, heads, 1, 2}), k(DType::f32, {1, kv_heads, 1, 2});
  Tensor v(DType::f32, {1, kv_heads, 1, 1});
  for (std::int64_t n = 0; n < kv_heads; ++n) v.data<float>()[n] = static_cast<float>(n);
  return static_cast<double>(attention(q, k, v).out.data<float>()[h]);
}

double rotated_first(float x0, float x1, std::int64_t position, double theta) {
  float x[2] = {x0, x1}, y[2];
  rope(view_of(static_cast<const float*>(x), {1, 1, 1, 2}), view_of(y, {1, 1, 1, 2}),
       {.theta = theta, .positions = {position}});
  return static_cast<double>(y[0]);
}

void about_heads(std::vector<Question>& list) {
  list.push_back(choose_number("heads-parameters", "heads",
                               say("Width 512, no biases: how many parameters does a layer with 8 heads of 64 have?",
                                   "宽度 512、无偏置：8 个 64 维的头的一层有多少参数？"),
                               {262144, 786432, 1048576, 8388608}, parameters(512, 8),
                               say("4·512²: Q, K, V and O.", "4·512²：Q、K、V、O。")));
  list.push_back(choose_number(
      "heads-ratio", "heads",
      say("How many times the parameters of 1 head of 512 do 8 heads of 64 have, at width 512?",
          "宽度 512 时，8 个 64 维的头的参数是 1 个 512 维的头的多少倍？"),
      {1, 2, 8, 64}, parameters(512, 8) / parameters(512, 1), say("The split costs nothing.", "拆头不增加参数。")));
  list.push_back(choose("concat-sum", "heads",
                        say("\"Concatenate the heads, multiply by W_O\" is the same as…", "“拼接各头再乘 W_O”等价于……"),
                        {say("the mean of the heads", "各头的平均"),
                         say("each head times its slice of W_O, summed", "每个头乘自己那片 W_O 再相加"),
                         say("the largest head", "最大的那个头"), say("a second softmax", "再做一次 softmax")},
                        1,
                        say("A matrix product over concatenated features is a sum over the parts.",
                            "对拼接特征做矩阵乘，就是分块相加。")));
  list.push_back(choose("diagonal", "heads", say("Heads with random weights look mostly…", "随机权重的头主要看哪里？"),
                        {say("near the diagonal", "对角线附近"), say("at the first token", "第一个词元"),
                         say("everywhere about alike", "到处差不多"), say("at themselves", "自己")},
                        2, say("A pattern has to be learnt.", "关注模式是学出来的。")));
  list.push_back(choose(
      "one-head", "heads",
      say("What can two heads do that one, however large, cannot?", "一个头维度再大也做不到、两个头能做到的是什么？"),
      {say("see two places without blending their values", "看两个地方而不把它们的值混在一起"),
       say("see the whole text", "看到整段文本"), say("use a mask", "使用掩码"), say("be trained", "被训练")},
      0, say("A head makes one distribution a query.", "一个头对每个查询只有一个分布。")));
  list.push_back(
      choose("wo-name", "values",
             say("In code, where does the value-up matrix V↑ of each head sit?", "在代码里，每个头的 V↑ 在哪里？"),
             {say("in W_V", "在 W_V 里"), say("in W_O", "在 W_O 里"), say("in W_K", "在 W_K 里"),
              say("in the feed-forward network", "在前馈网络里")},
             1, say("The V↑ of all heads side by side is W_O.", "所有头的 V↑ 并排就是 W_O。")));
  list.push_back(
      compute("rank", "values",
              say("W_V is [512, 64]·[64, 512]. What is its rank at most?", "W_V = [512, 64]·[64, 512]，秩最多是多少？"),
              std::min(512, 64), 0.1, say("It passes through 64 dimensions.", "要经过 64 维。")));
  list.push_back(choose_number("rank-parameters", "values",
                               say("Width 512, value rank 64: how many parameters does the factored W_V have?",
                                   "宽度 512、秩 64：分解后的 W_V 有多少参数？"),
                               {32768, 65536, 131072, 262144}, parameters(512, 1, 0, 64) - 3.0 * 512 * 512,
                               say("2·512·64 instead of 512².", "2·512·64，而不是 512²。")));
}

void about_gqa(std::vector<Question>& list) {
  list.push_back(predict("gqa-head", "gqa",
                         say("8 query heads, 2 KV heads: which KV head does query head 5 read (from 0)?",
                             "8 个查询头、2 个 KV 头：5 号查询头（从 0 数）读哪个 KV 头？"),
                         kv_head_of(8, 2, 5), 0.1, say("⌊5 / 4⌋ = 1.", "⌊5 / 4⌋ = 1。")));
  list.push_back(
      predict("gqa-head-3", "gqa",
              say("8 query heads, 2 KV heads: which KV head does query head 3 read (from 0)?",
                  "8 个查询头、2 个 KV 头：3 号查询头（从 0 数）读哪个 KV 头？"),
              kv_head_of(8, 2, 3), 0.1,
              say("Heads 0 to 3 share KV head 0; they are not interleaved.", "0 到 3 号头共用 KV 头 0，不是交错的。")));
  list.push_back(
      compute_percent("gqa-qkv", "gqa",
                      say("Hidden 512, GQA 8/2: what percentage of the QKV parameters is saved?",
                          "hidden 512、GQA 8/2：QKV 参数省百分之几？"),
                      100 - 100 * qkv(512, 8, 2) / qkv(512, 8, 8), 0.5,
                      say("512·(8 + 4)·64 against 512·24·64: half.", "512·(8 + 4)·64 比 512·24·64：省一半。")));
  list.push_back(
      compute_percent("gqa-kv", "gqa",
                      say("Hidden 512, GQA 8/2: what percentage of the parameters of K and V alone is saved?",
                          "hidden 512、GQA 8/2：只看 K 和 V，参数省百分之几？"),
                      100 - 100 * kv(512, 8, 2) / kv(512, 8, 8), 0.5,
                      say("A quarter of the KV heads is left.", "KV 头只剩四分之一。")));
  list.push_back(choose("repeat-kv", "gqa", say("repeat_kv by expand and reshape…", "repeat_kv 用 expand 加 reshape……"),
                        {say("is a view", "是视图"), say("copies", "会复制"),
                         say("shares memory until written", "写入前共享内存"), say("depends on the device", "看设备")},
                        1, say("No stride serves the merged axis.", "合并后的轴没有合适的步长。")));
  list.push_back(
      choose("gqa-kernel", "gqa", say("What does a fast kernel do about repeat_kv?", "快速内核怎样处理 repeat_kv？"),
             {say("it copies faster", "复制得更快"),
              say("it never repeats: heads of a group read the same K and V", "从不重复：同组的头读同一份 K、V"),
              say("it compresses K and V", "压缩 K 和 V"), say("it needs MHA", "只支持 MHA")},
             1, say("The heads of a group are packed into one row dimension.", "同组的头合并成一个行维度。")));
  const MultiHeadAttention mini({.width = 512, .heads = 8, .kv_heads = 2});
  list.push_back(
      compute("kv-bytes", "kv-cache",
              say("MiniMind2-small: 8 layers, 2 KV heads of 64, f16. How many KV-cache bytes does a token take?",
                  "MiniMind2-small：8 层、2 个 64 维 KV 头、f16。每个词元的 KV 缓存占多少字节？"),
              8.0 * 2 * static_cast<double>(mini.config().kv_heads * mini.config().head_dim) * 2, 0.5,
              say("8 · 2 · 2 · 64 · 2 bytes: K and V.", "8 · 2 · 2 · 64 · 2 字节：K 和 V。")));
  list.push_back(choose("mqa", "gqa", say("MQA is GQA with how many KV heads?", "MQA 是几个 KV 头的 GQA？"),
                        {same("0"), same("1"), same("2"), say("as many as query heads", "与查询头一样多")}, 1,
                        say("All query heads share one.", "所有查询头共用一个。")));
}

void about_shapes(std::vector<Question>& list) {
  const Strides packed = contiguous_strides({2, 4, 10, 8}), by_length = length_major_strides({2, 4, 10, 8});
  list.push_back(compute(
      "stride-head", "shapes",
      say("[B 2, L 10, H 4, D 8] in memory, seen as [B, H, L, D]: what is the stride of the heads' axis?",
          "内存里是 [B 2, L 10, H 4, D 8]，当作 [B, H, L, D] 看：头这个轴的步长是多少？"),
      static_cast<double>(by_length[1]), 0.1, say("The next head lies D numbers on.", "下一个头在 D 个数之后。")));
  list.push_back(
      compute("stride-length", "shapes",
              say("[B 2, L 10, H 4, D 8] in memory, seen as [B, H, L, D]: what is the stride of the length's axis?",
                  "内存里是 [B 2, L 10, H 4, D 8]，当作 [B, H, L, D] 看：长度这个轴的步长是多少？"),
              static_cast<double>(by_length[2]), 0.1, say("H·D: a whole token.", "H·D：整个词元。")));
  list.push_back(compute("stride-packed", "shapes",
                         say("Contiguous [2, 4, 10, 8]: what is the stride of the second axis?",
                             "连续的 [2, 4, 10, 8]：第二个轴的步长是多少？"),
                         static_cast<double>(packed[1]), 0.1, say("10·8.", "10·8。")));
  list.push_back(choose("transpose-copy", "shapes", say("transpose(1, 2) in PyTorch…", "PyTorch 的 transpose(1, 2)……"),
                        {say("copies", "会复制"), say("only swaps sizes and strides", "只交换形状和步长"),
                         say("copies on the GPU only", "只在 GPU 上复制"), say("makes it contiguous", "使它连续")},
                        1, say("Nothing moves; the result is not contiguous.", "内存没动；结果不连续。")));
  list.push_back(choose(
      "view-fails", "shapes",
      say("Why does .view(B, L, H·D) fail after attention's transpose(1, 2)?",
          "注意力之后 transpose(1, 2)，为什么 .view(B, L, H·D) 会报错？"),
      {say("the sizes do not fit", "大小不对"), say("heads and dim have no common stride", "头与 dim 没有共同的步长"),
       say("view needs f32", "view 需要 f32"), say("autograd forbids it", "自动求导不允许")},
      1, say("Merged axes need outer stride = inner stride × size.", "合并要求外层步长 = 内层步长 × 大小。")));
}

void about_rope(std::vector<Question>& list) {
  list.push_back(choose(
      "rope-depends", "rope",
      say("After RoPE, q·k depends on the positions i and j through…", "RoPE 之后，q·k 通过什么依赖位置 i 和 j？"),
      {say("i alone", "只看 i"), say("i − j alone", "只看 i − j"), same("i + j"), same("i · j")}, 1,
      say("Angles of a pair are subtracted in the product.", "乘积里两个角度相减。")));
  list.push_back(choose("rope-pairs", "rope",
                        say("As Hugging Face has them, Llama and Qwen, like MiniMind 2 and 3, pair feature i with…",
                            "Hugging Face 版的 Llama、Qwen，以及 MiniMind 2/3，把特征 i 与谁配对？"),
                        {same("i + 1"), same("i + d/2"), same("d − i"), same("2i")}, 1,
                        say("Half-split; MiniMind v1 and Meta's own Llama code pair neighbours.",
                            "前后对半；MiniMind v1 和 Meta 原版的 Llama 代码是相邻成对。")));
  list.push_back(
      predict("rope-run", "rope",
              say("x = [1, 0] at position 2 with one pair (speed 1): what is the first number after RoPE (2 digits)?",
                  "x = [1, 0]，位置 2，只有一对（速度 1）：RoPE 之后第一个数是多少（两位小数）？"),
              rotated_first(1, 0, 2, 10000), 6e-3, say("cos 2 = −0.42.", "cos 2 = −0.42。")));
  list.push_back(predict("rope-zero", "rope",
                         say("x = [3, 4] at position 0: what is the first number after RoPE?",
                             "x = [3, 4]，位置 0：RoPE 之后第一个数是多少？"),
                         rotated_first(3, 4, 0, 10000), 1e-3, say("No rotation at 0.", "位置 0 不旋转。")));
  const auto speeds = rope_frequencies(64, 1e6).per_position;
  list.push_back(compute(
      "rope-slow", "rope",
      say("RoPE, d = 64, theta 1e6: about how many tokens does pair 16 (from 0) take for one turn (within 5 %)?",
          "RoPE，d = 64、theta 1e6：16 号对（从 0 数）转一圈约需多少个词元（误差 5 % 以内）？"),
      2 * std::numbers::pi / speeds[16], 0.05 * 2 * std::numbers::pi / speeds[16],
      say("2π · 1e6^(32/64) = 2π · 1000.", "2π · 1e6^(32/64) = 2π · 1000。")));
  list.push_back(choose(
      "yarn", "rope", say("What does YaRN slow down?", "YaRN 让哪些对转得更慢？"),
      {say("all pairs alike", "所有对一样慢"),
       say("the slow pairs; the fast ones keep their speed", "慢的对；快的对不变"), say("the fast pairs", "快的对"),
       say("none", "都不变")},
      1, say("Fast pairs tell neighbours apart and have seen every angle.", "快的对区分邻近位置，而且见过所有角度。")));
  list.push_back(choose(
      "rope-values", "rope", say("Which of q, k, v does RoPE rotate?", "RoPE 旋转 q、k、v 中的哪些？"),
      {say("all three", "三个都转"), say("q and k", "q 和 k"), say("k and v", "k 和 v"), say("only k", "只转 k")}, 1,
      say("Only scores need positions.", "只有得分需要位置。")));
}

}  // namespace

std::vector<Question> layer_questions() {
  std::vector<Question> list;
  about_heads(list);
  about_gqa(list);
  about_shapes(list);
  about_rope(list);
  return list;
}

}  // namespace attend::labs
