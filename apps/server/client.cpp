// Plain sockets, blocking: a client has one thing to wait for.
#include "apps/server/client.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <stdexcept>

#include "attend/error.hpp"

namespace attend::server {
namespace {

constexpr std::size_t kMostBody = std::size_t{64} << 20, kMostLine = 1 << 16;

std::string lower(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

std::size_t number(std::string_view text, int base) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  std::size_t value = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), value, base).ec != std::errc() || value > kMostBody)
    throw std::runtime_error("the server answered with a length that is none");
  return value;
}

}  // namespace

ServerAddress parse_url(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  const auto refuse = [&] {
    throw InvalidArgument("the server's address is '" + url + "', expected one such as http://127.0.0.1:8080");
  };
  if (!url.starts_with(kScheme)) refuse();
  std::string rest = url.substr(kScheme.size());
  ServerAddress address;
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  address.path = rest.substr(slash);
  rest.resize(slash);
  const std::size_t colon = rest.rfind(':');
  const bool port = colon != std::string::npos && rest.find(']', colon) == std::string::npos;
  address.host = rest.substr(0, port ? colon : rest.size());
  address.port = port ? rest.substr(colon + 1) : "80";
  while (address.path.ends_with('/')) address.path.pop_back();
  if (address.path.ends_with("/v1")) address.path.resize(address.path.size() - 3);
  const bool digits = !address.port.empty() && address.port.find_first_not_of("0123456789") == std::string::npos;
  if (address.host.empty() || !digits || url.find_first_of(" \r\n\t") != std::string::npos) refuse();
  return address;
}

Client::Client(ServerAddress address, std::string token) : address_(std::move(address)), token_(std::move(token)) {}

Client::~Client() {
  disconnect();
}

void Client::disconnect() {
  if (socket_ >= 0) (void)::close(socket_);
  socket_ = -1;
  buffer_.clear();
}

void Client::connect() {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  std::string host = address_.host;
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const std::string where = address_.host + ":" + address_.port;
  if (const int code = ::getaddrinfo(host.c_str(), address_.port.c_str(), &hints, &found); code != 0)
    throw std::runtime_error("there is no host " + where + ": " + ::gai_strerror(code));
  int error = ECONNREFUSED;
  for (const addrinfo* at = found; at != nullptr && socket_ < 0; at = at->ai_next) {
    socket_ = ::socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol);
    if (socket_ < 0 || ::connect(socket_, at->ai_addr, at->ai_addrlen) == 0) continue;
    error = errno;
    disconnect();
  }
  ::freeaddrinfo(found);
  if (socket_ < 0)
    throw std::runtime_error("nothing answers at " + where + ": " + std::strerror(error) +
                             "; start a server with: attend serve --port " + address_.port);
  const int on = 1;
  (void)::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

void Client::send(std::string_view data) {
  while (!data.empty()) {
    const ssize_t count = ::send(socket_, data.data(), data.size(), MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) throw std::runtime_error(std::string("the connection is gone: ") + std::strerror(errno));
    data.remove_prefix(static_cast<std::size_t>(count));
  }
}

bool Client::fill() {
  char some[16384];
  ssize_t count = 0;
  do count = ::recv(socket_, some, sizeof some, 0);
  while (count < 0 && errno == EINTR);
  if (count <= 0) return false;
  buffer_.append(some, static_cast<std::size_t>(count));
  return true;
}

std::string Client::line() {
  while (buffer_.find("\r\n") == std::string::npos)
    if (buffer_.size() > kMostLine || !fill()) throw std::runtime_error("the server closed the connection");
  std::string text = buffer_.substr(0, buffer_.find("\r\n"));
  buffer_.erase(0, text.size() + 2);
  return text;
}

bool Client::take(std::size_t count, const std::function<bool(std::string_view)>& give) {
  while (count > 0) {
    if (buffer_.empty() && !fill())
      throw std::runtime_error("the server closed the connection in the middle of an answer");
    const std::size_t some = std::min(count, buffer_.size());
    const bool more = give(std::string_view(buffer_).substr(0, some));
    buffer_.erase(0, some);
    count -= some;
    if (!more) return false;
  }
  return true;
}

Client::Result Client::request(const std::string& method, const std::string& path, const std::string& body,
                               const OnPiece& on_piece) {
  const bool fresh = socket_ < 0;
  if (fresh) connect();
  std::string head =
      method + " " + address_.path + path + " HTTP/1.1\r\nHost: " + address_.host + ":" + address_.port + "\r\n";
  if (!token_.empty()) head += "Authorization: Bearer " + token_ + "\r\n";
  if (!body.empty())
    head += "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  Result result;
  std::string status;
  try {
    send(head + "\r\n" + body);
    status = line();
  } catch (const std::runtime_error&) {  // one that was kept open may have been closed meanwhile
    disconnect();
    if (fresh) throw;
    return request(method, path, body, on_piece);
  }
  if (!status.starts_with("HTTP/1.") || status.size() < 12)
    throw std::runtime_error("what answers there speaks no HTTP");
  result.status = static_cast<int>(number(status.substr(9, 3), 10));
  std::size_t length = 0;
  bool chunked = false, closes = false;
  for (std::string text; !(text = line()).empty();) {
    const std::string name = lower(text.substr(0, text.find(':'))),
                      value = lower(text.substr(std::min(text.find(':') + 1, text.size())));
    if (name == "content-length") length = number(value, 10);
    if (name == "transfer-encoding") chunked = value.find("chunked") != std::string::npos;
    if (name == "connection") closes = value.find("close") != std::string::npos;
  }
  const auto give = [&](std::string_view piece) {
    if (on_piece && result.status == 200) return on_piece(piece);
    result.body += piece;
    if (result.body.size() > kMostBody) throw std::runtime_error("the server's answer is too long");
    return true;
  };
  if (!chunked) {
    result.ended = take(length, give);
  } else {
    while (result.ended) {
      const std::size_t size = number(line(), 16);
      if (size > 0) result.ended = take(size, give);
      if (result.ended) (void)line();
      if (size == 0) break;
    }
  }
  if (closes || !result.ended) disconnect();
  return result;
}

bool EventReader::push(std::string_view piece, const std::function<bool(std::string_view data)>& on_event) {
  held_ += piece;
  for (std::size_t end; (end = held_.find("\n\n")) != std::string::npos;) {
    const std::string event = held_.substr(0, end);
    held_.erase(0, end + 2);
    const std::size_t data = event.find("data: ");
    if (data != std::string::npos && !on_event(std::string_view(event).substr(data + 6))) return false;
  }
  return true;
}

}  // namespace attend::server
