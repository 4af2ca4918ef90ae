// The checks in their order (Host, Origin, path, method, token, content type), then the handler.
#include "apps/server/router.hpp"

#include <algorithm>
#include <new>

#include "attend/error.hpp"
#include "io/closest.hpp"
#include "io/json.hpp"

namespace attend::server {
namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

bool all_of(std::string_view text, std::string_view allowed) {
  return !text.empty() && text.find_first_not_of(allowed) == std::string_view::npos;
}

// Host without its port; "" when it is no host at all.
std::string host_name(std::string_view host) {
  constexpr std::string_view kDigits = "0123456789";
  std::size_t end = std::min(host.find(':'), host.size());
  if (host.starts_with('[')) {
    const std::size_t closed = host.find(']');
    if (closed == std::string_view::npos) return "";
    end = closed + 1;
  }
  const std::string_view port = host.substr(end);
  if (!port.empty() && (port.front() != ':' || !all_of(port.substr(1), kDigits) || port.size() > 6)) return "";
  return lower(host.substr(0, end));
}

// Numbers cannot be made to mean another machine by a name server.
bool is_address(std::string_view name) {
  if (name.starts_with('[')) return all_of(name.substr(1, name.size() - 2), "0123456789abcdef:.");
  return all_of(name, "0123456789.");
}

// Takes the same time wherever they differ.
bool same_secret(std::string_view given, std::string_view secret) {
  unsigned different = given.size() == secret.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i)
    different |= static_cast<unsigned char>(given[i] ^ secret[secret.empty() ? 0 : i % secret.size()]);
  return different == 0;
}

std::string error_type(int status) {
  if (status == 401) return "authentication_error";
  if (status == 403) return "permission_error";
  if (status == 429) return "rate_limit_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

Response refused(int status, std::string message, std::string code, std::string param = "") {
  return error_response({status, std::move(message), std::move(param), std::move(code)});
}

std::optional<Response> wrong_host(const Request& head, const Access& access) {
  const std::string* host = head.header("host");
  if (host == nullptr)
    return refused(400,
                   "the request has " + std::string(head.count("host") == 0 ? "no" : "more than one") +
                       " Host header, expected one",
                   "bad_host");
  const std::string name = host_name(*host);
  const bool listed = !name.empty() && std::find(access.hosts.begin(), access.hosts.end(), name) != access.hosts.end();
  if (listed || (access.any_address && !name.empty() && is_address(name))) return std::nullopt;
  return refused(421,
                 "Host is " + io::json_quoted(host->substr(0, 100)) +
                     ", which is not a name of this server; start it with --allow-host NAME if it should be",
                 "host_not_allowed");
}

// A page of another site may not ask unless it is named: only one that came from here, or a program that is no browser.
std::optional<Response> wrong_origin(const Request& head, bool named) {
  if (head.count("origin") == 0 || named) return std::nullopt;
  const std::string* origin = head.header("origin");
  const std::string* host = head.header("host");
  if (origin != nullptr && host != nullptr &&
      (lower(*origin) == "http://" + lower(*host) || lower(*origin) == "https://" + lower(*host)))
    return std::nullopt;
  return refused(403,
                 "Origin is not this server: pages of other sites may not use it; start it with --allow-origin ORIGIN "
                 "for one that may",
                 "origin_not_allowed");
}

// As OpenAI's clients send it, or Anthropic's: one that is right is enough.
bool right_token(const Request& head, const std::string& token) {
  constexpr std::string_view kBearer = "bearer ";
  const std::string* given = head.header("authorization");
  const bool bearer = given != nullptr && lower(std::string_view(*given).substr(0, kBearer.size())) == kBearer;
  if (bearer && same_secret(trimmed(std::string_view(*given).substr(kBearer.size())), token)) return true;
  const std::string* key = head.header("x-api-key");
  return key != nullptr && same_secret(trimmed(*key), token);
}

// The methods of the path and the headers that the page wants to send, which are names: 60 of OpenAI's client at most.
Response preflight(const Request& head, const std::string& methods) {
  Response response{.content_type = "text/plain; charset=utf-8"};
  response.headers = {{"Access-Control-Allow-Methods", methods}, {"Access-Control-Max-Age", "600"}};
  const std::string* wanted = head.header("access-control-request-headers");
  if (wanted != nullptr && all_of(lower(*wanted), "abcdefghijklmnopqrstuvwxyz0123456789-_, "))
    response.headers.emplace_back("Access-Control-Allow-Headers", *wanted);
  return response;
}

bool has_body(const Request& head) {
  return head.count("content-length") > 0 || head.count("transfer-encoding") > 0 || !head.body.empty();
}

bool says_json(const Request& head) {
  const std::string* type = head.header("content-type");
  if (type == nullptr) return false;
  return lower(trimmed(std::string_view(*type).substr(0, type->find(';')))) == "application/json";
}

}  // namespace

