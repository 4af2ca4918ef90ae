// Progress of work in several stages, a bar for each.
#pragma once

#include <memory>
#include <string>

#include "progress.hpp"

namespace attend::cli {

class StageBars {
 public:
  void update(const char* stage, std::int64_t done, std::int64_t all) {
    if (stage_ != stage) bar_ = std::make_unique<ProgressBar>(stage, all, all == 0 ? nullptr : unit(stage));
    stage_ = stage;
    bar_->update(done);
  }
  void end() { bar_.reset(); }

 private:
  static const char* unit(const std::string& stage) { return stage == "learning merges" ? "tokens" : nullptr; }
  std::string stage_;
  std::unique_ptr<ProgressBar> bar_;
};

}  // namespace attend::cli
