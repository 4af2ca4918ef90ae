// Runs of one model that are looked at: found again by their text and switches, bounded in number and memory.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <vector>

#include "apps/server/explore.hpp"
#include "attend/llm/look.hpp"

namespace attend::server {

struct ExploreRun {
  std::string id;
  std::string text;
  std::vector<std::string> switches;  // as they were sent
  std::vector<llm::Token> generated;  // appended to the text's tokens
  std::int64_t prompt_tokens = 0;     // of the text
  std::int64_t uncut_tokens = 0;      // that the text has, more than prompt_tokens where it was cut
  llm::Look look;
};

struct RunWish {
  std::string text;
  std::vector<llm::Token> generated;
  std::vector<std::string> switches;
  std::int64_t layer = -1;  // one that is looked at first: kept where not all layers can be
};

struct GenerateWish {
  std::vector<llm::Token> generated;  // what the page has so far
  std::int64_t token = -1;            // to append; -1: the model chooses
  double temperature = 0;
  std::uint64_t seed = 0;
};

// For one thread. `stopped` ends a run that nobody waits for any more.
class ExploreRuns {
 public:
  // Ids of runs begin with `prefix`: other models have runs too.
  ExploreRuns(llm::Model model, const ExploreLimits& limits, std::string prefix = "");

  llm::Model& model() { return model_; }
  const ExploreLimits& limits() const { return limits_; }
  // RequestError: no such run; the page then asks for it anew.
  ExploreRun& find(const std::string& id);
  ExploreRun& run(const RunWish& wish, const std::function<bool()>& stopped);
  // The run grows by a token; `step` tells which.
  llm::LookStep step(ExploreRun& run, const GenerateWish& wish);
  // What the page needs of a run: tokens, heads, next tokens, and the same before the switches.
  std::string json(ExploreRun& run, const llm::LookStep* step, const std::function<bool()>& stopped);

 private:
  void grow(ExploreRun& run, const std::vector<llm::Token>& generated);
  void make_room(std::int64_t bytes, const ExploreRun* keep);

  llm::Model model_;
  llm::LookSession session_{model_};
  ExploreLimits limits_;
  std::string prefix_;
  std::list<ExploreRun> runs_;  // the last asked for comes first
  std::int64_t made_ = 0;
};

}  // namespace attend::server
