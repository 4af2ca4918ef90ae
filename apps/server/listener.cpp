// The sockets, on Boost.Asio, with Boost.Beast's parser of requests. One thread serves all of them; handlers run on a
// few others and answer through it.
#include "apps/server/listener.hpp"

#include <atomic>
#include <boost/asio.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <mutex>
#include <set>
#include <thread>

#include "io/json.hpp"

namespace attend::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr auto kNever = Clock::time_point::max();
constexpr milliseconds kSweep{200};        // how often deadlines are looked at
constexpr milliseconds kLinger{1'000};     // for a client to take a refusal before the connection closes
constexpr std::size_t kBuffer = 16 << 10;  // read ahead of a client that does not wait for its answer
constexpr std::size_t kDiscard = 1 << 20;  // of a refused body that is read, so that the refusal arrives

class HandlerThreads {
 public:
  explicit HandlerThreads(int count) {
    for (int i = 0; i < count; ++i) threads_.emplace_back([this] { loop(); });
  }
  ~HandlerThreads() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  HandlerThreads(const HandlerThreads&) = delete;
  HandlerThreads& operator=(const HandlerThreads&) = delete;

  void post(std::function<void()> job) {
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    wake_.notify_one();
  }

 private:
  void loop() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
      if (stopping_) return;
      const std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> jobs_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

template <class Fields>
Request to_request(const http::request<http::string_body, Fields>& message) {
  Request request;
  request.method = std::string(message.method_string());
  const std::string target(message.target());
  const std::size_t mark = target.find('?');
  request.path = target.substr(0, mark);
  if (mark != std::string::npos) request.query = target.substr(mark + 1);
  for (const auto& field : message)
    request.headers.emplace_back(lower(std::string_view(field.name_string().data(), field.name_string().size())),
                                 std::string(field.value()));
  return request;
}

// What one request and the thread that answers it share.
struct Exchange {
  std::atomic<bool> gone{false};
  std::atomic<std::size_t> unread{0};
  std::mutex mutex;
  std::function<void()> when_gone;

  void leave() {
    std::function<void()> call;
    {
      const std::lock_guard lock(mutex);
      if (gone.exchange(true)) return;
      call = std::move(when_gone);
    }
    if (call) call();
  }
  // Answered: what was to be called may own the reply, which owns this.
  void forget() {
    const std::lock_guard lock(mutex);
    when_gone = nullptr;
  }
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, Sockets& shared) : socket_(std::move(socket)), shared_(shared) {}

  void start();
  void close();
  bool answering() const { return answering_; }
  void expire(Clock::time_point now);
  void close_if_idle();

  // From the reply, on the sockets' thread.
  void respond(const std::shared_ptr<Exchange>& exchange, Response response, bool grows);
  void append(const std::shared_ptr<Exchange>& exchange, std::string piece);
  void finish(const std::shared_ptr<Exchange>& exchange);
  void abandon(const std::shared_ptr<Exchange>& exchange);

 private:
  using Parser = http::request_parser<http::string_body>;

  void wait_for_request();
  void read_head();
  void read_body();
  void dispatch();
  void watch();
  void refuse(Response response);
  void refuse_parse(const error_code& error);
  void put_head(const Response& response, bool grows, std::size_t length);
  void flush();
  void after_answer();
  void drain_and_close(std::size_t left);

  tcp::socket socket_;
  Sockets& shared_;
  beast::flat_buffer buffer_{kHeaderBytes + kBuffer};
  std::optional<Parser> parser_;
  Request request_;
  std::shared_ptr<Exchange> exchange_;
  Clock::time_point deadline_ = kNever, write_deadline_ = kNever, began_{};
  bool reading_ = false, answering_ = false, closed_ = false, keep_alive_ = false, chunked_ = false, head_sent_ = false,
       ended_ = false;
  bool writing_ = false, watching_ = false, drop_after_write_ = false;
  int version_ = 11, status_ = 0;
  std::size_t sent_ = 0;
  std::string out_, in_flight_;
  char scratch_[1024];
};

}  // namespace

// What all connections share; the set belongs to the sockets' thread.
struct Sockets {
  Sockets(const Router& r, const ListenOptions& o, Log& l);
  void accept();
  void sweep();

