// Reads requests with Boost.Beast's parser, and writes what the replies give.
#include "apps/server/connection.hpp"

#include "apps/server/read_request.hpp"

namespace attend::server {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;

constexpr auto kNever = Connection::Clock::time_point::max();
constexpr milliseconds kLinger{5'000};            // for a client to take its last answer before the connection closes
constexpr std::size_t kDiscard = 2 * kBodyBytes;  // of a rejected body that is read, so that the rejection arrives
constexpr std::size_t kJoined = 64 << 10;         // small pieces of an answer are joined up to this size
constexpr const char* kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
constexpr std::int64_t kWorkFactor = 64;  // memory that handling a request takes, in sizes of its body

// What the server holds for this request does not fit: the client asks again once others have taken their answers.
Response no_memory() {
  return error_response({.status = 503,
                         .message = "the memory that the server holds for its clients (--memory) is used up; ask again "
                                    "in a moment",
                         .code = "out_of_memory"});
}

Response no_connection() {
  return error_response({.status = 503,
                         .message = "the server answers as many connections as it may; ask again in a moment",
                         .code = "too_many_connections"});
}

Response stopping() {
  return error_response({.status = 503, .message = "the server is stopping", .code = "server_stopping"});
}

// Where the body ends has one reading only: whatever a proxy might read differently is rejected.
std::optional<Response> wrong_framing(const Request& head, int version) {
  const auto bad = [](int status, const char* message) {
    return error_response({.status = status, .message = message, .code = "bad_request"});
  };
  if (version != 10 && version != 11) return bad(400, "expected HTTP/1.1");
  const std::size_t codings = head.count("transfer-encoding");
  if (head.count("content-length") > 1 || codings > 1 || (codings > 0 && head.count("content-length") > 0))
    return bad(400, "the length of the body is given more than once");
  if (codings == 0) return std::nullopt;
  if (version == 10) return bad(400, "Transfer-Encoding in HTTP/1.0, expected Content-Length");
  if (lower(*head.header("transfer-encoding")) != "chunked")
    return bad(501, "Transfer-Encoding is not supported: expected chunked, or Content-Length");
  return std::nullopt;
}

// Replies whose connection has closed are dropped silently.
class SocketReply final : public Reply {
 public:
  SocketReply(const Sockets& shared, std::weak_ptr<Connection> connection, std::shared_ptr<Exchange> exchange)
      : io_(shared.shared_io),
        memory_(shared.memory),
        connection_(std::move(connection)),
        exchange_(std::move(exchange)),
        unread_(shared.options.unread) {}
  ~SocketReply() override {
    if (done_) return;
    if (!began_)
      send(error_response({.status = 500, .message = "the request was dropped unanswered", .code = "internal_error"}));
    else
      post([](Connection& c, const std::shared_ptr<Exchange>& e) { c.abandon(e); });
  }

  void send(Response response) override {
    if (done_ || began_) return;
    done_ = true;
    MemoryShare share(memory_);
    if (!fits(response, share)) response = no_memory();
    post([response = std::move(response), share = std::move(share)](Connection& c,
                                                                    const std::shared_ptr<Exchange>& e) mutable {
      c.respond(e, std::move(response), false, std::move(share));
    });
  }
  void begin(Response head) override {
    if (done_ || began_) return;
    MemoryShare share(memory_);
    if (!fits(head, share)) return send(no_memory());
    began_ = true;
    exchange_->unread.fetch_add(head.body.size());
    post([head = std::move(head), share = std::move(share)](Connection& c, const std::shared_ptr<Exchange>& e) mutable {
      c.respond(e, std::move(head), true, std::move(share));
    });
  }
  bool write(std::string piece) override {
    if (done_ || !began_ || exchange_->gone()) return false;
    MemoryShare share(memory_);
    if (exchange_->unread.load() >= unread_ || !share.resize(std::ssize(piece))) {
      done_ = true;
      post([](Connection& c, const std::shared_ptr<Exchange>& e) { c.abandon(e); });
      return false;
    }
    exchange_->unread.fetch_add(piece.size());
    post([piece = std::move(piece), share = std::move(share)](Connection& c,
                                                              const std::shared_ptr<Exchange>& e) mutable {
      c.append(e, std::move(piece), std::move(share));
    });
    return true;
  }
  bool ready() const override { return exchange_->unread.load() <= unread_ / 2; }
  void end() override {
    if (done_ || !began_) return;
    done_ = true;
    post([](Connection& c, const std::shared_ptr<Exchange>& e) { c.finish(e); });
  }
  void when_gone(std::function<void()> call) override { exchange_->when_gone(std::move(call)); }

 private:
  static bool fits(const Response& response, MemoryShare& share) {
    return response.body.size() <= kSmall || share.resize(static_cast<std::int64_t>(response.body.capacity()));
  }
  template <class Job>
  void post(Job job) {
    asio::post(*io_, [connection = connection_, exchange = exchange_, job = std::move(job)]() mutable {
      if (const auto c = connection.lock()) job(*c, exchange);
    });
  }

  std::shared_ptr<asio::io_context> io_;
  std::shared_ptr<MemoryBudget> memory_;
  std::weak_ptr<Connection> connection_;
  std::shared_ptr<Exchange> exchange_;
  std::size_t unread_;
  bool done_ = false, began_ = false;
};

}  // namespace

Connection::Connection(tcp::socket socket, Sockets& shared, bool over_limit)
    : socket_(std::move(socket)), shared_(shared), over_limit_(over_limit) {}

void Connection::start() {
  read_head();
}

void Connection::close() {
  if (closed_) return;
  closed_ = true;
  error_code ignored;
  socket_.close(ignored);
  out_.clear();  // its memory is free at once: the write that used it is cancelled
  body_share_.clear();
  if (answering_) shared_.answering.fetch_sub(1);
  answering_ = false;
  if (exchange_) exchange_->leave();
  exchange_.reset();
  --shared_.open;
  shared_.connections.erase(shared_from_this());
  if (shared_.paused) asio::post(shared_.io, [sockets = &shared_] { sockets->accept_if_paused(); });
}

void Connection::expire(Clock::time_point now) {
  if (now < deadline_ && now < write_deadline_) return;
  if (drop_after_write_) return close();
  shared_.timed_out.fetch_add(1);
  // On timeout, send 408 if part of a request arrived; otherwise just close.
  const bool began = parser_ && (buffer_.size() > 0 || parser_->got_some()) && !answering_;
  if (now >= deadline_ && began)
    refuse(error_response({.status = 408, .message = "the request did not arrive in time", .code = "request_timeout"}));
  else
    close();
}

void Connection::close_if_idle() {
  error_code ignored;
  const bool began = reading_ && parser_ && (buffer_.size() > 0 || parser_->got_some());
  if (!answering_ && !writing_ && !drop_after_write_ && !began && socket_.available(ignored) == 0) close();
}

std::optional<Connection::Clock::time_point> Connection::waits_since() const {
  if (answering_ && !writing_) return std::nullopt;
  return waits_since_;
}

void Connection::wait_for_request() {
  if (closed_) return;
  parser_.reset();
  if (buffer_.size() > 0) return read_head();  // the client did not wait for its answer
  waits_since_ = Clock::now();
  deadline_ = waits_since_ + shared_.options.idle;
  if (watching_) return;
  watching_ = true;
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](const error_code& error) {
    self->watching_ = false;
    if (error || self->closed_) return self->close();
    if (self->answering_ || self->reading_ || self->drop_after_write_) return;
    self->read_head();
  });
}

