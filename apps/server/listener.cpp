// The sockets, on Boost.Asio: one thread serves all of them; handlers run on a few others and answer through it.
#include "apps/server/listener.hpp"

#include "apps/server/connection.hpp"
#include "apps/server/read_request.hpp"

namespace attend::server {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kSweep{200};  // how often deadlines are looked at

void listen_on(tcp::acceptor& acceptor, const ListenOptions& options) {
  error_code error;
  const auto address = asio::ip::make_address(options.address, error);
  const std::string where = options.address + ":" + std::to_string(options.port);
  if (error)
    throw std::runtime_error("cannot listen on " + where + ": that is no address; expected one such as 127.0.0.1");
  const tcp::endpoint endpoint(address, options.port);
  const auto check = [&] {
    if (error)
      throw std::runtime_error("cannot listen on " + where + ": " + error.message() +
                               (error == boost::system::errc::address_not_available
                                    ? "; this machine has no such address: expected one of its own"
                                    : "; take another port, or 0 for a free one"));
  };
  acceptor.open(endpoint.protocol(), error);
  check();
  acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  acceptor.bind(endpoint, error);
  check();
  acceptor.listen(asio::socket_base::max_listen_connections, error);
  check();
}

}  // namespace

Sockets::Sockets(const Router& r, const ListenOptions& o, Log& l) : router(r), options(o), log(l) {
  listen_on(acceptor, options);
}

void check_address(const ListenOptions& options) {
  asio::io_context io(1);
  tcp::acceptor acceptor(io);
  listen_on(acceptor, options);
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

}  // namespace attend::server
