// Makes runs, lets them grow and forgets them; tells of them in JSON.
#include "apps/server/explore_runs.hpp"

#include <algorithm>
#include <cmath>

#include "attend/runtime.hpp"
#include "io/json.hpp"

namespace attend::server {
namespace {

constexpr std::int64_t kLikeliest = 12;

// Thrown out of a run whose client has gone.
struct Stopped {};

const char* type_name(llm::HeadKind kind) {
  switch (kind) {
    case llm::HeadKind::mixed:
      return "mixed";
    case llm::HeadKind::previous:
      return "previous";
    case llm::HeadKind::self:
      return "self";
    case llm::HeadKind::local:
      return "local";
    case llm::HeadKind::induction:
      return "induction";
    case llm::HeadKind::duplicate:
      return "duplicate";
    case llm::HeadKind::diffuse:
      return "diffuse";
    case llm::HeadKind::retrieval:
      return "retrieval";
    case llm::HeadKind::sink_resting:
      return "sink_resting";
  }
  return "mixed";
}

std::string list(const std::vector<std::string>& values) {
  std::string out = "[";
  for (const std::string& value : values) out += (out.size() > 1 ? "," : "") + value;
  return out + "]";
}

std::vector<llm::Switch> parse(const std::vector<std::string>& switches) {
  std::vector<llm::Switch> out;
  for (const std::string& text : switches) out.push_back(llm::parse_switch(text));
  return out;
}

std::vector<double> probabilities(const std::vector<float>& logits) {
  std::vector<double> p(logits.begin(), logits.end());
  const double most = *std::max_element(p.begin(), p.end());
  double sum = 0;
  for (double& x : p) sum += x = std::exp(x - most);
  for (double& x : p) x /= sum;
  return p;
}

std::string next_json(const llm::Look& look, const std::vector<double>& p, const char* other_name,
                      const std::vector<double>* other) {
  std::vector<std::string> out;
  for (const llm::NextToken& next : look.next_tokens(-1, kLikeliest)) {
    io::JsonObject one;
    const auto at = static_cast<std::size_t>(next.id);
    one.number("token", std::int64_t{next.id});
    one.string("text", next.text);
    one.number("p", p[at]);
    if (other != nullptr) one.number(other_name, (*other)[at]);
    out.push_back(one.text());
  }
  return list(out);
}

// Each row's entropy beside the largest it could have, log(i + 1); the first row has no choice.
double mean_relative_entropy(const llm::Look& look, std::int64_t layer, std::int64_t head) {
  const std::vector<float> rows = look.statistic(layer, head, RowStatistic::entropy);
  double sum = 0;
  for (std::size_t i = 1; i < rows.size(); ++i)
    sum += static_cast<double>(rows[i]) / std::log(static_cast<double>(i + 1));
  return rows.size() > 1 ? sum / static_cast<double>(rows.size() - 1) : 0;
}

}  // namespace

ExploreRuns::ExploreRuns(llm::Model model, const ExploreLimits& limits, std::string prefix)
    : model_(std::move(model)), limits_(limits), prefix_(std::move(prefix)) {}

ExploreRun& ExploreRuns::find(const std::string& id) {
  for (auto at = runs_.begin(); at != runs_.end(); ++at)
    if (at->id == id) {
      runs_.splice(runs_.begin(), runs_, at);
      return runs_.front();
    }
  throw RequestError(
      {404, "there is no run " + io::json_quoted(id.substr(0, 40)) + " any more: ask for it anew", "", "no_run"});
}

void ExploreRuns::make_room(std::int64_t bytes, const ExploreRun* keep) {
  const auto held = [&] {
    std::int64_t sum = bytes;
    for (const ExploreRun& run : runs_) sum += run.look.bytes();
    return sum;
  };
  while (!runs_.empty() && &runs_.back() != keep && (std::ssize(runs_) >= limits_.runs || held() > limits_.bytes))
    runs_.pop_back();
}

ExploreRun& ExploreRuns::run(const RunWish& wish, const std::function<bool()>& stopped) {
  for (auto at = runs_.begin(); at != runs_.end(); ++at)
    if (at->text == wish.text && at->switches == wish.switches && (wish.layer < 0 || at->look.kept(wish.layer))) {
      runs_.splice(runs_.begin(), runs_, at);
      grow(runs_.front(), wish.generated);
      return runs_.front();
    }
  std::vector<llm::Token> tokens = model_.tokenizer().encode(wish.text);
  const std::int64_t all = std::ssize(tokens), room = model_.context() - std::ssize(wish.generated);
  if (tokens.empty()) throw RequestError({400, "the text has no tokens: expected some text", "text", "empty"});
  if (room < 1) throw RequestError({400, "there is no room left in the context", "generated", "context"});
  if (all > room) tokens.resize(static_cast<std::size_t>(room));

  llm::LookOptions options{.switches = parse(wish.switches)};
  options.memory_limit = limits_.bytes;
  options.progress = [&stopped](std::int64_t, std::int64_t) {
    if (stopped()) throw Stopped{};
  };
  // Where all layers do not fit, those around the one that is looked at.
  const std::int64_t layers = model_.info().layers, length = std::ssize(tokens);
  if (llm::plan_look(model_, length, options).total() > limits_.bytes) {
    options.layers = {std::clamp<std::int64_t>(wish.layer, 0, layers - 1)};
    const std::int64_t one = std::max<std::int64_t>(1, llm::plan_look(model_, length, options).kept);
    const std::int64_t others = llm::plan_look(model_, length, options).total() - one;
    const std::int64_t count = std::clamp<std::int64_t>((limits_.bytes - others) / one, 1, layers);
    const std::int64_t first = std::clamp<std::int64_t>(options.layers[0] - count / 2, 0, layers - count);
    options.layers.clear();
    for (std::int64_t n = 0; n < count; ++n) options.layers.push_back(first + n);
  }
  make_room(llm::plan_look(model_, length, options).total(), nullptr);
  try {
    runs_.push_front({.id = prefix_ + "r" + std::to_string(++made_),
                      .text = wish.text,
                      .switches = wish.switches,
                      .generated = {},
                      .prompt_tokens = length,
                      .uncut_tokens = all,
                      .look = session_.run(tokens, options)});
  } catch (const Stopped&) {
    throw RequestError({499, "nobody waits for this run any more", "", "gone"});
  }
  grow(runs_.front(), wish.generated);
  return runs_.front();
}

// Brings a run to exactly these generated tokens.
void ExploreRuns::grow(ExploreRun& run, const std::vector<llm::Token>& generated) {
  const auto same = std::mismatch(run.generated.begin(), run.generated.end(), generated.begin(), generated.end());
  const std::int64_t back = run.generated.end() - same.first;
  if (back > 0) {
    run.look.back(back);
    run.generated.resize(run.generated.size() - static_cast<std::size_t>(back));
  }
  for (auto token = same.second; token != generated.end(); ++token) {
    if (*token < 0 || *token >= model_.info().vocabulary)
      throw RequestError({400, "token " + std::to_string(*token) + " is not one of the model's", "generated", ""});
    if (run.look.length() >= model_.context())
      throw RequestError(
          {400, "the context of " + std::to_string(model_.context()) + " tokens is full", "generated", "context"});
    run.look.append(*token);
    run.generated.push_back(*token);
  }
}

llm::LookStep ExploreRuns::step(ExploreRun& run, const GenerateWish& wish) {
  grow(run, wish.generated);
  if (run.look.length() >= model_.context())
    throw RequestError({400, "the context of " + std::to_string(model_.context()) + " tokens is full", "", "context"});
  if (wish.token >= model_.info().vocabulary)
    throw RequestError({400, "token " + std::to_string(wish.token) + " is not one of the model's", "token", ""});
  // Each step draws anew, and the same step of the same seed draws the same.
  const llm::Sampling sampling{.temperature = wish.temperature,
                               .seed = wish.seed + static_cast<std::uint64_t>(run.generated.size())};
  llm::check_sampling(sampling);
  const llm::LookStep made =
      wish.token >= 0 ? run.look.append(static_cast<llm::Token>(wish.token)) : run.look.next(sampling);
  run.generated.push_back(made.token);
  return made;
}

std::string ExploreRuns::heads_json(const llm::Look& look) {
  std::vector<std::string> heads;
  const std::vector<double> sink = look.means(RowStatistic::sink_tokens),
                            distance = look.means(RowStatistic::distance_mean);
  for (const llm::HeadType& type : session_.types(look)) {
    io::JsonObject one;
    const auto at = static_cast<std::size_t>(type.layer * look.heads() + type.head);
    one.number("layer", type.layer);
    one.number("head", type.head);
    one.string("type", type_name(type.kind.kind));
    // A mixed head has no score of its own: what its nearest rule gives.
    one.number("score", type.kind.kind == llm::HeadKind::mixed ? type.runner_up.score : type.kind.score);
    one.string("runner_up", type_name(type.runner_up.kind));
    one.number("runner_score", type.runner_up.score);
    for (const llm::KindScore& score : type.scores)
      if (score.kind != llm::HeadKind::mixed && score.measured) one.number(type_name(score.kind), score.score);
    one.number("entropy", mean_relative_entropy(look, type.layer, type.head));
    one.number("sink", sink[at]);
    one.number("distance", distance[at]);
    one.number("rows", type.rows);
    one.number("left_out", type.left_out);
    heads.push_back(one.text());
  }
  return list(heads);
}

std::string ExploreRuns::json(ExploreRun& run, const llm::LookStep* step, const std::function<bool()>& stopped) {
  const llm::Look& look = run.look;
  io::JsonObject out;
  out.string("run", run.id);
  out.number("prompt_tokens", run.prompt_tokens);
  if (run.uncut_tokens > run.prompt_tokens) {
    io::JsonObject cut;
    cut.number("tokens", run.uncut_tokens);
    cut.number("context", model_.context());
    out.put("cut", cut.text());
  }
  std::vector<std::string> tokens;
  for (const llm::LookToken& token : look.tokens()) {
    io::JsonObject one;
    one.number("id", std::int64_t{token.id});
    one.string("text", token.text);
    if (token.special) one.truth("special", true);
    tokens.push_back(one.text());
  }
  out.put("tokens", list(tokens));
  out.put("heads", heads_json(look));
  std::vector<std::string> kept;
  for (std::int64_t layer = 0; layer < look.layers(); ++layer)
    if (look.kept(layer)) kept.push_back(std::to_string(layer));
  out.put("kept", list(kept));

  const std::vector<double> after = probabilities(look.next_logits());
  double entropy = 0;
  for (const double p : after) entropy -= p > 0 ? p * std::log(p) : 0;
  if (!run.switches.empty()) {
    const ExploreRun& base = this->run({.text = run.text, .generated = run.generated, .switches = {}}, stopped);
    const std::vector<double> before = probabilities(base.look.next_logits());
    out.put("next", next_json(look, after, "before", &before));
    out.put("before", next_json(base.look, before, "after", &after));
    double divergence = 0;
    for (std::size_t n = 0; n < before.size(); ++n)
      if (before[n] > 0) divergence += before[n] * (std::log(before[n]) - std::log(std::max(after[n], 1e-300)));
    out.number("kl", std::max(0.0, divergence));
  } else {
    out.put("next", next_json(look, after, "", nullptr));
  }
  out.number("entropy_next", entropy);
  io::JsonObject cache;
  cache.number("bytes", look.cache_bytes());
  cache.number("bytes_per_token", look.cache_bytes() / std::max<std::int64_t>(1, look.length()));
  cache.string("format", "f32");
  out.put("cache", cache.text());
  if (step != nullptr) {
    io::JsonObject made;
    made.number("token", std::int64_t{step->token});
    made.string("text", step->text);
    made.number("probability", step->probability);
    made.truth("ends", step->ends);
    made.number("ms", step->milliseconds);
    out.put("step", made.text());
  }
  out.number("ms", step != nullptr ? step->milliseconds : look.milliseconds());
  out.string("kernel", kernel_name());
  out.string("dtype", "f32");
  return out.text();
}

}  // namespace attend::server
