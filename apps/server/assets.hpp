// Files that are part of the program: pages, scripts and styles, embedded by cmake/assets.cmake.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "apps/server/router.hpp"

namespace attend::server {

struct Asset {
  std::string_view path;  // "index.html", "scripts/map.js"
  std::string_view bytes;
};

// All files of apps/explorer that the program holds, sorted by path.
std::span<const Asset> assets();

// From the end of the name: "text/html; charset=utf-8", ...
const char* content_type(std::string_view path);

// Each asset under /<path>, index.html also under /; with an ETag, so that a page that is unchanged is not sent again.
void add_assets(Router& router);

}  // namespace attend::server
