// One HTML file that holds everything: pictures in light and dark, text, data. It asks for nothing from anywhere.
#pragma once

#include <string>
#include <vector>

#include "draw/picture.hpp"

namespace attend::draw {

struct Section {
  std::string heading{};
  std::vector<std::string> paragraphs{};  // plain text
  std::vector<Picture> pictures{};
};

struct Page {
  std::string title;
  Language language = Language::english;
  std::vector<Section> sections{};
  std::string json{};  // kept in the page (base64, in an element with the id "data") for who wants the numbers
};

std::string to_html(const Page& page);

}  // namespace attend::draw
