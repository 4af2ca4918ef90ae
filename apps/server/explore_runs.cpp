// Makes runs, lets them grow and forgets them; tells of them in JSON.
#include "apps/server/explore_runs.hpp"

#include <algorithm>
#include <optional>

#include "io/json.hpp"
#include "io/readable.hpp"
#include "llm/look/look_json.hpp"
#include "llm/runtime/memory.hpp"

namespace attend::server {
namespace {

// Thrown out of a run whose client has gone.
struct Stopped {};

std::vector<llm::Switch> parse(const std::vector<std::string>& switches) {
  std::vector<llm::Switch> out;
  for (const std::string& text : switches) out.push_back(llm::parse_switch(text));
  return out;
}

std::string bytes_text(std::int64_t n) {
  return io::readable_bytes(static_cast<double>(n));
}

RequestError too_large(std::int64_t tokens, std::int64_t bytes, std::int64_t limit) {
  return RequestError({413,
                       "a run of " + std::to_string(tokens) + " tokens takes " + bytes_text(bytes) +
                           ", and all runs may take " + bytes_text(limit) +
                           " (--memory); send a shorter text, or start the server with a larger limit",
                       "text", "too_large"});
}

RequestError full(std::int64_t context) {
  return RequestError({400, "the context of " + std::to_string(context) + " tokens is full", "generated", "context"});
}

template <class Call>
auto until_stopped(const Call& call) {
  try {
    return call();
  } catch (const Stopped&) {
    throw RequestError({499, "the client closed the request", "", "gone"});
  }
}

llm::OnProgress stops_with(const ExploreRuns::Stopped& stopped) {
  return [&stopped](std::int64_t, std::int64_t) {
    if (stopped()) throw Stopped{};
  };
}

}  // namespace

ExploreRuns::ExploreRuns(ExploredModels models, const ExploreLimits& limits)
    : models_(std::move(models)), limits_(limits) {}

std::int64_t ExploreRuns::bytes() const {
  std::int64_t sum = 0;
  for (const auto& run : runs_) sum += run->share.bytes();
  return sum;
}

std::int64_t ExploreRuns::limit() const {
  return limits_.memory ? std::min(limits_.bytes, limits_.memory->limit()) : limits_.bytes;
}

std::int64_t ExploreRuns::newest() const {
  if (!models_.steps) return -1;
  const std::vector<std::int64_t> kept = models_.steps();
  return kept.empty() ? -1 : kept.back();
}

std::shared_ptr<OpenedModel> ExploreRuns::model(std::int64_t step) {
  if (step >= 0) {
    const std::vector<std::int64_t> kept = models_.steps ? models_.steps() : std::vector<std::int64_t>();
    if (std::find(kept.begin(), kept.end(), step) == kept.end())
      throw RequestError({404, "the model of step " + std::to_string(step) + " was not kept", "step", "no_step"});
  } else {
    step = newest();
  }
  for (auto at = opened_.begin(); at != opened_.end(); ++at)
    if ((*at)->step == step) {
      opened_.splice(opened_.begin(), opened_, at);
      return opened_.front();
    }
  if (std::ssize(opened_) >= limits_.models) {
    runs_.remove_if([&](const auto& run) { return run->of == opened_.back(); });
    opened_.pop_back();
    llm::give_back_memory();
  }
  opened_.push_front(std::make_shared<OpenedModel>(step, models_.open(step)));
  return opened_.front();
}

std::shared_ptr<ExploreRun> ExploreRuns::find(const std::string& id) {
  for (auto at = runs_.begin(); at != runs_.end(); ++at)
    if ((*at)->id == id) {
      runs_.splice(runs_.begin(), runs_, at);
      const auto opened = std::find(opened_.begin(), opened_.end(), runs_.front()->of);
      opened_.splice(opened_.begin(), opened_, opened);
      return runs_.front();
    }
  throw RequestError(
      {404, "there is no run " + io::json_quoted(id.substr(0, 40)) + " any more: ask for it again", "", "no_run"});
}

// Makes the share so many bytes, with room for so many more runs: forgets those that were not asked for the longest,
// but none that is in use. RequestError where that is not enough.
void ExploreRuns::reserve(MemoryShare& share, std::int64_t bytes, std::int64_t runs) {
  const auto fits = [&] {
    return this->bytes() - share.bytes() + bytes <= limits_.bytes && std::ssize(runs_) + runs <= limits_.runs &&
           share.resize(bytes);
  };
  bool forgot = false, fit = fits();
  for (auto at = runs_.end(); at != runs_.begin() && !fit;) {
    --at;
    if (at->use_count() > 1) continue;
    at = runs_.erase(at);
    forgot = true;
    fit = fits();
  }
  if (forgot) llm::give_back_memory();
  if (!fit)
    throw RequestError({503, "other requests use the memory that this one needs; ask again in a moment", "", "busy"});
}

// What a run of so many tokens keeps, and what that takes: the only place where it is estimated. Where not all layers
// fit, those around the one that is looked at are kept. RequestError where not even that one fits.
ExploreRuns::Planned ExploreRuns::plan(OpenedModel& of, const RunWish& wish, std::int64_t length) const {
  const std::int64_t layers = of.model.info().layers;
  llm::LookOptions options{.switches = parse(wish.switches)};
  options.before_rotation = length <= limits_.exact;  // where cells are looked at one by one
  const auto memory = [&] { return llm::plan_look(of.model, length, options); };
  // The same text without switches is run next to it, with nothing kept but its last rows.
  const llm::LookOptions last{.statistics = false, .keep = false};
  const std::int64_t others =
      std::ssize(wish.text) + (wish.switches.empty() ? 0 : llm::plan_look(of.model, length, last).kept);
  if (memory().total() + others > limit()) {
    options.keep = false;
    const std::int64_t none = memory().total() + others, none_kept = memory().kept;
    options.keep = true;
    options.layers = {std::clamp<std::int64_t>(wish.layer, 0, layers - 1)};
    const std::int64_t each = std::max<std::int64_t>(1, memory().kept - none_kept), count = (limit() - none) / each;
    if (count < 1 || limit() < none) throw too_large(length, none + each, limit());
    const std::int64_t first =
        std::clamp<std::int64_t>(options.layers[0] - count / 2, 0, std::max<std::int64_t>(0, layers - count));
    options.layers.clear();
    for (std::int64_t n = first; n < std::min(layers, first + count); ++n) options.layers.push_back(n);
  }
  return {options, memory().total() + others};
}

std::shared_ptr<ExploreRun> ExploreRuns::run(const std::shared_ptr<OpenedModel>& of, const RunWish& wish,
                                             const Stopped& stopped) {
  for (auto at = runs_.begin(); at != runs_.end(); ++at) {
    const ExploreRun& known = **at;
    if (known.of != of || known.text != wish.text || known.switches != wish.switches ||
        (wish.layer >= 0 && !known.look.kept(wish.layer)))
      continue;
    runs_.splice(runs_.begin(), runs_, at);
    const std::shared_ptr<ExploreRun> found = runs_.front();
    grow(*found, wish.generated);
    return found;
  }
  std::vector<llm::Token> tokens = of->model.tokenizer().encode(wish.text);
  const std::int64_t all = std::ssize(tokens), room = of->model.context() - std::ssize(wish.generated);
  if (tokens.empty()) throw RequestError({400, "the text has no tokens: expected some text", "text", "empty"});
  if (room < 1) throw RequestError({400, "there is no room left in the context", "generated", "context"});
  if (all > room) tokens.resize(static_cast<std::size_t>(room));

  Planned planned = plan(*of, wish, std::ssize(tokens));
  MemoryShare share(limits_.memory);
  reserve(share, planned.bytes, 1);
  planned.options.memory_limit = limit();
  planned.options.progress = stops_with(stopped);
  const std::string prefix = models_.steps ? "s" + std::to_string(of->step) + "." : "";
  const auto made = std::make_shared<ExploreRun>(
      ExploreRun{.of = of,
                 .id = prefix + "r" + std::to_string(++made_),
                 .text = wish.text,
                 .switches = wish.switches,
                 .generated = {},
                 .prompt_tokens = std::ssize(tokens),
                 .uncut_tokens = all,
                 .look = until_stopped([&] { return of->session.run(tokens, planned.options); }),
                 .share = std::move(share)});
  (void)made->share.resize(made->bytes());
  runs_.push_front(made);
  grow(*made, wish.generated);
  return made;
}

// Reserves what the run may hold with so many more tokens, before they are computed.
void ExploreRuns::reserve_growth(ExploreRun& run, std::int64_t tokens) {
  if (run.look.length() + tokens > run.of->model.context()) throw full(run.of->model.context());
  const std::int64_t bytes = run.look.bytes_with(tokens) + std::ssize(run.text);
  if (bytes > limit()) throw too_large(run.look.length() + tokens, bytes, limit());
  reserve(run.share, bytes);
}

// Brings a run to exactly these generated tokens.
void ExploreRuns::grow(ExploreRun& run, const std::vector<llm::Token>& generated) {
  const auto same = std::mismatch(run.generated.begin(), run.generated.end(), generated.begin(), generated.end());
  const std::int64_t back = run.generated.end() - same.first;
  for (auto token = same.second; token != generated.end(); ++token)
    if (*token < 0 || *token >= run.of->model.info().vocabulary)
      throw RequestError({400, "token " + std::to_string(*token) + " is not one of the model's", "generated", ""});
  if (back > 0) {
    run.look.back(back);
    run.generated.resize(run.generated.size() - static_cast<std::size_t>(back));
  }
  if (same.second == generated.end()) return;
  reserve_growth(run, generated.end() - same.second);
  for (auto token = same.second; token != generated.end(); ++token) {
    run.look.append(*token);
    run.generated.push_back(*token);
  }
}

llm::LookStep ExploreRuns::step(ExploreRun& run, const GenerateWish& wish) {
  if (wish.token >= run.of->model.info().vocabulary)
    throw RequestError({400, "token " + std::to_string(wish.token) + " is not one of the model's", "token", ""});
  grow(run, wish.generated);
  reserve_growth(run, 1);
  // Each step draws anew, and the same step of the same seed draws the same.
  const llm::Sampling sampling{.temperature = wish.temperature,
                               .seed = wish.seed + static_cast<std::uint64_t>(run.generated.size())};
  llm::check_sampling(sampling);
  const llm::LookStep made =
      wish.token >= 0 ? run.look.append(static_cast<llm::Token>(wish.token)) : run.look.next(sampling);
  run.generated.push_back(made.token);
  return made;
}

// The same tokens without switches: a run like any other where there is room for it next to this one, so that it grows
// with it; else one for this answer only, whose memory is in `share`.
llm::Look ExploreRuns::base_of(const std::shared_ptr<ExploreRun>& run, MemoryShare& share, const Stopped& stopped) {
  const std::int64_t length = run->look.length(), grown = length + length / 8 + 1;
  const llm::LookOptions kept{.before_rotation = true};
  if (limits_.runs > 1 && run->bytes() + llm::plan_look(run->of->model, grown, kept).total() <= limit()) {
    const auto base = this->run(run->of, {.text = run->text, .generated = run->generated}, stopped);
    if (base->prompt_tokens == run->prompt_tokens) return base->look;
  }
  std::vector<llm::Token> tokens = run->of->model.tokenizer().encode(run->text);
  tokens.resize(static_cast<std::size_t>(run->prompt_tokens));
  tokens.insert(tokens.end(), run->generated.begin(), run->generated.end());
  llm::LookOptions last{.statistics = false, .keep = false, .memory_limit = limit()};
  last.progress = stops_with(stopped);
  reserve(share, llm::plan_look(run->of->model, length, last).total());
  return until_stopped([&] { return run->of->session.run(tokens, last); });
}

std::string ExploreRuns::json(const std::shared_ptr<ExploreRun>& run, const llm::LookStep* step,
                              const Stopped& stopped) {
  llm::RunFacts facts{.id = run->id,
                      .prompt_tokens = run->prompt_tokens,
                      .uncut_tokens = run->uncut_tokens,
                      .context = run->of->model.context(),
                      .step = step};
  MemoryShare share(limits_.memory);
  std::optional<llm::Look> base;
  if (!run->switches.empty() && run->of->model.info().generates) base = base_of(run, share, stopped);
  if (base) facts.base = &*base;
  return llm::run_json(run->of->session, run->look, facts);
}

}  // namespace attend::server
