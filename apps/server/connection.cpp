// Reads requests with Boost.Beast's parser, and writes what the replies give.
#include "apps/server/connection.hpp"

#include "apps/server/read_request.hpp"
#include "io/json.hpp"

namespace attend::server {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;

constexpr auto kNever = Connection::Clock::time_point::max();
constexpr milliseconds kLinger{1'000};     // for a client to take a refusal before the connection closes
constexpr std::size_t kDiscard = 1 << 20;  // of a refused body that is read, so that the refusal arrives

// A reply that outlives its connection says into the void.
class SocketReply final : public Reply {
 public:
  SocketReply(std::shared_ptr<asio::io_context> io, std::weak_ptr<Connection> connection,
              std::shared_ptr<Exchange> exchange, std::size_t unread)
      : io_(std::move(io)), connection_(std::move(connection)), exchange_(std::move(exchange)), unread_(unread) {}
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
    post([response = std::move(response)](Connection& c, const std::shared_ptr<Exchange>& e) {
      c.respond(e, response, false);
    });
  }
  void begin(Response head) override {
    if (done_ || began_) return;
    began_ = true;
    post([head = std::move(head)](Connection& c, const std::shared_ptr<Exchange>& e) { c.respond(e, head, true); });
  }
  bool write(std::string piece) override {
    if (done_ || !began_ || exchange_->gone()) return false;
    if (exchange_->unread.fetch_add(piece.size()) + piece.size() > unread_) {
      done_ = true;
      post([](Connection& c, const std::shared_ptr<Exchange>& e) { c.abandon(e); });
      return false;
    }
    post([piece = std::move(piece)](Connection& c, const std::shared_ptr<Exchange>& e) { c.append(e, piece); });
    return true;
  }
  void end() override {
    if (done_ || !began_) return;
    done_ = true;
    post([](Connection& c, const std::shared_ptr<Exchange>& e) { c.finish(e); });
  }
  void when_gone(std::function<void()> call) override { exchange_->when_gone(std::move(call)); }

 private:
  template <class Job>
  void post(Job job) {
    asio::post(*io_, [connection = connection_, exchange = exchange_, job = std::move(job)]() mutable {
      if (const auto c = connection.lock()) job(*c, exchange);
    });
  }

  std::shared_ptr<asio::io_context> io_;
  std::weak_ptr<Connection> connection_;
  std::shared_ptr<Exchange> exchange_;
  std::size_t unread_;
  bool done_ = false, began_ = false;
};

}  // namespace

void Connection::start() {
  deadline_ = Clock::now() + shared_.options.header;
  read_head();
}

void Connection::close() {
  if (closed_) return;
  closed_ = true;
  error_code ignored;
  socket_.close(ignored);
  if (answering_) shared_.answering.fetch_sub(1);
  answering_ = false;
  if (exchange_) exchange_->leave();
  exchange_.reset();
  --shared_.open;
  shared_.connections.erase(shared_from_this());
}

void Connection::expire(Clock::time_point now) {
  if (now < deadline_ && now < write_deadline_) return;
  shared_.timed_out.fetch_add(1);
  // A head that began to arrive and did not end is answered; whoever sent nothing hears nothing.
  const bool began = parser_ && (buffer_.size() > 0 || parser_->got_some()) && !answering_ && !drop_after_write_;
  if (now >= deadline_ && began)
    refuse(error_response({.status = 408, .message = "the request did not arrive in time", .code = "request_timeout"}));
  else
    close();
}

void Connection::close_if_idle() {
  if (!answering_ && !writing_) close();
}

void Connection::wait_for_request() {
  if (closed_) return;
  parser_.reset();
  if (buffer_.size() > 0) {  // it did not wait for its answer
    deadline_ = Clock::now() + shared_.options.header;
    return read_head();
  }
  deadline_ = Clock::now() + shared_.options.idle;
  if (watching_) return;
  watching_ = true;
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](const error_code& error) {
    self->watching_ = false;
    if (error || self->closed_) return self->close();
    if (self->answering_ || self->reading_ || self->drop_after_write_) return;
    self->deadline_ = Clock::now() + self->shared_.options.header;
    self->read_head();
  });
}

void Connection::read_head() {
  reading_ = true;
  parser_.emplace();
  parser_->header_limit(kHeaderBytes);
  parser_->body_limit(kBodyBytes);
  http::async_read_header(
      socket_, buffer_, *parser_, [self = shared_from_this()](const error_code& error, std::size_t) {
        if (self->closed_ || self->drop_after_write_) return;
        if (error) return self->refuse_parse(error);
        const auto& message = self->parser_->get();
        self->version_ = static_cast<int>(message.version());
        self->keep_alive_ = message.keep_alive();
        self->request_ = to_request(message);
        self->began_ = Clock::now();
        if (self->version_ != 10 && self->version_ != 11)
          return self->refuse(error_response({.status = 400, .message = "expected HTTP/1.1", .code = "bad_request"}));
        if (self->request_.count("content-length") > 1 || self->request_.count("transfer-encoding") > 1)
          return self->refuse(error_response(
              {.status = 400, .message = "the length of the body is given more than once", .code = "bad_request"}));
        if (auto wrong = self->shared_.router.refusal(self->request_)) return self->refuse(*wrong);
        const std::string* expects = self->request_.header("expect");
        if (expects != nullptr && lower(*expects) == "100-continue" && self->version_ == 11) {
          self->out_ += "HTTP/1.1 100 Continue\r\n\r\n";
          self->flush();
        }
        self->deadline_ = Clock::now() + self->shared_.options.body;
        self->read_body();
      });
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
  exchange_ = std::make_shared<Exchange>();
  head_sent_ = ended_ = false;
  sent_ = 0;
  watch();
  auto reply = std::make_shared<SocketReply>(shared_.shared_io, weak_from_this(), exchange_, shared_.options.unread);
  const bool immediate = shared_.router.immediate(request_);
  const auto request = std::make_shared<const Request>(std::move(request_));
  request_ = Request{.method = request->method, .path = request->path};  // for the log
  auto job = [router = &shared_.router, request, reply = std::move(reply)] { router->handle(*request, reply); };
  if (immediate)
    job();
  else
    shared_.handlers->post(std::move(job));
}

