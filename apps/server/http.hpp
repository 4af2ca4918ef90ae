// Requests and responses as the API sees them: plain values, no sockets. listener.cpp brings them over HTTP/1.1.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace attend::server {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct Request {
  std::string method = "GET";
  std::string path = "/";  // without the query, as it came: nothing is unescaped
  std::string query{};     // behind the '?'
  Headers headers{};       // names in lower case, in the order they came
  std::string body{};

  // The value of the only header of this name (in lower case); null when there is none or more than one.
  const std::string* header(std::string_view name) const;
  std::size_t count(std::string_view name) const;
};

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::string body{};  // any bytes
  Headers headers{};   // besides those that every response has (router.hpp)
};

std::string lower(std::string_view text);  // of ASCII letters

// "Not Found"
const char* reason_phrase(int status);

// The answer to one request, from any thread: one send(), or begin(), write()s and end(). What is not answered when the
// last owner lets go of it becomes a 500.
class Reply {
 public:
  virtual ~Reply() = default;
  virtual void send(Response response) = 0;
  // A body that grows (server-sent events, a download): `head`.body is its first piece.
  virtual void begin(Response head) = 0;
  // False when the client has gone, or has left more unread than is kept for it: then nobody will read the rest.
  virtual bool write(std::string piece) = 0;
  // False while a growing body has so much unread that its next piece should wait.
  virtual bool ready() const { return true; }
  virtual void end() = 0;
  // `call` is called once, on another thread, if the client goes away before the end; at once if it has. It must be
  // quick.
  virtual void when_gone(std::function<void()> call) = 0;
};

// Runs on one of a few threads kept for handlers: it may take its time (parse, tokenize), but whatever takes seconds
// belongs on a thread of its own, with the reply handed over. What it throws becomes an error response.
using Handler = std::function<void(const Request& request, std::shared_ptr<Reply> reply)>;

// One server-sent event: "data: ...\n\n", with "event: name" before it where there is a name. Line ends in `data` begin
// new data lines.
std::string server_sent_event(std::string_view data, std::string_view name = "");
inline constexpr const char* kEventStream = "text/event-stream";

// Sets `value` to that of `name` in a query such as "a=1&b=two%20words", unescaped; false if there is no such name.
bool query_value(std::string_view query, std::string_view name, std::string& value);

}  // namespace attend::server
