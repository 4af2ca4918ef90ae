// Lab: GPT-3 counted, to the last digit, and any other model the same way.
#include <algorithm>
#include <cmath>
#include <filesystem>

#include "attend/error.hpp"
#include "io/readable.hpp"
#include "labs/registry.hpp"
#include "labs/tools.hpp"
#include "llm/model/files.hpp"
#include "llm/model/plan.hpp"

namespace attend::labs {
namespace {

Text count(double n) {
  return same("{}", io::readable_count(static_cast<std::int64_t>(n)));
}

llm::ModelConfig config_of(const std::string& name) {
  if (const llm::ModelConfig* known = llm::find_shape(name)) return *known;
  if (std::filesystem::exists(name)) return llm::ModelFiles(name).config();
  std::vector<std::string> names;
  for (const llm::NamedShape& shape : llm::named_shapes()) names.emplace_back(shape.name);
  throw Refused(say("model is '{}', expected a file, a folder or one of: {}",
                    "model 是“{}”，应为文件、文件夹或以下之一：{}", name, fmt::format("{}", fmt::join(names, ", "))));
}

void table_of(const std::string& name, const llm::ModelConfig& c, Results& results) {
  const llm::ParameterCounts n = llm::count_parameters(c);
  Table table{say("{}: the parameters of every part", "{}：各部分的参数", name),
              {say("part", "部分"), say("how", "怎么算"), say("parameters", "参数个数")},
              {}};
  const std::int64_t qd = c.heads * c.head_dim, kd = c.kv_heads * c.head_dim;
  const auto row = [&](Text part, Text how, std::int64_t parameters) {
    if (parameters > 0) table.rows.push_back({std::move(part), std::move(how), count(static_cast<double>(parameters))});
  };
  row(say("embedding", "词嵌入"), same("{} × {}", c.vocabulary, c.hidden), n.embedding);
  row(say("positions", "位置"), same("{} × {}", c.context, c.hidden), n.positions);
  row(say("W_Q", "W_Q（查询）"), same("{} × {} × {}", c.layers, c.hidden, qd), n.queries);
  row(say("W_K", "W_K（键）"), same("{} × {} × {}", c.layers, c.hidden, kd), n.keys);
  row(say("W_V (V↓)", "W_V（值，V↓）"), same("{} × {} × {}", c.layers, c.hidden, kd), n.values);
  row(say("W_O (V↑)", "W_O（输出，V↑）"), same("{} × {} × {}", c.layers, qd, c.hidden), n.output);
  row(say("feed-forward", "前馈网络"), same("{} × {} × {} × {}", c.layers, c.gated ? 3 : 2, c.hidden, c.feed_forward),
      n.feed_forward);
  row(say("routers", "路由"), same("-"), n.router);
  row(say("norms", "归一化"), same("-"), n.norms);
  row(say("biases", "偏置"), same("-"), n.biases);
  row(say("head", "输出层"), same("{} × {}", c.vocabulary, c.hidden), n.head);
  row(say("all", "合计"), same("-"), n.total());
  results.add(std::move(table));
}

void shapes_of(const llm::ModelConfig& c, std::int64_t tokens, Results& results) {
  results.add(Table{
      say("One pass of {} tokens", "{} 个词元的一次前向", tokens),
      {say("step", "步骤"), say("shape", "形状")},
      {{say("embeddings", "词嵌入"), same("[{}, {}]", tokens, c.hidden)},
       {say("Q, all heads", "Q（所有头）"), same("[{}, {}, {}]", c.heads, tokens, c.head_dim)},
       {say("K and V, all heads", "K、V（所有头）"), same("[{}, {}, {}]", c.kv_heads, tokens, c.head_dim)},
       {say("scores, all heads", "得分（所有头）"), same("[{}, {}, {}]", c.heads, tokens, tokens)},
       {say("output of attention", "注意力输出"), same("[{}, {}]", tokens, c.heads * c.head_dim)},
       {say("inside the feed-forward network", "前馈网络内部"), same("[{}, {}]", tokens, c.feed_forward)},
       {say("logits", "logits（词表得分）"), same("[{}, {}]", tokens, c.vocabulary)},
       {say("scores of all layers, if stored in f16", "所有层的得分若以 f16 存下"),
        same("{}", io::readable_bytes(2.0 * static_cast<double>(c.layers * c.heads) * static_cast<double>(tokens) *
                                      static_cast<double>(tokens)))},
       {say("KV cache, f16", "KV 缓存，f16"),
        same("{}",
             io::readable_bytes(static_cast<double>(llm::kv_bytes_per_token(c, 2)) * static_cast<double>(tokens)))}}});
}

Results measure(const Arguments& a, const Progress&) {
  Results results;
  const llm::ModelConfig gpt3 = config_of("gpt-3");
  const llm::ParameterCounts n = llm::count_parameters(gpt3);
  results.put("embedding", n.embedding);
  results.put("queries", n.queries);
  results.put("keys", n.keys);
  results.put("values", n.values);
  results.put("output", n.output);
  results.put("attention", n.attention());
  results.put("total", n.total());
  results.put("feed_forward", n.feed_forward);
  results.put("head_dim", gpt3.head_dim);
  results.put("hidden", gpt3.hidden);
  results.put("heads", gpt3.heads);
  const std::string& model = a.words("model");
  const llm::ModelConfig asked = config_of(model);
  table_of(model, asked, results);
  shapes_of(asked, a["tokens"], results);
  Table others{say("Others beside it", "与其他模型对比"),
               {say("model", "模型"), say("embedding", "词嵌入"), say("attention", "注意力"),
                say("feed-forward", "前馈"), say("all", "合计")},
               {}};
  for (const llm::NamedShape& shape : llm::named_shapes()) {
    const llm::ParameterCounts m = llm::count_parameters(shape.config);
    others.rows.push_back({same("{}", shape.name), count(static_cast<double>(m.embedding)),
                           count(static_cast<double>(m.attention())), count(static_cast<double>(m.feed_forward)),
                           count(static_cast<double>(m.total()))});
    if (shape.name == "minimind-3") results.put("minimind3", m.total());
  }
  results.add(std::move(others));
  return results;
}

std::vector<Conclusion> judge(const Numbers& n) {
  std::vector<Conclusion> list;
  const auto text = [&](const char* name) { return io::readable_count(static_cast<std::int64_t>(n.at(name))); };
  list.push_back(conclude("embedding", n.at("embedding") == 617558016,
                          say("GPT-3's embedding has 50,257 × 12,288 = {} parameters.",
                              "GPT-3 的词嵌入有 50,257 × 12,288 = {} 个参数。", text("embedding")),
                          say("GPT-3's embedding came out as {}, 50,257 × 12,288 is 617,558,016.",
                              "GPT-3 的词嵌入算得 {}，而 50,257 × 12,288 是 617,558,016。", text("embedding"))));
  list.push_back(conclude("each_of_four",
                          n.at("queries") == 14495514624.0 && n.at("keys") == n.at("queries") &&
                              n.at("values") == n.at("queries") && n.at("output") == n.at("queries"),
                          say("each of Q, K, V↓ and V↑ has {} parameters over all 96 layers.",
                              "Q、K、V↓、V↑ 在全部 96 层里各有 {} 个参数。", text("queries")),
                          say("Q, K, V↓, V↑ came out as {}, {}, {}, {}.", "Q、K、V↓、V↑ 算得 {}、{}、{}、{}。",
                              text("queries"), text("keys"), text("values"), text("output"))));
  list.push_back(
      conclude("attention_in_all", n.at("attention") == 57982058496.0 && n.at("attention") < n.at("total") / 2,
               say("attention in all has {}: {:.0f} % of {}; the feed-forward networks have {:.0f} %.",
                   "注意力总共 {0} 个参数，占全部 {2} 的 {1:.0f} %；前馈网络占 {3:.0f} %。", text("attention"),
                   100 * n.at("attention") / n.at("total"), text("total"), 100 * n.at("feed_forward") / n.at("total")),
               say("attention came out as {} of {}.", "注意力算得 {}，总数 {}。", text("attention"), text("total"))));
  list.push_back(conclude(
      "head_dim", n.at("head_dim") == 128 && n.at("hidden") / n.at("heads") == 128,
      say("a head has 12,288 / 96 = {:.0f} dimensions.", "每个头有 12,288 / 96 = {:.0f} 维。", n.at("head_dim")),
      say("a head has {:.0f} dimensions, {:.0f} / {:.0f}.", "每个头有 {:.0f} 维，即 {:.0f} / {:.0f}。",
          n.at("head_dim"), n.at("hidden"), n.at("heads"))));
  list.push_back(conclude(
      "minimind3", n.at("minimind3") == 63912192,
      say("MiniMind-3 has {} parameters: GPT-3 is {:.0f} times as large.",
          "MiniMind-3 有 {} 个参数：GPT-3 是它的 {:.0f} 倍。", text("minimind3"), n.at("total") / n.at("minimind3")),
      say("MiniMind-3 came out as {}, its authors count 63,912,192.", "MiniMind-3 算得 {}，作者的数字是 63,912,192。",
          text("minimind3"))));
  return list;
}

}  // namespace

Lab gpt3_lab() {
  return {
      .name = "gpt3",
      .title = say("GPT-3 counted", "把 GPT-3 数一遍"),
      .question = say("Where do 175 billion parameters sit, to the last digit?", "1750 亿个参数，一个不差，都在哪里？"),
      .lesson = say(
          "Embedding 617,558,016; Q, K, V↓, V↑ 14,495,514,624 each; attention 57,982,058,496. Lessons that "
          "round, or that take a head for the whole width, get other numbers.",
          "词嵌入 617,558,016；Q、K、V↓、V↑ 各 14,495,514,624；注意力合计 57,982,058,496。有的教程四舍五入，有的把一个"
          "头当成整个宽度，数就对不上了。"),
      .guess = say("What share of GPT-3 is attention? How large would all its score matrices be for 1,000 tokens?",
                   "注意力占 GPT-3 的多少？1,000 个词元时，所有得分矩阵合起来有多大？"),
      .why = {say(
          "Attention has 4·hidden² a layer when heads·head_dim = hidden, a feed-forward network of width 4·hidden "
          "has 8·hidden²: two thirds of a block are not attention. The counts are those of the shape that this "
          "program knows as gpt-3; a file's are read from its own header, without loading it.",
          "当 heads·head_dim = hidden 时，每层注意力有 4·hidden² 个参数，宽度为 4·hidden 的前馈网络有 8·hidden² "
          "个：一个 Transformer 块里有三分之二不是注意力。这些数是按本程序内置的 gpt-3 形状算出来的；给一个模型文件，则"
          "从它自己的文件头读取，不必加载。")},
      .seconds = 1,
      .minutes = 6,
      .parameters = {{"tokens", 1000, 1, 1000000, 1000, say("tokens of the pass", "前向的词元数")},
                     {"model", 0, 0, 0, 0,
                      say("a known shape, or a model file or folder", "已知的模型名，或模型文件、文件夹"), true,
                      "gpt-3"}},
      .measure = measure,
      .judge = judge};
}

}  // namespace attend::labs
