// HTTP/1.1 over sockets: brings requests to a router and its replies back, within limits that no client can stretch.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "apps/server/log.hpp"
#include "apps/server/memory_budget.hpp"
#include "apps/server/router.hpp"

namespace attend::server {

struct ListenOptions {
  std::string address = "127.0.0.1";
  std::uint16_t port = 0;         // 0: a free one
  std::size_t connections = 256;  // beyond them, those make way whose clients are waited for, the longest first
  std::chrono::milliseconds header{5'000};  // for a request's head to arrive
  std::chrono::milliseconds body{10'000};   // and then its body
  std::chrono::milliseconds idle{30'000};   // between two requests; for a client to take what is written to it
  std::size_t unread = 1 << 20;             // bytes of a growing body that are kept for a slow reader
  int handlers = 4;                         // threads that run handlers
  std::shared_ptr<MemoryBudget> memory{};   // for bodies and unsent answers; null: one of 1 GiB
};

struct ListenNumbers {
  std::int64_t connections = 0, accepted = 0, evicted = 0, turned_away = 0, timed_out = 0, requests = 0;
};

// std::runtime_error when nobody can listen there: the address is none, or the port is taken.
void check_address(const ListenOptions& options);

struct Sockets;

class Listener {
 public:
  // Listens from now on. std::runtime_error when the address cannot be had. The router and the log must outlive it.
  Listener(const Router& router, const ListenOptions& options, Log& log);
  ~Listener();  // closes every connection
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  std::uint16_t port() const;
  ListenNumbers numbers() const;
  // From now on only immediate routes such as /health are answered, others with 503, and no connection is kept alive.
  // True once nothing is being answered any more, false when that takes longer than `limit`.
  bool drain(std::chrono::milliseconds limit);

 private:
  std::unique_ptr<Sockets> state_;
};

// The request that these bytes are, with the parser and the limits of the sockets; nothing if they are none, or not a
// whole one. For tests and fuzzers.
std::optional<Request> parse_request(std::string_view bytes);

// While it lives SIGINT, SIGTERM and SIGHUP do not end the process: they are waited for. SIGHUP stays ignored where it
// was (nohup).
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  // The signal that came; nothing after `limit`.
  std::optional<int> wait(std::optional<std::chrono::milliseconds> limit = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Sends "READY=1" or the like to systemd, where it started the process and asks to be told (NOTIFY_SOCKET).
void notify_systemd(const std::string& state);

}  // namespace attend::server
