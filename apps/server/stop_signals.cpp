// Waits for SIGINT, SIGTERM and SIGHUP.
#include "apps/server/listener.hpp"

// clang-format off
#include <csignal>
#include <utility>  // before Boost: its 1.74 uses it without including it

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
// clang-format on

namespace attend::server {

struct StopSignals::State {
  State() {
    struct sigaction before{};
    (void)::sigaction(SIGHUP, nullptr, &before);
    if (before.sa_handler != SIG_IGN) signals.add(SIGHUP);
  }
  boost::asio::io_context io{1};
  boost::asio::signal_set signals{io, SIGINT, SIGTERM};
};

StopSignals::StopSignals() : state_(std::make_unique<State>()) {}
StopSignals::~StopSignals() = default;

std::optional<int> StopSignals::wait(std::optional<std::chrono::milliseconds> limit) {
  std::optional<int> got;
  state_->io.restart();
  state_->signals.async_wait([&](const boost::system::error_code& error, int number) {
    if (!error) got = number;
  });
  if (limit)
    (void)state_->io.run_one_for(*limit);
  else
    (void)state_->io.run_one();
  if (!got) {
    state_->signals.cancel();
    state_->io.restart();
    (void)state_->io.run();
  }
  return got;
}

}  // namespace attend::server
