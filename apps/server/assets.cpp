// Answers with embedded files.
#include "apps/server/assets.hpp"

#include <utility>

#include "io/sha256.hpp"

namespace attend::server {

const char* content_type(std::string_view path) {
  static constexpr std::pair<std::string_view, const char*> kTypes[] = {{".html", "text/html; charset=utf-8"},
                                                                        {".js", "text/javascript; charset=utf-8"},
                                                                        {".css", "text/css; charset=utf-8"},
                                                                        {".json", "application/json"},
                                                                        {".svg", "image/svg+xml"},
                                                                        {".png", "image/png"},
                                                                        {".woff2", "font/woff2"},
                                                                        {".txt", "text/plain; charset=utf-8"}};
  for (const auto& [end, type] : kTypes)
    if (path.ends_with(end)) return type;
  return "application/octet-stream";
}

void add_assets(Router& router) {
  for (const Asset& asset : assets()) {
    const std::string tag = "\"" + io::sha256(std::as_bytes(std::span(asset.bytes))).substr(0, 32) + "\"";
    const Handler handler = [asset, tag](const Request& request, const std::shared_ptr<Reply>& reply) {
      Response response{.content_type = content_type(asset.path)};
      // The page is asked for anew each time and sent only when it has changed: an update shows at once.
      response.headers = {{"ETag", tag}, {"Cache-Control", "no-cache"}};
      const std::string* known = request.header("if-none-match");
      if (known != nullptr && *known == tag)
        response.status = 304;
      else
        response.body = asset.bytes;
      reply->send(std::move(response));
    };
    const RouteOptions options{.open = true, .immediate = true};
    router.add("GET", "/" + std::string(asset.path), handler, options);
    if (asset.path == "index.html") router.add("GET", "/", handler, options);
  }
}

}  // namespace attend::server
