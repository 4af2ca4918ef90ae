// A training run's folder as the explorer's page sees it: its curves, its samples, the models that were kept.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "apps/server/explore.hpp"
#include "apps/server/router.hpp"
#include "llm/train/watched_run.hpp"

namespace attend::server {

// The run may be going on, here or in another process: what is asked for is read when it is asked for.
class TrainingFolder {
 public:
  explicit TrainingFolder(std::filesystem::path run) : run_(std::move(run)), watch_{run_} {}
  static bool is_one(const std::filesystem::path& folder);

  ExploredModels models(const llm::ModelOptions& options) const;
  // GET training?metrics=BYTE&samples=BYTE: what the run is, and the lines from there on. It must outlive the router's
  // last request.
  void add_routes(Router& router) const;

 private:
  std::string json(std::int64_t metrics_from, std::int64_t samples_from) const;
  std::string name() const;
  std::filesystem::path run_;
  llm::WatchFolder watch_;  // what was kept of it for the page
};

}  // namespace attend::server