std::string as_origin(std::string_view text) {
  std::string origin = lower(text);
  const std::size_t start = origin.starts_with("https://") ? 8 : origin.starts_with("http://") ? 7 : 0;
  const std::string name = start > 0 ? host_name(std::string_view(origin).substr(start)) : "";
  const bool plain = name.starts_with('[') ? is_address(name) : all_of(name, "abcdefghijklmnopqrstuvwxyz0123456789.-_");
  return plain ? origin : "";
}

Response error_response(const ApiError& error) {
  io::JsonObject inner;
  inner.string("message", error.message);
  inner.string("type", error_type(error.status));
  inner.put("param", error.param.empty() ? "null" : io::json_quoted(error.param));
  inner.put("code", error.code.empty() ? "null" : io::json_quoted(error.code));
  io::JsonObject outer;
  outer.put("error", inner.text());
  return {.status = error.status, .body = outer.text()};
}

void Router::add(const std::string& method, const std::string& path, Handler handler, RouteOptions options) {
  const bool prefix = path.ends_with("/*");
  auto& routes = prefix ? prefix_ : exact_;
  routes[prefix ? path.substr(0, path.size() - 1) : path][method] = {std::move(handler), options};
}

Router::Found Router::find(const Request& request) const {
  const std::map<std::string, Route>* methods = nullptr;
  if (const auto exact = exact_.find(request.path); exact != exact_.end()) {
    methods = &exact->second;
  } else {
    std::size_t longest = 0;
    for (const auto& [path, at] : prefix_)
      if (path.size() >= longest && request.path.starts_with(path) && request.path.size() > path.size())
        longest = path.size(), methods = &at;
  }
  Found found;
  if (methods == nullptr) return found;
  for (const auto& [method, route] : *methods) {
    found.methods += (found.methods.empty() ? "" : ", ") + method;
    if (method == request.method || (method == "GET" && request.method == "HEAD")) found.route = &route;
  }
  return found;
}

// The usual slips: /v1 left out or doubled, a slash at the end, a letter.
std::string Router::closest_path(const std::string& path) const {
  std::string bare = path.substr(0, 200);
  while (bare.size() > 1 && bare.ends_with('/')) bare.pop_back();
  while (bare.starts_with("/v1/v1/")) bare.erase(0, 3);
  std::vector<std::string> known;
  for (const auto& [name, unused] : exact_) known.push_back(name);
  for (const std::string& one : {bare, "/v1" + bare})
    if (exact_.contains(one)) return "; did you mean '" + one + "'?";
  return bare.size() < 4 ? "" : io::did_you_mean(bare, known);
}

