// The explorer's side of the server: runs of a model that are looked at, and the answers under /explore/v1 that a page
// draws. docs/design/explorer.md describes the protocol.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/server/memory_budget.hpp"
#include "apps/server/router.hpp"
#include "attend/llm/model.hpp"
#include "llm/look/look_frames.hpp"

namespace attend::server {

struct ExploreLimits {
  std::size_t text_bytes = 512 << 10;
  std::int64_t runs = 8;                       // kept; the one not asked for the longest goes first
  std::int64_t bytes = std::int64_t{2} << 30;  // that all runs hold together, and a new one while it is computed
  std::shared_ptr<MemoryBudget> memory{};      // that these bytes also come out of; null: there is no other limit
  std::int64_t exact = 1024;                   // tokens a side up to which a map is single weights
  std::int64_t waiting = 64;                   // requests that have not begun; then they are refused
  std::int64_t models = 3;                     // of a training run's steps that are open at once
  llm::PieceLimits piece{};                    // of maps, small pictures and tensors
};

// What can be looked at: one model, or that of a training run at the steps that were kept.
struct ExploredModels {
  std::string name;
  std::function<llm::Model(std::int64_t step)> open;   // on the explorer's thread, when somebody asks
  std::function<std::vector<std::int64_t>()> steps{};  // rising; empty: there is one model, and its step is -1
  bool labs = false;                                   // the server has them too
  std::function<std::string()> example{};              // a text to begin with; none, or "": the explorer's own
};

struct ExploreWork;

// A separate thread runs the model; requests come from any thread. Maps, small pictures and tensors come in pieces, and
// between two of them others are answered. A piece is computed when the client has taken those before it.
class Explorer {
 public:
  explicit Explorer(ExploredModels models, const ExploreLimits& limits = {});
  ~Explorer();  // ends what runs
  Explorer(const Explorer&) = delete;
  Explorer& operator=(const Explorer&) = delete;

  // GET about; POST runs, runs/ID/step; GET runs/ID/thumbs, map, cell, values, tensors. It must outlive the router's
  // last request.
  void add_routes(Router& router);

 private:
  std::unique_ptr<ExploreWork> work_;
};

}  // namespace attend::server