void Connection::read_head() {
  reading_ = true;
  head_sent_ = ended_ = false;
  sent_ = 0;
  version_ = 11;
  request_ = {.method = "-", .path = "-"};  // for the log, where no head can be read
  waits_since_ = Clock::now();
  deadline_ = waits_since_ + shared_.options.header;
  parser_.emplace();
  parser_->header_limit(kHeaderBytes);
  parser_->body_limit(kBodyBytes);
  http::async_read_header(socket_, buffer_, *parser_,
                          [self = shared_from_this()](const error_code& error, std::size_t) {
                            if (self->closed_ || self->drop_after_write_) return;
                            if (error) return self->refuse_parse(error);
                            const auto& message = self->parser_->get();
                            self->version_ = static_cast<int>(message.version());
                            self->keep_alive_ = message.keep_alive();
                            self->request_ = to_request(message);
                            self->began_ = Clock::now();
                            if (auto wrong = self->head_refusal()) return self->refuse(std::move(*wrong));
                            const std::string* expects = self->request_.header("expect");
                            if (expects != nullptr && lower(*expects) == "100-continue" && self->version_ == 11) {
                              self->put(kContinue);
                              self->flush();
                            }
                            self->deadline_ = Clock::now() + self->shared_.options.body;
                            self->read_body();
                          });
}

