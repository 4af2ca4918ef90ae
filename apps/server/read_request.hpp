// A request as Boost.Beast read it, as the API sees it.
#pragma once

#include <boost/beast/http.hpp>
#include <string>
#include <string_view>

#include "apps/server/http.hpp"

namespace attend::server {

template <class Fields>
Request to_request(const boost::beast::http::request<boost::beast::http::string_body, Fields>& message) {
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

}  // namespace attend::server
