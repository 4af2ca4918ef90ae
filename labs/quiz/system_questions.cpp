// Questions about what surrounds attention: caches, Flash, cost, the family, whole models, history.
#include "attend/linear_attention.hpp"
#include "attend/multi_head_attention.hpp"
#include "labs/quiz/ask.hpp"
#include "llm/model/plan.hpp"

namespace attend::labs {
namespace {

void about_caches(std::vector<Question>& list) {
  const MultiHeadAttention layer({.width = 512, .heads = 8, .kv_heads = 2});
  list.push_back(compute("cache-1000", "kv-cache",
                         say("One layer, 2 KV heads of 64, f32: how many bytes hold K and V of 1,000 tokens?",
                             "一层、2 个 64 维 KV 头、f32：1,000 个词元的 K 和 V 占多少字节？"),
                         static_cast<double>(KvCache(layer.config(), 1, 1000).bytes()), 0.5,
                         say("2 · 2 · 64 · 4 · 1000.", "2 · 2 · 64 · 4 · 1000。")));
  list.push_back(choose(
      "cache-same", "kv-cache", say("Decoding with a KV cache in f32 here gives…", "这里用 f32 的 KV 缓存解码，结果……"),
      {say("nearly the same", "近似相同"), say("the bits of the full pass", "与整段前向逐位相同"),
       say("a cheaper approximation", "一个便宜的近似"), say("other results, but fair ones", "不同但合理的结果")},
      1, say("The same chain of operations for a row, whatever stands around it.", "每一行的运算顺序与周围无关。")));
  list.push_back(choose(
      "cache-what", "kv-cache", say("Why are queries not cached?", "为什么不缓存查询？"),
      {say("they are too large", "太大了"), say("nobody asks with an old query again", "旧的查询不会再用"),
       say("they change", "它们会变"), say("they are cached, in fact", "其实缓存了")},
      1, say("Only the new token asks; it needs old keys and values.", "只有新词元在提问，它需要的是旧的键和值。")));
  list.push_back(
      choose("cache-cost", "kv-cache",
             say("With a cache, the attention of one new token costs…", "有缓存时，一个新词元的注意力代价是……"),
             {same("O(1)"), same("O(L)"), same("O(L²)"), same("O(log L)")}, 1,
             say("It reads all cached keys and values once.", "要把缓存的键和值读一遍。")));
  list.push_back(choose("cache-rope", "kv-cache", say("Keys go into the cache…", "键在什么时候放进缓存？"),
                        {say("before RoPE", "RoPE 之前"), say("after RoPE", "RoPE 之后"),
                         say("after softmax", "softmax 之后"), say("either, it is the same", "都一样")},
                        1, say("Each rotated by its own position, once.", "各按自己的位置旋转一次。")));
  list.push_back(choose("window-layers", "kv-cache",
                        say("A window of w in every one of n layers: how far back can the last layer see at most?",
                            "n 层，每层窗口 w：最后一层最远能间接看到多远？"),
                        {same("w"), say("about n·w", "约 n·w"), same("w²"), say("everything", "全部")}, 1,
                        say("Each layer adds its own window.", "每层再往前推一个窗口。")));
}

void about_cost(std::vector<Question>& list) {
  list.push_back(compute("matrix-64k", "flash",
                         say("How many GiB is the score matrix of one head at 65,536 tokens in f32?",
                             "65,536 个词元时，一个头的得分矩阵（f32）有多少 GiB？"),
                         65536.0 * 65536.0 * 4 / (1024.0 * 1024 * 1024), 0.1,
                         say("2³² numbers of 4 bytes.", "2³² 个数，每个 4 字节。")));
  list.push_back(
      choose("flash-exact", "flash", say("Flash attention is…", "Flash 注意力是……"),
             {say("an approximation", "近似"), say("exact, with less memory traffic", "精确的，只是少搬内存"),
              say("a sparse pattern", "稀疏模式"), say("linear attention", "线性注意力")},
             1, say("The same sums in tiles.", "同样的和，分块来算。")));
  list.push_back(choose(
      "flash-flops", "flash",
      say("Compared with storing the matrix, Flash's forward pass multiplies…",
          "与存下整个矩阵的算法相比，Flash 前向的乘法次数……"),
      {say("much less", "少得多"), say("about as often", "差不多"), say("twice as often", "两倍"),
       say("not at all", "不用乘法")},
      1, say("What is saved is memory traffic, and what the mask hides.", "省下的是内存读写，以及被掩码屏蔽的部分。")));
  list.push_back(
      choose_number("double-length", "cost",
                    say("The text doubles. By how much does the number of pairs of full (unmasked) attention grow?",
                        "文本长度翻倍，完整（无掩码）注意力的词对数变成几倍？"),
                    {2, 3, 4, 8}, (2048.0 * 2048) / (1024.0 * 1024), say("L².", "L²。")));
  list.push_back(choose(
      "rnn-steps", "cost",
      say("Why can attention train faster than an RNN although it computes more?",
          "注意力算得更多，为什么训练反而可以比 RNN 快？"),
      {say("all positions are computed at once", "所有位置可以同时算"), say("it has fewer parameters", "参数更少"),
       say("it needs no gradients", "不需要梯度"), say("it cannot", "不会更快")},
      0, say("A recurrent step waits for the one before.", "循环网络的一步要等上一步。")));
  list.push_back(
      compute("path", "cost",
              say("Through how many attention layers must a signal pass from the first token to the last (no window)?",
                  "信号从第一个词元传到最后一个，至少要经过几层注意力（无窗口）？"),
              1, 0.1, say("Every token sees every earlier one directly.", "每个词元都直接看到之前的所有词元。")));
  const Tensor q(DType::f32, {1, 1, 8, 16}), v(DType::f32, {1, 1, 8, 32});
  const Shape state = linear_state_shape(q, q, v);
  list.push_back(compute("linear-state", "family",
                         say("Linear attention, d = 16 features, values of 32, normalised: how many numbers does its "
                             "state hold, at any length?",
                             "线性注意力，特征 16，值 32 维，带归一化：不管多长，状态有多少个数？"),
                         static_cast<double>(state[2] * state[3]), 0.1,
                         say("16·(32 + 1): the last column is the normaliser.", "16·(32 + 1)：最后一列是归一化项。")));
  list.push_back(
      choose("which-exact", "family",
             say("Which of these computes exactly what full attention does?", "下面哪个与完整注意力的结果完全一致？"),
             {say("Longformer", "Longformer（滑窗加全局）"), say("Linformer", "Linformer（投影长度）"),
              say("ring attention", "环形注意力"), say("linear attention", "线性注意力")},
             2, say("Blocks of keys may come from other machines and are merged.", "键块可以来自别的机器，再合并。")));
  list.push_back(choose("mla", "family", say("What does MLA keep in its cache?", "MLA 的缓存里存的是什么？"),
                        {say("keys and values of all heads", "所有头的键和值"),
                         say("one short vector a token, and a rotated key part", "每个词元一个短向量和一段旋转过的键"),
                         say("scores", "得分"), say("nothing", "什么都不存")},
                        1, say("Keys and values of every head are made from it.", "所有头的键和值都由它生成。")));
  list.push_back(
      choose("linformer-causal", "family", say("Why is Linformer not causal?", "为什么 Linformer 不能做因果？"),
             {say("it has no softmax", "它没有 softmax"),
              say("each projected key mixes all positions", "每个投影后的键混合了所有位置"),
              say("it is too fast", "它太快"), say("it is", "其实可以")},
             1, say("Nothing can be hidden from a query any more.", "已经没有办法对某个查询屏蔽某个位置。")));
  list.push_back(choose("reformer", "family",
                        say("Reformer finds the keys worth looking at by…", "Reformer 怎样找到值得看的键？"),
                        {say("a window", "窗口"), say("hashing", "哈希"), say("sorting by length", "按长度排序"),
                         say("a second model", "另一个模型")},
                        1, say("Vectors that point the same way share a bucket.", "方向相近的向量落进同一个桶。")));
}

void about_models(std::vector<Question>& list) {
  const llm::ParameterCounts gpt3 = llm::count_parameters(*llm::find_shape("gpt-3"));
  list.push_back(compute(
      "gpt3-embedding", "gpt3",
      say("GPT-3's embedding, 50,257 × 12,288: how many parameters?", "GPT-3 的词嵌入 50,257 × 12,288：有多少参数？"),
      static_cast<double>(gpt3.embedding), 0.5, say("617,558,016.", "一共 617,558,016。")));
  list.push_back(compute(
      "gpt3-head-dim", "gpt3",
      say("GPT-3: width 12,288, 96 heads. What is the head dimension?", "GPT-3：宽度 12,288、96 个头。头维度是多少？"),
      static_cast<double>(llm::find_shape("gpt-3")->head_dim), 0.1,
      say("12,288 / 96.", "12,288 / 96，即每头的维度。")));
  list.push_back(choose_number(
      "gpt3-queries", "gpt3",
      say("How many parameters are in all of GPT-3's query matrices?", "GPT-3 所有查询矩阵共有多少参数？"),
      {150994944, 1207959552, 14495514624, 57982058496}, static_cast<double>(gpt3.queries),
      say("96 layers · 12,288 · 96 · 128.", "96 层 · 12,288 · 96 · 128。")));
  list.push_back(compute_percent(
      "gpt3-attention", "gpt3",
      say("What percentage of GPT-3 is attention (whole number)?", "注意力占 GPT-3 的百分之几（整数）？"),
      100 * static_cast<double>(gpt3.attention()) / static_cast<double>(gpt3.total()), 1,
      say("A third; nearly all the rest is in the feed-forward networks.", "三分之一；其余几乎都是前馈网络。")));
  list.push_back(compute("minimind3", "gpt3",
                         say("How many million parameters does MiniMind-3 have (dense, whole number)?",
                             "MiniMind-3（稠密版）有多少百万参数（取整）？"),
                         static_cast<double>(llm::count_parameters(*llm::find_shape("minimind-3")).total()) / 1e6, 0.6,
                         say("63,912,192.", "一共 63,912,192。")));
  list.push_back(choose("block-share", "gpt3",
                        say("In a block with a feed-forward width of 4·hidden, which part has more parameters?",
                            "前馈宽度为 4·hidden 的 Transformer 块里，哪部分参数更多？"),
                        {say("attention", "注意力"), say("feed-forward: twice as many", "前馈：两倍"),
                         say("they are equal", "一样多"), say("the norms", "归一化")},
                        1, say("8·hidden² against 4·hidden².", "8·hidden² 对 4·hidden²。")));
  list.push_back(
      choose("when", "before-attention", say("Attention was first used for…", "注意力最早用在哪里？"),
             {say("transformers, 2017", "2017 年的 Transformer"), say("RNN translators, 2014", "2014 年的 RNN 翻译"),
              say("image recognition, 2012", "2012 年的图像识别"), say("GPT, 2018", "2018 年的 GPT")},
             1, say("Bahdanau et al., 2014.", "Bahdanau 等人，2014 年。")));
  list.push_back(
      choose("bottleneck", "before-attention",
             say("What limits an encoder–decoder without attention?", "没有注意力的编码器–解码器受什么限制？"),
             {say("one vector for the whole sentence", "整句只有一个向量"), say("the vocabulary", "词表大小"),
              say("the learning rate", "学习率"), say("the number of layers", "层数")},
             0, say("It has to hold any length in a fixed number of numbers.", "任意长度都要装进固定个数的数里。")));
  list.push_back(
      choose("bahdanau", "before-attention",
             say("Bahdanau's score of a state s and a memory h is…", "Bahdanau 对状态 s 和记忆 h 的打分是……"),
             {same("s · h"), same("w · tanh(W s + U h)"), same("s · W h"), same("|s − h|")}, 1,
             say("Additive: a small network. Luong's are products.", "加性的：一个小网络。Luong 的是乘积。")));
  list.push_back(
      choose("cross", "self-cross",
             say("In cross-attention of a decoder, keys and values come from…", "解码器的交叉注意力里，键和值来自……"),
             {say("the decoder", "解码器"), say("the encoder", "编码器"), say("both", "两者"),
              say("the embedding table", "词嵌入表")},
             1, say("The decoder asks, the encoder answers.", "解码器提问，编码器回答。")));
  list.push_back(choose("cross-shape", "self-cross",
                        say("4 target tokens attend to 6 source tokens. What shape do the weights of a head have?",
                            "4 个目标词元看 6 个源词元，一个头的权重是什么形状？"),
                        {same("[4, 4]"), same("[4, 6]"), same("[6, 4]"), same("[6, 6]")}, 1,
                        say("A row for each query.", "每个查询一行。")));
  list.push_back(choose(
      "one-row", "context",
      say("Before the first layer, how do the vectors of \"model\" in two sentences differ (no positions added)?",
          "在第一层之前，两句话里的 model 向量有什么不同（没有加位置）？"),
      {say("by meaning", "按词义不同"), say("not at all", "完全相同"), say("by chance", "随机不同"),
       say("by sentence length", "按句长不同")},
      1, say("The table has one row for a word.", "词嵌入表里一个词只有一行。")));
  list.push_back(
      choose("weights-explain", "context", say("A large attention weight means…", "注意力权重大意味着……"),
             {say("the token caused the answer", "这个词元导致了答案"),
              say("its value is mixed in strongly; its effect has to be tried", "它的值混入得多；效果要实测"),
              say("the model is sure", "模型很确定"), say("nothing ever", "毫无意义")},
             1, say("Knock it out and measure: weights are not explanations.", "把它敲除再测：权重不等于解释。")));
}

}  // namespace

std::vector<Question> system_questions() {
  std::vector<Question> list;
  about_caches(list);
  about_cost(list);
  about_models(list);
  return list;
}

const std::vector<Question>& all_questions() {
  static const std::vector<Question> kQuestions = [] {
    std::vector<Question> all = basic_questions();
    for (const auto& more : {layer_questions(), system_questions()}) all.insert(all.end(), more.begin(), more.end());
    return all;
  }();
  return kQuestions;
}

}  // namespace attend::labs
