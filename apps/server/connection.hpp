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
// Requests and answers up to this size are not counted against the memory budget, so that a full budget does not stop
// small ones; the number of connections bounds them.
inline constexpr std::size_t kSmall = 16 << 10;

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Clock = std::chrono::steady_clock;
  // Beyond the limit of connections only immediate routes are answered, and others with 503.
  Connection(boost::asio::ip::tcp::socket socket, Sockets& shared, bool over_limit);

  void start();
  void close();
  void expire(Clock::time_point now);
  void close_if_idle();
  // Since when the connection waits for its client, to send a request or to take an answer; nothing while the server
  // works on a request.
  std::optional<Clock::time_point> waits_since() const;
  bool writing() const { return writing_; }

  // From the reply, on the sockets' thread. `share` counts the body in the memory budget until it is written.
  void respond(const std::shared_ptr<Exchange>& exchange, Response response, bool grows, MemoryShare share);
  void append(const std::shared_ptr<Exchange>& exchange, std::string piece, MemoryShare share);
  void finish(const std::shared_ptr<Exchange>& exchange);
  void abandon(const std::shared_ptr<Exchange>& exchange);

 private:
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  // Text to write; `unread` bytes of it count as the client's unread answer.
  struct Piece {
    std::string text;
    std::size_t unread = 0;
    std::deque<MemoryShare> shares{};
  };

  void wait_for_request();
  void read_head();
  std::optional<Response> head_refusal();
  void read_body();
  void dispatch();
  void watch();
  void half_close();
  void watch_for_reset();
  void refuse(Response response);
  void refuse_parse(const boost::system::error_code& error);
  void put_head(const Response& response, bool grows, std::size_t length);
  void put(std::string text, std::size_t unread = 0, MemoryShare share = {});
  void flush();
  void write_some();
  void wrote(std::size_t count);
  void after_answer();
  void drain_and_close(std::size_t left);

  boost::asio::ip::tcp::socket socket_;
  Sockets& shared_;
  boost::beast::flat_buffer buffer_{kHeaderBytes + kReadAhead};
  std::optional<Parser> parser_;
  Request request_;
  MemoryShare body_share_;
  std::shared_ptr<Exchange> exchange_;
  Clock::time_point deadline_ = Clock::time_point::max(), write_deadline_ = Clock::time_point::max(), began_{},
                    waits_since_{};
  const bool over_limit_;
  bool reading_ = false, answering_ = false, closed_ = false, keep_alive_ = false, chunked_ = false, head_sent_ = false,
       ended_ = false;
  bool writing_ = false, watching_ = false, watching_reset_ = false, half_closed_ = false, drop_after_write_ = false;
  int version_ = 11, status_ = 0;
  std::size_t sent_ = 0;     // bytes of the answer's body
  std::deque<Piece> out_;    // the first one is being written while writing_
  std::size_t written_ = 0;  // bytes of the first piece
  char scratch_[1024];
};

// The set of connections belongs to the sockets' thread.
struct Sockets {
  Sockets(const Router& r, const ListenOptions& o, Log& l);
  void wait_for_client();
  void accept();
  void accept_if_paused();
  bool full() const { return connections.size() >= options.connections; }
  bool make_room(Connection::Clock::time_point now);
  void free_memory(Connection::Clock::time_point now);
  void give_back_memory();
  void sweep();

  const Router& router;
  const ListenOptions options;
  Log& log;
  const std::shared_ptr<MemoryBudget> memory;
  // Replies may outlive all of this, and are then dropped: each has a share.
  const std::shared_ptr<boost::asio::io_context> shared_io = std::make_shared<boost::asio::io_context>(1);
  boost::asio::io_context& io = *shared_io;
  boost::asio::ip::tcp::acceptor acceptor{io};
  boost::asio::steady_timer timer{io}, retry{io};
  std::set<std::shared_ptr<Connection>> connections;
  std::int64_t peak = 0;  // of the memory budget since memory was given back
  bool paused = false;    // clients wait in the kernel's queue for a connection to end
  std::atomic<bool> draining{false};
  std::atomic<std::int64_t> open{0}, answering{0}, accepted{0}, evicted{0}, turned_away{0}, timed_out{0}, requests{0};
  std::unique_ptr<HandlerThreads> handlers;
  std::thread thread;
};

}  // namespace attend::server
