// What Cairo's SVG lacks: a title, text that can be found, sharp cells, and the same names every time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "draw/pen.hpp"

namespace attend::draw {

std::string with_text(std::string_view svg, const std::string& title, const std::vector<Pen::Written>& written);

// Two pictures of the same size in one: the second where the reader prefers dark.
std::string svg_of_both(const std::string& light, const std::string& dark);

// For the text of an element or of an attribute.
std::string escaped_xml(std::string_view text);

}  // namespace attend::draw
