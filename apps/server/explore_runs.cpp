// Makes runs, lets them grow and forgets them; tells of them in JSON.
#include "apps/server/explore_runs.hpp"

#include <algorithm>

#include "io/json.hpp"
#include "llm/look/look_json.hpp"

namespace attend::server {
namespace {

// Thrown out of a run whose client has gone.
struct Stopped {};

std::vector<llm::Switch> parse(const std::vector<std::string>& switches) {
  std::vector<llm::Switch> out;
  for (const std::string& text : switches) out.push_back(llm::parse_switch(text));
  return out;
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
  options.before_rotation = length <= limits_.exact;  // where cells are looked at one by one
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

std::string ExploreRuns::json(ExploreRun& run, const llm::LookStep* step, const std::function<bool()>& stopped) {
  llm::RunFacts facts{.id = run.id,
                      .prompt_tokens = run.prompt_tokens,
                      .uncut_tokens = run.uncut_tokens,
                      .context = model_.context(),
                      .step = step};
  if (!run.switches.empty() && model_.info().generates)
    facts.base = &this->run({.text = run.text, .generated = run.generated, .switches = {}}, stopped).look;
  return llm::run_json(session_, run.look, facts);
}

}  // namespace attend::server
