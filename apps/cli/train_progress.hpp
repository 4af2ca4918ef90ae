// Progress of work in several stages, a bar for each; and what became of the texts.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <string>

#include "llm/train/record_reader.hpp"
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

inline void print_report(const llm::ReadReport& report) {
  for (const std::string& line : report.lines()) fmt::print("{}\n", line);
}

constexpr const char* kSkipBrokenHelp = "Leave out rows that cannot be used; they are counted, with the reasons";
constexpr const char* kColumnHelp = "The column of CSV, or the field of JSON, that holds a text to learn";

}  // namespace attend::cli
