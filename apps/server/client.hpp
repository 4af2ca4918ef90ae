// A client of HTTP/1.1, for talking with a server such as this one: one request after the other, streams as they come.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace attend::server {

struct ServerAddress {
  std::string host, port, path;  // path: what stands before /v1, without a '/' at its end
};
// "http://127.0.0.1:8080/", with or without /v1. InvalidArgument for anything else: TLS is not spoken.
ServerAddress parse_url(const std::string& url);

class Client {
 public:
  // `token`: sent as the API key; "" for none. Connects with the first request.
  Client(ServerAddress address, std::string token);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Shown the body as it comes; false ends the request, and the connection with it.
  using OnPiece = std::function<bool(std::string_view piece)>;
  struct Result {
    int status = 0;
    std::string body;   // of what `on_piece` was not shown: errors
    bool ended = true;  // false: on_piece said so
  };
  // std::runtime_error when there is no connection, or no HTTP comes back. `path` begins with /v1 or the like.
  Result request(const std::string& method, const std::string& path, const std::string& body,
                 const OnPiece& on_piece = {});
  void give_up() { disconnect(); }  // whatever is under way: the next request connects anew

 private:
  void connect();
  void disconnect();
  void send(std::string_view data);
  bool fill();  // more bytes into buffer_; false at the end
  std::string line();
  bool take(std::size_t count, const std::function<bool(std::string_view)>& give);

  ServerAddress address_;
  std::string token_, buffer_;
  int socket_ = -1;
};

// Takes a stream of server-sent events apart.
class EventReader {
 public:
  // `on_event` is told the data of each whole event; false ends it.
  bool push(std::string_view piece, const std::function<bool(std::string_view data)>& on_event);

 private:
  std::string held_;
};

}  // namespace attend::server
