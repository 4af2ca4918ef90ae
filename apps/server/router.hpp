// Which handler answers which path, behind the checks that every request has to pass first.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/server/http.hpp"

namespace attend::server {

inline constexpr std::size_t kHeaderBytes = 8 << 10;
inline constexpr std::size_t kBodyBytes = 1 << 20;
inline constexpr int kJsonDepth = 64;

// Who may ask. The Host header comes first: it is what stops DNS rebinding.
struct Access {
  std::vector<std::string> hosts = {"localhost", "127.0.0.1", "[::1]"};  // allowed in Host, without the port
  bool any_address = false;                                              // numbers are allowed too: 192.168.1.5
  std::string token{};                                                   // "": none is asked for
  std::vector<std::string> origins{};  // of other sites whose pages may ask (CORS), in lower case: "https://a.example"
};

// "https://chat.example:8443": a scheme, a host and perhaps a port, in lower case; "" for anything else.
std::string as_origin(std::string_view text);

struct RouteOptions {
  bool open = false;       // no token is needed: assets, /health
  bool json = true;        // a request with a body has to say application/json
  bool immediate = false;  // quick: runs where the sockets are served, and is answered when all handlers are busy
};

// An error as OpenAI's clients read it: {"error": {"message", "type", "param", "code"}}.
struct ApiError {
  int status = 400;
  std::string message;
  std::string param{};  // the field that is wrong; "" for null
  std::string code{};   // "" for null
};
Response error_response(const ApiError& error);

// What a handler throws to answer with an error.
class RequestError : public std::exception {
 public:
  explicit RequestError(ApiError what_is_wrong) : error(std::move(what_is_wrong)) {}
  const char* what() const noexcept override { return error.message.c_str(); }
  ApiError error;
};

// All routes are added before the first request; then any thread may ask.
class Router {
 public:
  explicit Router(Access access = {}) : access_(std::move(access)) {}

  // A path is matched as it is; one that ends with "/*" matches what begins with what is before the '*'.
  void add(const std::string& method, const std::string& path, Handler handler, RouteOptions options = {});

  // What the head alone shows to be wrong: Host, Origin, token, path, method, content type. Nothing where a body may be
  // read.
  std::optional<Response> refusal(const Request& head) const;
  // Checks, finds the handler, runs it here, and turns what it throws into a response.
  void handle(const Request& request, const std::shared_ptr<Reply>& reply) const;
  bool immediate(const Request& head) const;  // its handler is one that need not wait for others

  // The headers of every response to this request: content security policy, no sniffing, no caching of answers; and for
  // the page of another site that may ask, those of CORS.
  Headers headers(const Request& request) const;

 private:
  struct Route {
    Handler handler;
    RouteOptions options;
  };
  struct Found {
    const Route* route = nullptr;
    std::string methods{};  // that the path has, for Allow
  };
  Found find(const Request& request) const;
  bool may_share(const Request& head) const;
  bool is_preflight(const Request& head) const;
  std::string closest_path(const std::string& path) const;

  Access access_;
  std::map<std::string, std::map<std::string, Route>> exact_, prefix_;  // path, method
};

}  // namespace attend::server
