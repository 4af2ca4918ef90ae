// The checks in their order (Host, Origin, path, method, token, content type), then the handler.
#include "apps/server/router.hpp"

#include <algorithm>
#include <new>

#include "attend/error.hpp"
#include "io/json.hpp"

namespace attend::server {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

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

// A page of another site may not ask: only one that came from here, or a program that is no browser.
std::optional<Response> wrong_origin(const Request& head) {
  if (head.count("origin") == 0) return std::nullopt;
  const std::string* origin = head.header("origin");
  const std::string* host = head.header("host");
  if (origin != nullptr && host != nullptr &&
      (lower(*origin) == "http://" + lower(*host) || lower(*origin) == "https://" + lower(*host)))
    return std::nullopt;
  return refused(403, "Origin is not this server: pages of other sites may not use it", "origin_not_allowed");
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

std::optional<Response> Router::refusal(const Request& head) const {
  if (auto wrong = wrong_host(head, access_)) return wrong;
  if (auto wrong = wrong_origin(head)) return wrong;
  const Found found = find(head);
  if (found.methods.empty())
    return refused(
        404, "there is no " + io::json_quoted(head.path.substr(0, 200)) + " here; /openapi.json lists what there is",
        "not_found");
  if (found.route == nullptr) {
    Response response =
        refused(405, "method is " + io::json_quoted(head.method.substr(0, 20)) + ", expected " + found.methods,
                "method_not_allowed");
    response.headers.emplace_back("Allow", found.methods);
    return response;
  }
  if (!access_.token.empty() && !found.route->options.open) {
    const std::string* given = head.header("authorization");
    constexpr std::string_view kBearer = "bearer ";
    const bool bearer = given != nullptr && lower(std::string_view(*given).substr(0, kBearer.size())) == kBearer;
    if (!bearer || !same_secret(trimmed(std::string_view(*given).substr(kBearer.size())), access_.token)) {
      Response response = refused(
          401,
          given == nullptr ? "no token: this server expects the header 'Authorization: Bearer TOKEN'" : "wrong token",
          "invalid_api_key");
      response.headers.emplace_back("WWW-Authenticate", "Bearer");
      return response;
    }
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
            ", expected application/json",
        "bad_content_type");
  return std::nullopt;
}

void Router::handle(const Request& request, const std::shared_ptr<Reply>& reply) const {
  if (auto wrong = refusal(request)) {
    reply->send(std::move(*wrong));
    return;
  }
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
  return found.route != nullptr && found.route->options.immediate;
}

const Headers& Router::common_headers() {
  static const Headers all = {
      {"Content-Security-Policy", "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"},
      {"X-Content-Type-Options", "nosniff"},
      {"X-Frame-Options", "DENY"},
      {"Referrer-Policy", "no-referrer"},
      {"Cross-Origin-Resource-Policy", "same-origin"},
      {"Cross-Origin-Opener-Policy", "same-origin"},
      {"Cache-Control", "no-store"},
  };
  return all;
}

}  // namespace attend::server
