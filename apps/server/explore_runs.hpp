// Runs of a model, or of a training run's models, that are looked at: found again by their text and switches, bounded
// in number and memory.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "apps/server/explore.hpp"
#include "apps/server/memory_budget.hpp"
#include "attend/llm/look.hpp"

namespace attend::server {

// A model that is open, and what is known of its heads.
struct OpenedModel {
  explicit OpenedModel(std::int64_t of_step, llm::Model opened)
      : step(of_step), model(std::move(opened)), session(model) {}

  std::int64_t step;
  llm::Model model;
  llm::LookSession session;
};

struct ExploreRun {
  std::shared_ptr<OpenedModel> of;
  std::string id;
  std::string text;
  std::vector<std::string> switches;  // as they were sent
  std::vector<llm::Token> generated;  // appended to the text's tokens
  std::int64_t prompt_tokens = 0;     // of the text
  std::int64_t uncut_tokens = 0;      // that the text has, more than prompt_tokens where it was cut
  llm::Look look;
  MemoryShare share{};  // what it holds, and while it is computed or grows what that may take

  std::int64_t bytes() const { return look.bytes() + std::ssize(text); }
};

struct RunWish {
  std::string text{};
  std::vector<llm::Token> generated{};
  std::vector<std::string> switches{};
  std::int64_t layer = -1;  // one that is looked at first: kept where not all layers can be
};

struct GenerateWish {
  std::vector<llm::Token> generated{};  // what the page has so far
  std::int64_t token = -1;              // to append; -1: the model chooses
  double temperature = 0;
  std::uint64_t seed = 0;
};

// For one thread. Models and runs are shared: one that is forgotten lives until its last user lets go of it, and counts
// until then. A caller that waits for something else in between keeps a weak_ptr. `stopped` ends a run whose client has
// gone.
class ExploreRuns {
 public:
  using Stopped = std::function<bool()>;
  ExploreRuns(ExploredModels models, const ExploreLimits& limits);

  const std::string& name() const { return models_.name; }
  // The model of a kept step, or with -1 the newest. It is opened where it is not open; then the one that was not asked
  // for the longest is closed, where there are too many. RequestError: there is no such step.
  std::shared_ptr<OpenedModel> model(std::int64_t step);
  // RequestError: no such run; the page then asks for it again.
  std::shared_ptr<ExploreRun> find(const std::string& id);
  // Forgets others where memory ends. RequestError where the limit is too small for it all the same.
  std::shared_ptr<ExploreRun> run(const std::shared_ptr<OpenedModel>& of, const RunWish& wish, const Stopped& stopped);
  // The run grows by a token; `step` tells which.
  llm::LookStep step(ExploreRun& run, const GenerateWish& wish);
  // What the page needs of a run: tokens, heads, next tokens, and the same before the switches. May forget others.
  std::string json(const std::shared_ptr<ExploreRun>& run, const llm::LookStep* step, const Stopped& stopped);
  std::int64_t bytes() const;  // of all runs
  std::int64_t limit() const;  // of them

 private:
  struct Planned {
    llm::LookOptions options;
    std::int64_t bytes = 0;  // of the run and of computing it
  };
  std::int64_t newest() const;
  Planned plan(OpenedModel& of, const RunWish& wish, std::int64_t length) const;
  void grow(ExploreRun& run, const std::vector<llm::Token>& generated);
  void reserve_growth(ExploreRun& run, std::int64_t tokens);
  void reserve(MemoryShare& share, std::int64_t bytes, std::int64_t runs = 0);
  llm::Look base_of(const std::shared_ptr<ExploreRun>& run, MemoryShare& share, const Stopped& stopped);

  ExploredModels models_;
  ExploreLimits limits_;
  std::list<std::shared_ptr<OpenedModel>> opened_;  // the last asked for comes first
  std::list<std::shared_ptr<ExploreRun>> runs_;     // likewise
  std::int64_t made_ = 0;                           // runs of all models: an id never means another run later
};

}  // namespace attend::server
