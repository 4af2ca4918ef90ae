// Connections over real sockets, with handlers made for the test: what is answered, what makes way, what is counted.
#include "apps/server/listener.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "apps/server/handler_threads.hpp"

namespace attend::server {
namespace {

using std::chrono::milliseconds;

// A client that sends bytes as they are given, and reads one response at a time.
class Wire {
 public:
  explicit Wire(std::uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const timeval limit{.tv_sec = 60, .tv_usec = 0};
    (void)::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  }
  ~Wire() { close(); }
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  struct Answer {
    int status = 0;  // 0: the connection ended without one
    std::string head{}, body{};
    std::map<std::string, std::string> headers{};
  };

  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count <= 0) return;
      bytes.remove_prefix(static_cast<std::size_t>(count));
    }
  }
  void shut() { (void)::shutdown(socket_, SHUT_WR); }
  void close() {
    if (socket_ >= 0) (void)::close(socket_);
    socket_ = -1;
  }
  // The next response, interim ones left out.
  Answer answer(bool bodiless = false) {
    Answer got = head();
    while (got.status / 100 == 1) ++interim, got = head();
    if (bodiless || got.status == 0 || got.status == 304) return got;
    if (got.headers.contains("Transfer-Encoding")) {
      for (std::size_t size = 1; size > 0;) {
        size = std::stoul(line(), nullptr, 16);
        got.body += take(size);
        (void)take(2);
      }
    } else {
      got.body = take(std::stoul(got.headers["Content-Length"]));
    }
    return got;
  }
  Answer ask(std::string_view bytes) {
    send(bytes);
    return answer(bytes.starts_with("HEAD"));
  }
  Answer head() {
    Answer got;
    const std::string status = line();
    if (status.size() < 12) return got;
    got.status = std::stoi(status.substr(9, 3));
    got.head = status;
    for (std::string text; !(text = line()).empty();)
      got.headers[text.substr(0, text.find(':'))] = text.substr(text.find(':') + 2);
    return got;
  }
  bool closed() { return buffer_.empty() && !fill(); }

  int interim = 0;  // responses such as 100 Continue so far

 private:
  bool fill() {
    char some[65536];
    const ssize_t count = ::recv(socket_, some, sizeof some, 0);
    if (count <= 0) return false;
    buffer_.append(some, static_cast<std::size_t>(count));
    return true;
  }
  std::string line() {
    while (buffer_.find("\r\n") == std::string::npos)
      if (!fill()) return "";
    std::string text = buffer_.substr(0, buffer_.find("\r\n"));
    buffer_.erase(0, text.size() + 2);
    return text;
  }
  std::string take(std::size_t count) {
    while (buffer_.size() < count && fill()) {
    }
    std::string text = buffer_.substr(0, count);
    buffer_.erase(0, count);
    return text;
  }

  int socket_;
  std::string buffer_;
};

std::string request(const std::string& method, const std::string& path, const std::string& headers = "",
                    const std::string& body = "") {
  std::string text = method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers;
  if (!body.empty())
    text += "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  return text + "\r\n" + body;
}
std::string get(const std::string& path) {
  return request("GET", path);
}