std::optional<Response> Router::refusal(const Request& head) const {
  if (auto wrong = wrong_host(head, access_)) return wrong;
  if (auto wrong = wrong_origin(head, may_share(head))) return wrong;
  const Found found = find(head);
  if (found.methods.empty())
    return refused(404,
                   "there is no " + io::json_quoted(head.path.substr(0, 200)) +
                       " here; /openapi.json lists what there is" + closest_path(head.path),
                   "not_found");
  if (found.route == nullptr && !is_preflight(head)) {
    Response response =
        refused(405,
                "method is " + io::json_quoted(head.method.substr(0, 20)) + ", expected " + found.methods +
                    (found.methods == "POST" ? " with a body of JSON; /openapi.json describes it" : ""),
                "method_not_allowed");
    response.headers.emplace_back("Allow", found.methods);
    return response;
  }
  if (!access_.token.empty() && !is_preflight(head) && !found.route->options.open &&
      !right_token(head, access_.token)) {
    const bool given = head.count("authorization") + head.count("x-api-key") > 0;
    Response response =
        refused(401, given ? "wrong token" : "no token: this server expects the header 'Authorization: Bearer TOKEN'",
                "invalid_api_key");
    response.headers.emplace_back("WWW-Authenticate", "Bearer");
    return response;
  }
  const bool may_have_body = head.method == "POST" || head.method == "PUT" || head.method == "PATCH";
  if (!may_have_body && has_body(head) &&
      (head.header("content-length") == nullptr || *head.header("content-length") != "0"))
    return refused(400, head.method + " with a body, expected none", "unexpected_body");
  if (may_have_body && found.route->options.json && !says_json(head))
    return refused(
        415,
        "Content-Type is " +
            (head.header("content-type") == nullptr ? std::string("missing")
                                                    : io::json_quoted(head.header("content-type")->substr(0, 100))) +
            ", expected application/json; with curl: -H 'Content-Type: application/json'",
        "bad_content_type");
  return std::nullopt;
}

void Router::handle(const Request& request, const std::shared_ptr<Reply>& reply) const {
  if (auto wrong = refusal(request)) {
    reply->send(std::move(*wrong));
    return;
  }
  if (is_preflight(request)) return reply->send(preflight(request, find(request).methods));
  try {
    find(request).route->handler(request, reply);
  } catch (const RequestError& error) {
    reply->send(error_response(error.error));
  } catch (const InvalidArgument& error) {
    reply->send(refused(400, error.what(), ""));
  } catch (const std::bad_alloc&) {
    reply->send(refused(503, "out of memory; ask for less", "out_of_memory"));
  } catch (const std::exception& error) {
    reply->send(refused(500, error.what(), "internal_error"));
  }
}

bool Router::immediate(const Request& head) const {
  const Found found = find(head);
  return is_preflight(head) || (found.route != nullptr && found.route->options.immediate);
}

bool Router::may_share(const Request& head) const {
  const std::string* origin = head.header("origin");
  return origin != nullptr &&
         std::find(access_.origins.begin(), access_.origins.end(), lower(*origin)) != access_.origins.end();
}

// What a browser asks before it lets the page of another site send a request; it brings no token.
bool Router::is_preflight(const Request& head) const {
  return head.method == "OPTIONS" && head.header("access-control-request-method") != nullptr && may_share(head);
}

Headers Router::headers(const Request& request) const {
  Headers all = {
      {"Content-Security-Policy", "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"},
      {"X-Content-Type-Options", "nosniff"},
      {"X-Frame-Options", "DENY"},
      {"Referrer-Policy", "no-referrer"},
      {"Cross-Origin-Resource-Policy", "same-origin"},
      {"Cross-Origin-Opener-Policy", "same-origin"},
      {"Cache-Control", "no-store"},
  };
  if (!access_.origins.empty()) all.emplace_back("Vary", "Origin");
  if (may_share(request)) {
    all.emplace_back("Access-Control-Allow-Origin", *request.header("origin"));
    all.emplace_back("Access-Control-Expose-Headers", "attend-ignored, Retry-After");
  }
  return all;
}

}  // namespace attend::server