  const Router& router;
  const ListenOptions options;
  Log& log;
  // A reply may outlive all this, and then says into the void: it has a share.
  const std::shared_ptr<asio::io_context> shared_io = std::make_shared<asio::io_context>(1);
  asio::io_context& io = *shared_io;
  tcp::acceptor acceptor{io};
  asio::steady_timer timer{io}, retry{io};
  std::set<std::shared_ptr<Connection>> connections;
  std::deque<std::weak_ptr<Connection>> arrived;  // oldest first
  std::atomic<bool> draining{false};
  std::atomic<std::int64_t> open{0}, answering{0}, accepted{0}, evicted{0}, turned_away{0}, timed_out{0}, requests{0};
  std::unique_ptr<HandlerThreads> handlers;
  std::thread thread;
};

namespace {

// A reply that outlives its connection says into the void.
class SocketReply : public Reply {
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
    post([response = std::move(response)](Connection& c, const std::shared_ptr<Exchange>& e) mutable {
      c.respond(e, std::move(response), false);
    });
  }
  void begin(Response head) override {
    if (done_ || began_) return;
    began_ = true;
    post([head = std::move(head)](Connection& c, const std::shared_ptr<Exchange>& e) mutable {
      c.respond(e, std::move(head), true);
    });
  }
  bool write(std::string piece) override {
    if (done_ || !began_ || exchange_->gone.load()) return false;
    if (exchange_->unread.fetch_add(piece.size()) + piece.size() > unread_) {
      done_ = true;
      post([](Connection& c, const std::shared_ptr<Exchange>& e) { c.abandon(e); });
      return false;
    }
    post([piece = std::move(piece)](Connection& c, const std::shared_ptr<Exchange>& e) mutable {
      c.append(e, std::move(piece));
    });
    return true;
  }
  void end() override {
    if (done_ || !began_) return;
    done_ = true;
    post([](Connection& c, const std::shared_ptr<Exchange>& e) { c.finish(e); });
  }
  void when_gone(std::function<void()> call) override {
    {
      const std::lock_guard lock(exchange_->mutex);
      if (!exchange_->gone.load()) {
        exchange_->when_gone = std::move(call);
        return;
      }
    }
    call();
  }

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
        if (auto wrong = self->shared_.router.refusal(self->request_)) return self->refuse(std::move(*wrong));
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
    if (failed || self->buffer_.size() + count > kBuffer) return self->close();
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

void Connection::refuse(Response response) {
  began_ = Clock::now();
  keep_alive_ = false;
  deadline_ = Clock::now() + kLinger;
  drop_after_write_ = true;
  respond(nullptr, std::move(response), false);
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

void Connection::respond(const std::shared_ptr<Exchange>& exchange, Response response, bool grows) {
  if (closed_ || exchange != exchange_ || head_sent_) return;
  head_sent_ = exchange != nullptr;
  put_head(response, grows, response.body.size());
  const bool bodiless = request_.method == "HEAD" || response.status == 304;
  if (grows && !response.body.empty()) {
    append(exchange, std::move(response.body));
  } else if (!grows) {
    if (!bodiless) out_ += response.body;
    sent_ += response.body.size();
    ended_ = true;
  }
  flush();
}

void Connection::append(const std::shared_ptr<Exchange>& exchange, std::string piece) {
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
  if (exchange_) exchange_->forget();
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

}  // namespace

Sockets::Sockets(const Router& r, const ListenOptions& o, Log& l) : router(r), options(o), log(l) {
  error_code error;
  const auto address = asio::ip::make_address(options.address, error);
  const std::string where = options.address + ":" + std::to_string(options.port);
  if (error)
    throw std::runtime_error("cannot listen on " + where + ": that is no address; expected one such as 127.0.0.1");
  const tcp::endpoint endpoint(address, options.port);
  const auto check = [&] {
    if (error)
      throw std::runtime_error("cannot listen on " + where + ": " + error.message() +
                               "; take another port, or 0 for a free one");
  };
  acceptor.open(endpoint.protocol(), error);
  check();
  acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  acceptor.bind(endpoint, error);
  check();
  acceptor.listen(asio::socket_base::max_listen_connections, error);
  check();
}

void Sockets::accept() {
  acceptor.async_accept([this](const error_code& error, tcp::socket socket) {
    if (error == asio::error::operation_aborted || !acceptor.is_open()) return;
    if (error) {  // no more descriptors, perhaps: some will be free in a moment
      retry.expires_after(milliseconds(100));
      retry.async_wait([this](const error_code& stopped) {
        if (!stopped) accept();
      });
      return;
    }
    accepted.fetch_add(1);
    error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    while (!arrived.empty() && arrived.front().expired()) arrived.pop_front();
    if (connections.size() >= options.connections) {
      std::shared_ptr<Connection> oldest;
      for (const auto& weak : arrived)
        if (const auto c = weak.lock(); c && !c->answering() && connections.contains(c)) {
          oldest = c;
          break;
        }
      if (oldest) {
        evicted.fetch_add(1);
        oldest->close();
      } else {
        turned_away.fetch_add(1);
        const Response busy = error_response(
            {.status = 503, .message = "all connections are in use; try again in a moment", .code = "overloaded"});
        const std::string text =
            "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
            "Connection: close\r\nContent-Length: " +
            std::to_string(busy.body.size()) + "\r\n\r\n" + busy.body;
        socket.non_blocking(true, ignored);
        (void)socket.write_some(asio::buffer(text), ignored);
        socket.shutdown(tcp::socket::shutdown_send, ignored);
        return accept();
      }
    }
    const auto connection = std::make_shared<Connection>(std::move(socket), *this);
    connections.insert(connection);
    if (arrived.size() > 4 * options.connections)
      std::erase_if(arrived, [&](const auto& weak) { return weak.expired(); });
    arrived.push_back(connection);
    open.fetch_add(1);
    connection->start();
    accept();
  });
}

void Sockets::sweep() {
  timer.expires_after(kSweep);
  timer.async_wait([this](const error_code& error) {
    if (error) return;
    const auto now = Clock::now();
    const std::vector<std::shared_ptr<Connection>> all(connections.begin(), connections.end());
    for (const auto& connection : all) connection->expire(now);
    sweep();
  });
}

Listener::Listener(const Router& router, const ListenOptions& options, Log& log)
    : state_(std::make_unique<Sockets>(router, options, log)) {
  state_->handlers = std::make_unique<HandlerThreads>(options.handlers);
  state_->accept();
  state_->sweep();
  state_->thread = std::thread([state = state_.get()] {
    while (true) {
      try {
        state->io.run();
        return;
      } catch (const std::exception& error) {  // out of memory: that connection is lost, the others go on
        state->log.say("error", {{"what", error.what()}});
      }
    }
  });
}

Listener::~Listener() {
  asio::post(state_->io, [state = state_.get()] {
    error_code ignored;
    state->acceptor.close(ignored);
    const std::vector<std::shared_ptr<Connection>> all(state->connections.begin(), state->connections.end());
    for (const auto& connection : all) connection->close();
    state->timer.cancel();
    state->io.stop();
  });
  state_->thread.join();
  state_->handlers.reset();
}

std::uint16_t Listener::port() const {
  error_code ignored;
  return state_->acceptor.local_endpoint(ignored).port();
}

ListenNumbers Listener::numbers() const {
  return {.connections = state_->open,
          .accepted = state_->accepted,
          .evicted = state_->evicted,
          .turned_away = state_->turned_away,
          .timed_out = state_->timed_out,
          .requests = state_->requests};
}

bool Listener::drain(milliseconds limit) {
  state_->draining = true;
  asio::post(state_->io, [state = state_.get()] {
    error_code ignored;
    state->acceptor.close(ignored);
    const std::vector<std::shared_ptr<Connection>> all(state->connections.begin(), state->connections.end());
    for (const auto& connection : all) connection->close_if_idle();
  });
  const auto until = Clock::now() + limit;
  while (state_->answering.load() > 0) {
    if (Clock::now() >= until) return false;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return true;
}

std::optional<Request> parse_request(std::string_view bytes) {
  http::request_parser<http::string_body> parser;
  parser.header_limit(kHeaderBytes);
  parser.body_limit(kBodyBytes);
  parser.eager(true);
  error_code error;
  while (!bytes.empty() && !parser.is_done()) {
    const std::size_t used = parser.put(asio::const_buffer(bytes.data(), bytes.size()), error);
    if (error || used == 0) break;
    bytes.remove_prefix(used);
  }
  if (error || !parser.is_done()) return std::nullopt;
  Request request = to_request(parser.get());
  request.body = std::move(parser.get().body());
  return request;
}

struct StopSignals::State {
  asio::io_context io{1};
  asio::signal_set signals{io, SIGINT, SIGTERM};
};

StopSignals::StopSignals() : state_(std::make_unique<State>()) {}
StopSignals::~StopSignals() = default;

std::optional<int> StopSignals::wait(std::optional<milliseconds> limit) {
  std::optional<int> got;
  state_->io.restart();
  state_->signals.async_wait([&](const error_code& error, int number) {
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
