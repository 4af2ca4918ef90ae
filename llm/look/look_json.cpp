// Writes a run as the explorer's page reads it.
#include "llm/look/look_json.hpp"

#include <algorithm>
#include <cmath>

#include "attend/runtime.hpp"
#include "base/utf8.hpp"
#include "io/json.hpp"

namespace attend::llm {
namespace {

constexpr std::int64_t kLikeliest = 12;

const char* type_name(HeadKind kind) {
  switch (kind) {
    case HeadKind::mixed:
      return "mixed";
    case HeadKind::previous:
      return "previous";
    case HeadKind::self:
      return "self";
    case HeadKind::local:
      return "local";
    case HeadKind::induction:
      return "induction";
    case HeadKind::duplicate:
      return "duplicate";
    case HeadKind::diffuse:
      return "diffuse";
    case HeadKind::long_range:
      return "long_range";
    case HeadKind::sink_resting:
      return "sink_resting";
  }
  return "mixed";
}

std::string list(const std::vector<std::string>& values) {
  std::string out = "[";
  for (const std::string& value : values) out += (out.size() > 1 ? "," : "") + value;
  return out + "]";
}

// A token's text; of one that holds a part of a character also its bytes, which JSON text cannot hold.
void put_text(io::JsonObject& one, const std::string& text) {
  one.string("text", text);
  if (is_utf8(text)) return;
  constexpr const char* kDigits = "0123456789abcdef";
  std::string bytes;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    bytes += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  one.string("bytes", bytes);
}

std::vector<double> probabilities(const std::vector<float>& logits) {
  std::vector<double> p(logits.begin(), logits.end());
  const double most = *std::max_element(p.begin(), p.end());
  double sum = 0;
  for (double& x : p) sum += x = std::exp(x - most);
  for (double& x : p) x /= sum;
  return p;
}

std::string next_json(const Look& look, const std::vector<double>& p, const char* other_name,
                      const std::vector<double>* other) {
  std::vector<std::string> out;
  for (const NextToken& next : look.next_tokens(-1, kLikeliest)) {
    io::JsonObject one;
    const auto at = static_cast<std::size_t>(next.id);
    one.number("token", std::int64_t{next.id});
    put_text(one, next.text);
    one.number("p", p[at]);
    if (other != nullptr) one.number(other_name, (*other)[at]);
    out.push_back(one.text());
  }
  return list(out);
}

// Each row's entropy beside the largest it could have, the logarithm of the keys it may see; one alone has no choice.
double mean_relative_entropy(const Look& look, std::int64_t layer, std::int64_t head, bool causal) {
  const std::vector<float> rows = look.statistic(layer, head, RowStatistic::entropy);
  double sum = 0;
  for (std::size_t i = 1; i < rows.size(); ++i)
    sum += static_cast<double>(rows[i]) / std::log(static_cast<double>(causal ? i + 1 : rows.size()));
  return rows.size() > 1 ? sum / static_cast<double>(rows.size() - 1) : 0;
}

std::string heads_json(LookSession& session, const Look& look) {
  std::vector<std::string> heads;
  const std::vector<double> sink = look.means(RowStatistic::sink_tokens),
                            distance = look.means(RowStatistic::distance_mean);
  for (const HeadType& type : session.types(look)) {
    io::JsonObject one;
    const auto at = static_cast<std::size_t>(type.layer * look.heads() + type.head);
    one.number("layer", type.layer);
    one.number("head", type.head);
    one.string("type", type_name(type.kind.kind));
    // A mixed head has no score of its own: what its nearest rule gives.
    one.number("score", type.kind.kind == HeadKind::mixed ? type.runner_up.score : type.kind.score);
    one.string("runner_up", type_name(type.runner_up.kind));
    one.number("runner_score", type.runner_up.score);
    for (const KindScore& score : type.scores)
      if (score.kind != HeadKind::mixed && score.measured) one.number(type_name(score.kind), score.score);
    one.number("entropy", mean_relative_entropy(look, type.layer, type.head, session.model().info().generates));
    one.number("sink", sink[at]);
    one.number("distance", distance[at]);
    one.number("rows", type.rows);
    one.number("left_out", type.left_out);
    one.number("texts", std::ssize(type.on_texts));
    one.number("texts_of_type", type.texts_of_kind());
    heads.push_back(one.text());
  }
  return list(heads);
}

std::string tokens_json(const Look& look) {
  std::vector<std::string> tokens;
  for (const LookToken& token : look.tokens()) {
    io::JsonObject one;
    one.number("id", std::int64_t{token.id});
    put_text(one, token.text);
    if (token.special) one.truth("special", true);
    tokens.push_back(one.text());
  }
  return list(tokens);
}

// What comes next, beside the same before the switches where there are any.
void put_next(io::JsonObject& out, const Look& look, const Look* base) {
  const std::vector<double> after = probabilities(look.next_logits());
  double entropy = 0;
  for (const double p : after) entropy -= p > 0 ? p * std::log(p) : 0;
  if (base != nullptr) {
    const std::vector<double> before = probabilities(base->next_logits());
    out.put("next", next_json(look, after, "before", &before));
    out.put("before", next_json(*base, before, "after", &after));
    double divergence = 0;
    for (std::size_t n = 0; n < before.size(); ++n)
      if (before[n] > 0) divergence += before[n] * (std::log(before[n]) - std::log(std::max(after[n], 1e-300)));
    out.number("kl", std::max(0.0, divergence));
  } else {
    out.put("next", next_json(look, after, "", nullptr));
  }
  out.number("entropy_next", entropy);
}

}  // namespace

std::string model_json(const Model& model, const std::string& name) {
  const ModelInfo& info = model.info();
  io::JsonObject shape;
  shape.string("name", name);
  shape.string("family", info.family);
  shape.number("layers", info.layers);
  shape.number("heads", info.heads);
  shape.number("kv_heads", info.kv_heads);
  shape.number("head_dim", info.head_dim);
  shape.number("vocabulary", info.vocabulary);
  shape.number("context", model.context());
  shape.number("parameters", info.parameters);
  shape.string("compute", llm::name(info.compute));
  shape.truth("rounds_rows", info.rounds_rows());
  shape.truth("causal", info.generates);
  shape.string("positions", info.family == "gpt2" || info.family == "bert" ? "added" : "rope");
  return shape.text();
}

std::string run_json(LookSession& session, const Look& look, const RunFacts& facts) {
  io::JsonObject out;
  out.string("run", facts.id);
  out.number("prompt_tokens", facts.prompt_tokens);
  if (facts.uncut_tokens > facts.prompt_tokens) {
    io::JsonObject cut;
    cut.number("tokens", facts.uncut_tokens);
    cut.number("context", facts.context);
    out.put("cut", cut.text());
  }
  out.put("tokens", tokens_json(look));
  out.put("heads", heads_json(session, look));
  std::vector<std::string> kept;
  for (std::int64_t layer = 0; layer < look.layers(); ++layer)
    if (look.kept(layer)) kept.push_back(std::to_string(layer));
  out.put("kept", list(kept));
  if (session.model().info().generates)
    put_next(out, look, facts.base);
  else
    out.put("next", "[]");  // a model that embeds expects nothing
  io::JsonObject cache;
  cache.number("bytes", look.cache_bytes());
  cache.number("bytes_per_token", look.cache_bytes() / std::max<std::int64_t>(1, look.length()));
  cache.string("format", "f32");
  out.put("cache", cache.text());
  if (facts.step != nullptr) {
    io::JsonObject made;
    made.number("token", std::int64_t{facts.step->token});
    put_text(made, facts.step->text);
    made.number("probability", facts.step->probability);
    made.truth("ends", facts.step->ends);
    made.number("ms", facts.step->milliseconds);
    out.put("step", made.text());
  }
  out.number("ms", facts.step != nullptr ? facts.step->milliseconds : look.milliseconds());
  out.string("kernel", kernel_name());
  out.string("dtype", "f32");
  return out.text();
}

}  // namespace attend::llm
