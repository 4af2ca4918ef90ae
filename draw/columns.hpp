// How much room text takes on a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace attend::draw {

// Characters are read as UTF-8 whatever the user's locale says. Once, before anything is measured or typed.
void use_utf8();

int columns_of(char32_t c);             // 0 for marks, 2 for Chinese and emoji, 1 for what cannot be shown
int columns_of(std::string_view text);  // of UTF-8 that is whole
std::string cut_to(std::string_view text, int columns);  // its beginning that fits

}  // namespace attend::draw