// What rejects a request before its body is read; reserves memory for the body.
std::optional<Response> Connection::head_refusal() {
  if (auto wrong = wrong_framing(request_, version_)) return wrong;
  if (auto wrong = shared_.router.refusal(request_)) return wrong;
  if (!shared_.router.immediate(request_)) {
    if (shared_.draining.load()) return stopping();
    if (over_limit_) {
      shared_.turned_away.fetch_add(1);
      return no_connection();
    }
  }
  const std::uint64_t size = parser_->chunked() ? kBodyBytes : parser_->content_length().value_or(0);
  body_share_ = MemoryShare(shared_.memory);
  if (size > kSmall && !body_share_.resize(static_cast<std::int64_t>(size))) return no_memory();
  return std::nullopt;
}

void Connection::read_body() {
  http::async_read(socket_, buffer_, *parser_, [self = shared_from_this()](const error_code& error, std::size_t) {
    if (self->closed_ || self->drop_after_write_) return;
    if (error) return self->refuse_parse(error);
    self->request_.body = std::move(self->parser_->get().body());
    self->dispatch();
  });
}

void Connection::dispatch() {
  deadline_ = kNever;
  reading_ = false;
  answering_ = true;
  shared_.answering.fetch_add(1);
  shared_.requests.fetch_add(1);
  const bool large = request_.body.size() > kSmall;
  exchange_ = std::make_shared<Exchange>();
  (void)body_share_.resize(large ? std::ssize(request_.body) : 0);
  exchange_->body = std::move(body_share_);
  watch();
  const bool immediate = shared_.router.immediate(request_);
  const auto request = std::make_shared<const Request>(std::move(request_));
  // For the log and the head of the response.
  request_ = Request{.method = request->method, .path = request->path, .headers = request->headers};
  auto job = [router = &shared_.router, memory = shared_.memory, large, request,
              reply = std::make_shared<SocketReply>(shared_, weak_from_this(), exchange_)] {
    MemoryShare work(memory);  // a part of the budget at most, or a small budget could never take a large body
    if (large && !work.resize(std::min(kWorkFactor * std::ssize(request->body), memory->limit() / 8)))
      return reply->send(no_memory());
    router->handle(*request, reply);
  };
  if (immediate)
    job();
  else
    shared_.handlers->post(std::move(job), large);
}

// Sees the client go while its answer is made. What it sends ahead is kept, up to a limit; the rest stays in the
// socket.
void Connection::watch() {
  if (watching_ || half_closed_) return;
  if (buffer_.size() + sizeof scratch_ > kReadAhead) return watch_for_reset();
  watching_ = true;
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](const error_code& error) {
    self->watching_ = false;
    if (self->closed_) return;
    if (error) return self->close();
    if (!self->answering_) {
      if (!self->reading_ && !self->drop_after_write_) self->wait_for_request();
      return;
    }
    error_code failed;
    self->socket_.non_blocking(true, failed);
    const std::size_t count = self->socket_.read_some(asio::buffer(self->scratch_), failed);
    if (failed == asio::error::would_block) return self->watch();
    if (failed == asio::error::eof) return self->half_close();
    if (failed) return self->close();
    self->buffer_.commit(asio::buffer_copy(self->buffer_.prepare(count), asio::buffer(self->scratch_, count)));
    self->watch();
  });
}

