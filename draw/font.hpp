// A small font for pictures: digits, letters and a little more, of our own making.
#pragma once

#include <functional>
#include <string>

namespace attend::draw {

inline constexpr int kCapHeight = 7;  // dots from the top of a capital to the line it stands on

// In dots.
int text_width(const std::string& text);
// Calls dot(x, y) for each dot of the text, from its top left corner.
void for_each_dot(const std::string& text, const std::function<void(int x, int y)>& dot);

}  // namespace attend::draw
