// What `attend train --watch` adds to a run: what llm::WatchedRun keeps of it, and the page that shows that.
#pragma once

#include <memory>

#include "apps/server/assets.hpp"
#include "apps/server/listener.hpp"
#include "apps/server/training.hpp"
#include "llm/train/watched_run.hpp"

namespace attend::cli {

class TrainWatch {
 public:
  TrainWatch(const llm::TrainJob& job, std::uint16_t port) : job_(job), port_(port), kept_(job), folder_(job.run) {}

  // Hears of the run beside whoever hears of it already. The events must not outlive it.
  void listen(llm::TrainEvents& events);
  // The run is over: the page stays until Ctrl-C.
  void stay() const;

 private:
  void serve();

  const llm::TrainJob& job_;
  std::uint16_t port_;
  llm::WatchedRun kept_;

  server::TrainingFolder folder_;
  server::Log log_;
  server::Router router_;
  std::unique_ptr<server::Explorer> explorer_;
  std::unique_ptr<server::Listener> listener_;  // last: it asks all of the above
};

}  // namespace attend::cli