// Sees the client go while its answer is made. What it sends ahead is kept, up to a limit.
void Connection::watch() {
  if (watching_) return;
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
    if (failed || self->buffer_.size() + count > kReadAhead) return self->close();
    self->buffer_.commit(asio::buffer_copy(self->buffer_.prepare(count), asio::buffer(self->scratch_, count)));
    self->watch();
  });
}

void Connection::refuse_parse(const error_code& error) {
  const auto answer = [&](int status, const char* message, const char* code) {
    refuse(error_response({.status = status, .message = message, .code = code}));
  };
  if (error == http::error::header_limit)
    answer(431, "the request's head is longer than 8 KiB", "header_too_large");
  else if (error == http::error::body_limit)
    answer(413, "the request's body is longer than 1 MiB", "body_too_large");
  else if (error == http::error::buffer_overflow)
    answer(400, "a line of the request is too long", "bad_request");
  else if (error.category() == http::make_error_code(http::error::end_of_stream).category() &&
           error != http::error::end_of_stream && error != http::error::partial_message)
    answer(400, ("the request is no HTTP: " + error.message()).c_str(), "bad_request");
  else
    close();
}

void Connection::refuse(const Response& response) {
  began_ = Clock::now();
  keep_alive_ = false;
  deadline_ = Clock::now() + kLinger;
  drop_after_write_ = true;
  respond(nullptr, response, false);
}

void Connection::put_head(const Response& response, bool grows, std::size_t length) {
  status_ = response.status;
  if (shared_.draining.load()) keep_alive_ = false;
  chunked_ = grows && version_ == 11;
  if (grows && !chunked_) keep_alive_ = false;
  out_ += "HTTP/1.1 " + std::to_string(response.status) + " " + reason_phrase(response.status) + "\r\n";
  const auto put = [&](std::string_view name, std::string_view value) {
    out_.append(name).append(": ").append(value).append("\r\n");
  };
  const auto given = [&](const std::string& name) {
    for (const auto& header : response.headers)
      if (header.first == name) return true;
    return false;
  };
  if (response.status != 304) put("Content-Type", response.content_type);
  for (const auto& [name, value] : Router::common_headers())
    if (!given(name)) put(name, value);
  for (const auto& [name, value] : response.headers)
    if (value.find_first_of("\r\n") == std::string::npos) put(name, value);
  if (chunked_)
    put("Transfer-Encoding", "chunked");
  else if (!grows && response.status != 304)
    put("Content-Length", std::to_string(length));
  put("Connection", keep_alive_ ? "keep-alive" : "close");
  out_ += "\r\n";
}

void Connection::respond(const std::shared_ptr<Exchange>& exchange, const Response& response, bool grows) {
  if (closed_ || exchange != exchange_ || head_sent_) return;
  head_sent_ = exchange != nullptr;
  put_head(response, grows, response.body.size());
  const bool bodiless = request_.method == "HEAD" || response.status == 304;
  if (grows && !response.body.empty()) {
    append(exchange, response.body);
  } else if (!grows) {
    if (!bodiless) out_ += response.body;
    sent_ += response.body.size();
    ended_ = true;
  }
  flush();
}

void Connection::append(const std::shared_ptr<Exchange>& exchange, const std::string& piece) {
  if (closed_ || exchange != exchange_ || ended_ || piece.empty()) return;
  sent_ += piece.size();
  if (chunked_) {
    char size[24];
    (void)std::snprintf(size, sizeof size, "%zx\r\n", piece.size());
    out_ += size;
    out_ += piece;
    out_ += "\r\n";
  } else {
    out_ += piece;
  }
  flush();
}

void Connection::finish(const std::shared_ptr<Exchange>& exchange) {
  if (closed_ || exchange != exchange_ || ended_) return;
  if (chunked_) out_ += "0\r\n\r\n";
  ended_ = true;
  flush();
  if (!writing_) after_answer();
}

void Connection::abandon(const std::shared_ptr<Exchange>& exchange) {
  if (!closed_ && exchange == exchange_) close();
}

void Connection::flush() {
  if (writing_ || out_.empty()) return;
  writing_ = true;
  in_flight_.clear();
  in_flight_.swap(out_);
  write_deadline_ = Clock::now() + (drop_after_write_ ? kLinger : shared_.options.idle);
  asio::async_write(socket_, asio::buffer(in_flight_),
                    [self = shared_from_this()](const error_code& error, std::size_t) {
                      self->writing_ = false;
                      self->write_deadline_ = kNever;
                      if (self->closed_) return;
                      if (error) return self->close();
                      if (self->exchange_) {
                        auto& unread = self->exchange_->unread;
                        unread.fetch_sub(std::min(unread.load(), self->in_flight_.size()));
                      }
                      if (!self->out_.empty()) return self->flush();
                      if (self->drop_after_write_) return self->after_answer();
                      if (self->ended_ && self->answering_) self->after_answer();
                    });
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
  deadline_ = Clock::now() + kLinger;
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