// The client sends nothing more: it waits for its answer with its side shut, or has gone. TCP tells which only once
// something is sent, so an interim response, which clients skip, goes ahead of the answer; one that has gone resets.
void Connection::half_close() {
  half_closed_ = true;
  watch_for_reset();
  if (head_sent_ || version_ != 11) return;
  put(kContinue);
  flush();
}

void Connection::watch_for_reset() {
  if (watching_reset_) return;
  watching_reset_ = true;
  socket_.async_wait(tcp::socket::wait_error, [self = shared_from_this()](const error_code&) {
    self->watching_reset_ = false;
    self->close();
  });
}

void Connection::refuse_parse(const error_code& error) {
  const auto answer = [&](int status, const std::string& message, const char* code) {
    if (!parser_->get().method_string().empty()) request_.method = std::string(parser_->get().method_string());
    refuse(error_response({.status = status, .message = message, .code = code}));
  };
  if (error == http::error::header_limit)
    answer(431, "the request's head is longer than 8 KiB", "header_too_large");
  else if (error == http::error::body_limit)
    answer(413, "the request's body is longer than 1 MiB", "body_too_large");
  else if (error == http::error::buffer_overflow)
    answer(400, "a line of the request is too long", "bad_request");
  else if (error == http::error::partial_message)
    answer(400, "the request ended before it was whole", "bad_request");
  else if (error.category() == http::make_error_code(http::error::end_of_stream).category() &&
           error != http::error::end_of_stream)
    answer(400, "the request is not HTTP: " + error.message(), "bad_request");
  else
    close();
}

void Connection::refuse(Response response) {
  began_ = Clock::now();
  keep_alive_ = false;
  reading_ = false;
  deadline_ = Clock::now() + kLinger;
  drop_after_write_ = true;
  body_share_.clear();
  respond(nullptr, std::move(response), false, {});
}

void Connection::put_head(const Response& response, bool grows, std::size_t length) {
  status_ = response.status;
  // Where new clients wait for a connection, an answered one makes way, and its client knows.
  if (shared_.draining.load() || over_limit_ || shared_.full()) keep_alive_ = false;
  chunked_ = grows && version_ == 11;
  if (grows && !chunked_) keep_alive_ = false;
  std::string head = "HTTP/1.1 " + std::to_string(response.status) + " " + reason_phrase(response.status) + "\r\n";
  const auto line = [&](std::string_view name, std::string_view value) {
    head.append(name).append(": ").append(value).append("\r\n");
  };
  const auto given = [&](const std::string& name) {
    for (const auto& header : response.headers)
      if (header.first == name) return true;
    return false;
  };
  if (response.status != 304) line("Content-Type", response.content_type);
  for (const auto& [name, value] : shared_.router.headers(request_))
    if (!given(name)) line(name, value);
  for (const auto& [name, value] : response.headers)
    if (value.find_first_of("\r\n") == std::string::npos) line(name, value);
  if ((response.status == 429 || response.status == 503) && !given("Retry-After")) line("Retry-After", "1");
  if (chunked_)
    line("Transfer-Encoding", "chunked");
  else if (!grows && response.status != 304)
    line("Content-Length", std::to_string(length));
  line("Connection", keep_alive_ ? "keep-alive" : "close");
  put(head + "\r\n");
}

void Connection::respond(const std::shared_ptr<Exchange>& exchange, Response response, bool grows, MemoryShare share) {
  if (closed_ || exchange != exchange_ || head_sent_) return;
  head_sent_ = true;
  put_head(response, grows, response.body.size());
  const bool bodiless = request_.method == "HEAD" || response.status == 304;
  if (grows && !bodiless) {
    append(exchange, std::move(response.body), std::move(share));
  } else {
    ended_ = true;
    if (!bodiless) {
      sent_ += response.body.size();
      put(std::move(response.body), 0, std::move(share));
    }
    if (grows) exchange->leave();  // the rest of the body has no reader
  }
  flush();
}

