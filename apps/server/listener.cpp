// The sockets, on Boost.Asio: one thread serves all of them; handlers run on a few others and answer through it.
#include "apps/server/listener.hpp"

#include "apps/server/connection.hpp"
#include "apps/server/read_request.hpp"
#include "llm/runtime/memory.hpp"

namespace attend::server {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kSweep{200};    // how often deadlines are checked
constexpr milliseconds kGrace{1'000};  // a client that was waited for as long makes way for others
constexpr std::size_t kReserve = 16;   // connections beyond the limit, for /health and the like and for saying 503
constexpr std::int64_t kGiveBack = std::int64_t{32} << 20;  // freed bytes that are worth a walk through the heap
constexpr std::int64_t kDefaultMemory = std::int64_t{1} << 30;

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

Sockets::Sockets(const Router& r, const ListenOptions& o, Log& l)
    : router(r), options(o), log(l), memory(o.memory ? o.memory : std::make_shared<MemoryBudget>(kDefaultMemory)) {
  listen_on(acceptor, options);
  acceptor.non_blocking(true);
}

void check_address(const ListenOptions& options) {
  asio::io_context io(1);
  tcp::acceptor acceptor(io);
  listen_on(acceptor, options);
}

void Sockets::wait_for_client() {
  acceptor.async_wait(tcp::acceptor::wait_read, [this](const error_code& error) {
    if (!error && acceptor.is_open()) accept();
  });
}

// A client is waiting. If there is no room for it, it stays in the kernel's queue.
void Sockets::accept() {
  paused = !make_room(Clock::now());
  if (paused) return;
  error_code error;
  tcp::socket socket(io);
  acceptor.accept(socket, error);
  if (error == asio::error::would_block || error == asio::error::connection_aborted) return wait_for_client();
  if (error) {  // no more descriptors, perhaps: some will be free in a moment
    retry.expires_after(milliseconds(100));
    retry.async_wait([this](const error_code& stopped) {
      if (!stopped) wait_for_client();
    });
    return;
  }
  accepted.fetch_add(1);
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  const auto connection = std::make_shared<Connection>(std::move(socket), *this, full());
  connections.insert(connection);
  open.fetch_add(1);
  connection->start();
  wait_for_client();
}

void Sockets::accept_if_paused() {
  if (paused) accept();
}

namespace {

// Of those that `may_go` and wait for their client: the one that has waited for longest.
template <class MayGo>
std::shared_ptr<Connection> longest_waiting(const Sockets& sockets, const MayGo& may_go) {
  std::shared_ptr<Connection> found;
  for (const auto& connection : sockets.connections) {
    const auto since = connection->waits_since();
    if (since && may_go(*connection) && (!found || *since < *found->waits_since())) found = connection;
  }
  return found;
}

}  // namespace

// For one more connection: a connection that has waited for its client makes way. Where the server is at work for all
// of them, a few more may come.
bool Sockets::make_room(Clock::time_point now) {
  while (full()) {
    const auto waiting = longest_waiting(*this, [](const Connection&) { return true; });
    if (!waiting) return connections.size() < options.connections + kReserve;
    if (now - *waiting->waits_since() < kGrace) return false;
    evicted.fetch_add(1);
    waiting->close();
  }
  return true;
}

// Answers whose clients do not read them make way once the memory runs short.
void Sockets::free_memory(Clock::time_point now) {
  while (memory->reserved() > memory->limit() / 4 * 3) {
    const auto unread = longest_waiting(*this, [](const Connection& c) { return c.writing(); });
    if (!unread || now - *unread->waits_since() < kGrace) return;
    evicted.fetch_add(1);
    unread->close();
  }
}

// The allocator would keep what unread answers took.
void Sockets::give_back_memory() {
  const std::int64_t reserved = memory->reserved();
  peak = std::max(peak, reserved);
  if (peak - reserved < kGiveBack) return;
  llm::give_back_memory();
  peak = reserved;
}

void Sockets::sweep() {
  timer.expires_after(kSweep);
  timer.async_wait([this](const error_code& error) {
    if (error) return;
    const auto now = Clock::now();
    const std::vector<std::shared_ptr<Connection>> all(connections.begin(), connections.end());
    for (const auto& connection : all) connection->expire(now);
    free_memory(now);
    give_back_memory();
    accept_if_paused();
    sweep();
  });
}

Listener::Listener(const Router& router, const ListenOptions& options, Log& log)
    : state_(std::make_unique<Sockets>(router, options, log)) {
  state_->handlers = std::make_unique<HandlerThreads>(options.handlers);
  state_->wait_for_client();
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
