// What `attend train --watch` adds to a run: models of many of its steps, its samples, and the page that shows them.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "apps/server/assets.hpp"
#include "apps/server/listener.hpp"
#include "apps/server/training.hpp"
#include "llm/train/trainer.hpp"

namespace attend::cli {

class TrainWatch {
 public:
  TrainWatch(const llm::TrainJob& job, std::uint16_t port) : job_(job), port_(port), folder_(job.run) {}

  // Hears of the run beside whoever hears of it already. The events must not outlive it.
  void listen(llm::TrainEvents& events);
  // The run is over: the page stays until Ctrl-C.
  void stay() const;

 private:
  void begin(std::int64_t parameters, std::int64_t steps, std::int64_t done);
  void write_about();
  void add_sample(std::int64_t step, const std::string& prompt, const std::string& text) const;
  bool is_kept(std::int64_t step) const;
  void serve();

  const llm::TrainJob& job_;
  std::uint16_t port_;
  std::int64_t steps_ = 0, parameters_ = 0, first_ = 0;
  std::optional<llm::NgramLosses> scale_;
  double entropy_ = 0;
  std::string text_;  // that the heads are looked at with

  server::TrainingFolder folder_;
  server::Log log_;
  server::Router router_;
  std::unique_ptr<server::Explorer> explorer_;
  std::unique_ptr<server::Listener> listener_;  // last: it asks all of the above
};

}  // namespace attend::cli