void Connection::append(const std::shared_ptr<Exchange>& exchange, std::string piece, MemoryShare share) {
  if (closed_ || exchange != exchange_ || ended_ || piece.empty()) return;
  const std::size_t size = piece.size();
  sent_ += size;
  if (chunked_) {
    char line[24];
    (void)std::snprintf(line, sizeof line, "%zx\r\n", size);
    put(line);
  }
  put(std::move(piece), size, std::move(share));
  if (chunked_) put("\r\n");
  flush();
}

void Connection::finish(const std::shared_ptr<Exchange>& exchange) {
  if (closed_ || exchange != exchange_ || ended_) return;
  if (chunked_) put("0\r\n\r\n");
  ended_ = true;
  flush();
  if (!writing_) after_answer();
}

void Connection::abandon(const std::shared_ptr<Exchange>& exchange) {
  if (!closed_ && exchange == exchange_ && !ended_) close();  // a HEAD has its whole answer
}

// Joins small texts, and moves large ones. The first piece is left as it is while it is written.
void Connection::put(std::string text, std::size_t unread, MemoryShare share) {
  const bool last_is_free = out_.size() > (writing_ ? 1U : 0U);
  if (!last_is_free || out_.back().text.size() + text.size() > kJoined) {
    out_.push_back({std::move(text), unread, {}});
  } else {
    out_.back().text += text;
    out_.back().unread += unread;
  }
  if (share.bytes() > 0) out_.back().shares.push_back(std::move(share));
}

void Connection::flush() {
  if (writing_ || out_.empty()) return;
  writing_ = true;
  write_some();
}

void Connection::write_some() {
  waits_since_ = Clock::now();
  write_deadline_ = waits_since_ + (drop_after_write_ ? kLinger : shared_.options.idle);
  socket_.async_write_some(asio::buffer(out_.front().text) + written_,
                           [self = shared_from_this()](const error_code& error, std::size_t count) {
                             if (self->closed_) return;
                             if (error) return self->close();
                             self->wrote(count);
                           });
}

void Connection::wrote(std::size_t count) {
  written_ += count;
  if (written_ == out_.front().text.size()) {
    if (exchange_) exchange_->unread.fetch_sub(out_.front().unread);
    out_.pop_front();
    written_ = 0;
  }
  if (!out_.empty()) return write_some();
  writing_ = false;
  write_deadline_ = kNever;
  if (drop_after_write_ || (ended_ && answering_)) after_answer();
}

void Connection::after_answer() {
  const auto took = std::chrono::duration<double, std::milli>(Clock::now() - began_).count();
  char milliseconds_text[32];
  (void)std::snprintf(milliseconds_text, sizeof milliseconds_text, "%.1f", took);
  shared_.log.say("request", {{"method", request_.method},
                              {"path", request_.path},
                              {"status", std::to_string(status_)},
                              {"bytes", std::to_string(sent_)},
                              {"ms", milliseconds_text}});
  if (answering_) shared_.answering.fetch_sub(1);
  answering_ = false;
  ended_ = false;
  if (exchange_) exchange_->answered();
  exchange_.reset();
  if (keep_alive_ && !shared_.draining.load() && !drop_after_write_) return wait_for_request();
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  drop_after_write_ = true;
  waits_since_ = Clock::now();
  deadline_ = waits_since_ + kLinger;
  drain_and_close(kDiscard);
}

// A connection that is closed with bytes unread is reset, and the client may never see the answer.
void Connection::drain_and_close(std::size_t left) {
  socket_.async_read_some(asio::buffer(scratch_),
                          [self = shared_from_this(), left](const error_code& error, std::size_t n) {
                            if (self->closed_) return;
                            if (error || n >= left) return self->close();
                            self->drain_and_close(left - n);
                          });
}

}  // namespace attend::server
