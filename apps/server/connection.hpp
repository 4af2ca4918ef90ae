// One client's connection, and what all of them share: they live on the sockets' thread.
#pragma once

// clang-format off
#include <atomic>
#include <chrono>
#include <deque>
#include <set>
#include <thread>
#include <utility>  // before Boost: its 1.74 uses it without including it

#include <boost/asio.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
// clang-format on

#include "apps/server/exchange.hpp"
#include "apps/server/handler_threads.hpp"
#include "apps/server/listener.hpp"

namespace attend::server {

inline constexpr std::size_t kReadAhead = 16 << 10;  // of a client that does not wait for its answer

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Clock = std::chrono::steady_clock;
  Connection(boost::asio::ip::tcp::socket socket, Sockets& shared) : socket_(std::move(socket)), shared_(shared) {}

  void start();
  void close();
  bool answering() const { return answering_; }
  void expire(Clock::time_point now);
  void close_if_idle();

  // From the reply, on the sockets' thread.
  void respond(const std::shared_ptr<Exchange>& exchange, const Response& response, bool grows);
  void append(const std::shared_ptr<Exchange>& exchange, const std::string& piece);
  void finish(const std::shared_ptr<Exchange>& exchange);
  void abandon(const std::shared_ptr<Exchange>& exchange);

 private:
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  void wait_for_request();
  void read_head();
  void read_body();
  void dispatch();
  void watch();
  void refuse(const Response& response);
  void refuse_parse(const boost::system::error_code& error);
  void put_head(const Response& response, bool grows, std::size_t length);
  void flush();
  void after_answer();
  void drain_and_close(std::size_t left);

  boost::asio::ip::tcp::socket socket_;
  Sockets& shared_;
  boost::beast::flat_buffer buffer_{kHeaderBytes + kReadAhead};
  std::optional<Parser> parser_;
  Request request_;
  std::shared_ptr<Exchange> exchange_;
  Clock::time_point deadline_ = Clock::time_point::max(), write_deadline_ = Clock::time_point::max(), began_{};
  bool reading_ = false, answering_ = false, closed_ = false, keep_alive_ = false, chunked_ = false, head_sent_ = false,
       ended_ = false;
  bool writing_ = false, watching_ = false, drop_after_write_ = false;
  int version_ = 11, status_ = 0;
  std::size_t sent_ = 0;
  std::string out_, in_flight_;
  char scratch_[1024];
};

// The set of connections belongs to the sockets' thread.
struct Sockets {
  Sockets(const Router& r, const ListenOptions& o, Log& l);
  void accept();
  void sweep();

  const Router& router;
  const ListenOptions options;
  Log& log;
  // A reply may outlive all this, and then says into the void: it has a share.
  const std::shared_ptr<boost::asio::io_context> shared_io = std::make_shared<boost::asio::io_context>(1);
  boost::asio::io_context& io = *shared_io;
  boost::asio::ip::tcp::acceptor acceptor{io};
  boost::asio::steady_timer timer{io}, retry{io};
  std::set<std::shared_ptr<Connection>> connections;
  std::deque<std::weak_ptr<Connection>> arrived;  // oldest first
  std::atomic<bool> draining{false};
  std::atomic<std::int64_t> open{0}, answering{0}, accepted{0}, evicted{0}, turned_away{0}, timed_out{0}, requests{0};
  std::unique_ptr<HandlerThreads> handlers;
  std::thread thread;
};

}  // namespace attend::server
