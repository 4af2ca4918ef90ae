// The page of a training run, served by the process that trains.
#include "train_watch.hpp"

#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "command.hpp"
#include "interrupt.hpp"
#include "io/file_error.hpp"
#include "io/readable.hpp"
#include "open_browser.hpp"

namespace attend::cli {

void TrainWatch::listen(llm::TrainEvents& events) {
  kept_.begun = [this](std::int64_t count, double bytes) {
    fmt::print("watch    keeps the model of {} steps, {} each, in {}\n", count, io::readable_bytes(bytes),
               io::printable(llm::WatchFolder{job_.run}.folder().string()));
  };
  kept_.listen(events);
  events.stop = [this, before = events.stop] {
    if (!listener_) serve();  // the first model is there now
    return before && before();
  };
}

void TrainWatch::serve() {
  server::add_assets(router_);
  folder_.add_routes(router_);
  explorer_ = std::make_unique<server::Explorer>(folder_.models({.context = job_.config.length}),
                                                 server::ExploreLimits{.bytes = std::int64_t{512} << 20});
  explorer_->add_routes(router_);
  listener_ = std::make_unique<server::Listener>(router_, server::ListenOptions{.port = port_}, log_);
  const std::string url = fmt::format("http://127.0.0.1:{}/", listener_->port());
  fmt::print("watch    {}\n", url);
  (void)std::fflush(stdout);
  open_browser(url);
}

void TrainWatch::stay() const {
  if (!listener_) return;
  fmt::print("watch    http://127.0.0.1:{}/ stays open; Ctrl-C ends it, and attend explore {} opens it again\n",
             listener_->port(), io::printable(job_.run.string()));
  (void)std::fflush(stdout);
  try {
    for (;;) {
      check_interrupted();
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  } catch (const Interrupted&) {
    // the run was over before
  }
}

}  // namespace attend::cli