class ListenerTest : public testing::Test {
 protected:
  ListenerTest() {
    router_.add("GET", "/quick",
                [](const Request&, const std::shared_ptr<Reply>& reply) { reply->send({.body = "quick"}); },
                {.immediate = true});
    router_.add("GET", "/page", [](const Request&, const std::shared_ptr<Reply>& reply) {
      reply->send({.body = "page", .headers = {{"X-Own", "1"}}});
    });
    router_.add("POST", "/echo", [](const Request& asked, const std::shared_ptr<Reply>& reply) {
      reply->send({.body = std::to_string(asked.body.size())});
    });
    router_.add("GET", "/big", [](const Request& asked, const std::shared_ptr<Reply>& reply) {
      reply->send({.body = std::string(std::stoul(asked.query), 'x')});
    });
    router_.add("GET", "/grows", [](const Request& asked, const std::shared_ptr<Reply>& reply) {
      reply->begin({.content_type = "text/plain", .body = "first,"});
      for (std::size_t n = 0; n < 3; ++n)
        (void)reply->write(std::string(asked.query.empty() ? 2 : std::stoul(asked.query), 'y'));
      reply->end();
    });
    router_.add("GET", "/endless", [this](const Request&, const std::shared_ptr<Reply>& reply) {
      reply->begin({.content_type = "text/plain"});
      while (reply->write(std::string(10'000, 'z'))) std::this_thread::yield();
      note("endless ended");
    });
    const auto hold = [this](const Request& asked, const std::shared_ptr<Reply>& reply) {
      reply->when_gone([this] { note("gone"); });
      const std::lock_guard lock(mutex_);
      held_.push_back(reply);
      notes_.insert("held" + asked.query);
      changed_.notify_all();
    };
    router_.add("GET", "/held", hold);
    router_.add("POST", "/held", hold);
  }
  ~ListenerTest() override {
    release();
    listener_.reset();
  }

  void listen(ListenOptions options = {}) { listener_ = std::make_unique<Listener>(router_, options, log_); }
  std::unique_ptr<Wire> connect() { return std::make_unique<Wire>(listener_->port()); }

  void note(const std::string& what) {
    const std::lock_guard lock(mutex_);
    notes_.insert(what);
    changed_.notify_all();
  }
  void wait_for(const std::string& what) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return notes_.contains(what); });
  }
  void release() {
    std::vector<std::shared_ptr<Reply>> held;
    {
      const std::lock_guard lock(mutex_);
      held.swap(held_);
    }
    for (const auto& reply : held) reply->send({.body = "released"});
  }
  // A connection whose request the server works on.
  std::unique_ptr<Wire> busy() {
    auto wire = connect();
    const std::string mark = std::to_string(++busy_);
    wire->send(get("/held?" + mark));
    wait_for("held" + mark);
    return wire;
  }
  static void wait_until(const std::function<bool()>& reached) {
    while (!reached()) std::this_thread::sleep_for(milliseconds(2));
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Reply>> held_;
  std::multiset<std::string> notes_;
  int busy_ = 0;
  Router router_{Access{}};
  Log log_;
  std::unique_ptr<Listener> listener_;
};

TEST_F(ListenerTest, RejectionsFollowAnswersOnOneConnection) {
  listen({.header = milliseconds(60'000), .body = milliseconds(60'000)});
  const std::string json = "Content-Type: application/json\r\n";
  const std::vector<std::pair<int, std::string>> rejected = {
      {404, get("/nowhere")},
      {405, request("DELETE", "/page")},
      {405, request("OPTIONS", "/page")},
      {405, get("/echo")},
      {415, "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"},
      {415, request("POST", "/echo", "Content-Type: text/plain\r\nContent-Length: 2\r\n") + "{}"},
      {413, request("POST", "/echo", json + "Content-Length: 2000000\r\n")},
      {413, request("POST", "/echo", json + "Content-Length: 1048577\r\n") + std::string(1048577, ' ')},
      {431, request("GET", "/page", "X: " + std::string(9000, 'a') + "\r\n")},
      {403, request("GET", "/page", "Origin: http://evil.example\r\n")},
      {403, request("OPTIONS", "/page", "Origin: http://evil.example\r\n")},
      {421, "GET /page HTTP/1.1\r\nHost: evil.example\r\n\r\n"},
      {400, "GET /page HTTP/1.1\r\n\r\n"},
      {400, "GET /page HTTP/9.9\r\nHost: localhost\r\n\r\n"},
      {400, "nonsense\r\n\r\n"},
      {400, request("GET", "/page", "Content-Length: 2\r\n") + "{}"},
      {400, request("POST", "/echo", json + "Content-Length: 2\r\nContent-Length: 2\r\n") + "{}"},
      {400, request("POST", "/echo", json + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n") + "{}"},
      {501, request("POST", "/echo", json + "Transfer-Encoding: gzip, chunked\r\n") + "0\r\n\r\n"},
      {501, request("POST", "/echo", json + "Transfer-Encoding: identity\r\n") + "0\r\n\r\n"},
  };
  for (const auto& [status, bytes] : rejected)
    for (const int before : {0, 1, 2}) {
      const auto wire = connect();
      for (int n = 0; n < before; ++n)
        ASSERT_EQ(wire->ask(n == 0 ? get("/page") : request("POST", "/echo", "", "{}")).status, 200);
      const Wire::Answer got = wire->ask(bytes);
      EXPECT_EQ(got.status, status) << before << " answers before: " << bytes.substr(0, 200);
      EXPECT_EQ(got.headers.at("Connection"), "close");
      EXPECT_NE(got.body.find("\"error\""), std::string::npos);
      EXPECT_TRUE(wire->closed());
    }
}

TEST_F(ListenerTest, SlowRequestsAfterAnAnswerAreRejected) {
  listen({.header = milliseconds(300), .body = milliseconds(300)});
  for (const std::string& bytes :
       {std::string("GET /page HTTP/1.1\r\nHost: "),
        request("POST", "/echo", "Content-Type: application/json\r\nContent-Length: 3\r\n") + "{"}) {
    auto wire = connect();
    while (wire->ask(get("/page")).status == 0) wire = connect();  // too slow itself
    EXPECT_EQ(wire->ask(bytes).status, 408) << bytes;
    EXPECT_TRUE(wire->closed());
  }
}

TEST_F(ListenerTest, ChunkedBodiesOfHttp10AreRejected) {
  listen();
  EXPECT_EQ(connect()
                ->ask("POST /echo HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                      "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
                .status,
            400);
}

TEST_F(ListenerTest, HeadIsGetWithoutABody) {
  listen();
  for (const char* path : {"/quick", "/page", "/grows", "/grows?70000", "/big?100000", "/nowhere", "/echo"}) {
    const auto wire = connect();
    const Wire::Answer whole = wire->ask(get(path));
    const auto again = connect();
    const Wire::Answer bare = again->ask(request("HEAD", path));
    EXPECT_EQ(bare.status, whole.status) << path;
    if (whole.status == 200) {  // their messages name the method or close the connection
      EXPECT_EQ(bare.headers, whole.headers) << path;
      // The next response begins where this one ended.
      const Wire::Answer next = again->ask(get("/page"));
      EXPECT_EQ(next.head, "HTTP/1.1 200 OK") << path;
      EXPECT_EQ(next.body, "page") << path;
    } else {
      EXPECT_TRUE(again->closed()) << path;
    }
  }
}

TEST_F(ListenerTest, HeadOfTooLongARequestHasNoBody) {
  listen();
  const auto wire = connect();
  EXPECT_EQ(wire->ask(request("HEAD", "/page", "X: " + std::string(9000, 'a') + "\r\n")).status, 431);
  EXPECT_TRUE(wire->closed());
}

TEST_F(ListenerTest, AHeadEndsAnEndlessAnswer) {
  listen({.unread = 1});  // the handler learns that the client does not read, perhaps before the head is sent
  const auto wire = connect();
  EXPECT_EQ(wire->ask(request("HEAD", "/endless")).status, 200);
  wait_for("endless ended");
  EXPECT_EQ(wire->ask(get("/page")).body, "page");
}

TEST_F(ListenerTest, AHalfClosedRequestIsAnswered) {
  listen();
  for (const bool chunked : {false, true}) {
    const auto wire = connect();
    const std::string mark = chunked ? "c" : "l";
    wire->send(chunked
                   ? request("POST", "/held?c", "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n") +
                         "2\r\n{}\r\n0\r\n\r\n"
                   : request("POST", "/held?l", "", "{}"));
    wire->shut();
    wait_for("held" + mark);
    const Wire::Answer interim = wire->head();  // it has seen that the client's side is shut
    EXPECT_EQ(interim.status, 100);
    release();
    EXPECT_EQ(wire->answer().body, "released");
    EXPECT_TRUE(wire->closed());
  }
  EXPECT_FALSE(notes_.contains("gone"));
}

TEST_F(ListenerTest, ARequestWhoseEndIsMissingIsAnswered) {
  listen();
  for (const std::string& bytes :
       {std::string("GET /page HTTP/1.1\r\nHos"),
        request("POST", "/echo", "Content-Type: application/json\r\nContent-Length: 9\r\n") + "{}"}) {
    const auto wire = connect();
    wire->send(bytes);
    wire->shut();
    EXPECT_EQ(wire->answer().status, 400) << bytes;
  }
  const auto silent = connect();
  silent->shut();
  EXPECT_EQ(silent->answer().status, 0);
}

TEST_F(ListenerTest, AClientThatHasGoneIsNoticed) {
  listen();
  auto wire = busy();
  wire->close();
  wait_for("gone");
}

TEST_F(ListenerTest, RequestsSentAheadAreAllAnswered) {
  listen();
  const auto wire = connect();
  const std::string filler = "X: " + std::string(4000, 'a') + "\r\n";
  wire->send(get("/held?ahead"));
  wait_for("heldahead");
  for (int n = 0; n < 20; ++n) wire->send(request("GET", "/page", filler));
  release();
  EXPECT_EQ(wire->answer().body, "released");
  for (int n = 0; n < 20; ++n) EXPECT_EQ(wire->answer().body, "page") << n;
}

TEST_F(ListenerTest, BusyConnectionsLeaveRoomForHealthAndSay503) {
  listen({.connections = 2});
  const auto one = busy(), other = busy();
  const Wire::Answer quick = connect()->ask(get("/quick"));
  EXPECT_EQ(quick.body, "quick");
  EXPECT_EQ(quick.headers.at("Connection"), "close");
  const auto third = connect();
  const Wire::Answer refused = third->ask(request("POST", "/echo", "", std::string(1 << 20, ' ')));
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("Retry-After"), "1");
  EXPECT_TRUE(third->closed());
  EXPECT_EQ(listener_->numbers().turned_away, 1);
  release();
  EXPECT_EQ(one->answer().body, "released");
  EXPECT_EQ(other->answer().body, "released");
}

TEST_F(ListenerTest, ManyMoreClientsThanConnectionsAreAllAnswered) {
  listen({.connections = 3});
  std::vector<std::thread> clients;
  std::atomic<int> good{0};
  for (int n = 0; n < 40; ++n)
    clients.emplace_back([&] {
      const auto wire = connect();
      if (wire->ask(request("POST", "/echo", "", std::string(20'000, ' '))).status == 200) ++good;
    });
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(good, 40);
}

TEST_F(ListenerTest, ClientsThatAreWaitedForMakeWayTheLongestFirst) {
  listen({.connections = 3, .header = milliseconds(600'000)});
  const auto silent = connect();
  wait_until([&] { return listener_->numbers().connections == 1; });
  std::this_thread::sleep_for(milliseconds(2));
  const auto slow = connect();
  slow->send("GET /page HTT");
  wait_until([&] { return listener_->numbers().connections == 2; });
  const auto at_work = busy();
  EXPECT_EQ(connect()->ask(get("/page")).body, "page");
  EXPECT_TRUE(silent->closed());
  slow->send("P/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(slow->answer().body, "page");
  release();
  EXPECT_EQ(at_work->answer().body, "released");
}

TEST_F(ListenerTest, UnreadAnswersStayWithinTheBudget) {
  const auto memory = std::make_shared<MemoryBudget>(22 << 20);  // two fit, and are less than three quarters
  listen({.memory = memory});
  const std::string big = get("/big?" + std::to_string(8 << 20));
  const auto one = connect(), two = connect();
  one->send(big);
  two->send(big);
  wait_until([&] { return memory->reserved() >= 16 << 20; });
  const auto three = connect();
  const Wire::Answer refused = three->ask(big);
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("Retry-After"), "1");
  EXPECT_EQ(three->ask(get("/page")).body, "page");  // small answers always fit
  EXPECT_EQ(three->ask(request("POST", "/echo", "", "{}")).body, "2");
  EXPECT_EQ(one->answer().body.size(), 8U << 20);
  wait_until([&] { return memory->reserved() <= 8 << 20; });
  EXPECT_EQ(three->ask(big).body.size(), 8U << 20);
  two->close();
  wait_until([&] { return memory->reserved() == 0; });
}

TEST_F(ListenerTest, AnswersThatAreNotReadMakeWayWhereMemoryRunsShort) {
  const auto memory = std::make_shared<MemoryBudget>(10 << 20);
  listen({.memory = memory});
  const auto wire = connect();
  wire->send(get("/big?" + std::to_string(8 << 20)));
  wait_until([&] { return listener_->numbers().evicted == 1; });
  wait_until([&] { return memory->reserved() == 0; });
  EXPECT_EQ(connect()->ask(get("/big?" + std::to_string(8 << 20))).body.size(), 8U << 20);
}

TEST_F(ListenerTest, BodiesStayWithinTheBudget) {
  const auto memory = std::make_shared<MemoryBudget>(1'500'000);
  listen({.memory = memory});
  const std::string head = request("POST", "/echo", "Content-Type: application/json\r\nContent-Length: 1000000\r\n");
  const auto one = connect(), two = connect();
  one->send(head);
  wait_until([&] { return memory->reserved() == 1'000'000; });
  two->send(head + std::string(1'000'000, ' '));
  EXPECT_EQ(two->answer().status, 503);
  EXPECT_EQ(connect()->ask(request("POST", "/echo", "", "{}")).body, "2");
  one->send(std::string(1'000'000, ' '));
  EXPECT_EQ(one->answer().body, "1000000");
  wait_until([&] { return memory->reserved() == 0; });
}

TEST_F(ListenerTest, APieceOfAnySizeArrivesWhole) {
  listen();
  const auto wire = connect();
  EXPECT_EQ(wire->ask(get("/grows?1")).body, "first,yyy");
  EXPECT_EQ(wire->ask(get("/grows?300000")).body.size(), 6 + 3 * 300'000U);
}

TEST_F(ListenerTest, AGrowingAnswerThatIsNotReadEnds) {
  const auto memory = std::make_shared<MemoryBudget>(64 << 20);
  listen({.memory = memory});
  const auto wire = connect();
  wire->send(get("/endless"));
  wait_for("endless ended");
  EXPECT_LE(memory->reserved(), (1 << 20) + 10'000);
  wait_until([&] { return memory->reserved() == 0; });
}

TEST_F(ListenerTest, HealthIsAnsweredWhileItDrains) {
  listen();
  const auto at_work = busy();
  const auto idle = connect();
  EXPECT_EQ(idle->ask(get("/page")).status, 200);
  EXPECT_FALSE(listener_->drain(milliseconds(1)));
  EXPECT_TRUE(idle->closed());
  const Wire::Answer quick = connect()->ask(get("/quick"));
  EXPECT_EQ(quick.body, "quick");
  EXPECT_EQ(quick.headers.at("Connection"), "close");
  const Wire::Answer refused = connect()->ask(get("/page"));
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("Retry-After"), "1");
  release();
  EXPECT_EQ(at_work->answer().body, "released");
  EXPECT_TRUE(listener_->drain(milliseconds(60'000)));
}

TEST(HandlerThreads, LargeRequestsTakeHalfOfTheThreads) {
  std::mutex mutex;
  std::condition_variable changed;
  int running = 0, most = 0, ended = 0;
  HandlerThreads threads(4);
  for (int n = 0; n < 40; ++n)
    threads.post(
        [&] {
          {
            const std::lock_guard lock(mutex);
            most = std::max(most, ++running);
          }
          std::this_thread::sleep_for(milliseconds(1));
          const std::lock_guard lock(mutex);
          --running, ++ended;
          changed.notify_all();
        },
        true);
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return ended == 40; });
  EXPECT_LE(most, 2);
}

TEST(HandlerThreads, SmallRequestsDoNotWaitForLargeOnes) {
  std::mutex mutex;
  std::condition_variable changed;
  bool small_ran = false;
  int large_ran = 0;
  HandlerThreads threads(2);
  for (int n = 0; n < 3; ++n)
    threads.post(
        [&] {
          std::unique_lock lock(mutex);
          changed.wait(lock, [&] { return small_ran; });
          ++large_ran;
          changed.notify_all();
        },
        true);
  threads.post(
      [&] {
        const std::lock_guard lock(mutex);
        small_ran = true;
        changed.notify_all();
      },
      false);
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return large_ran == 3; });
}

}  // namespace
}  // namespace attend::server
