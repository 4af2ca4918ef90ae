// How much room text takes on a terminal.
#include "draw/columns.hpp"

#include <langinfo.h>

#include <clocale>
#include <cwchar>
#include <string_view>

#include "base/utf8.hpp"

namespace attend::draw {

void use_utf8() {
  (void)std::setlocale(LC_CTYPE, "");  // numbers stay as they are in C
  if (std::string_view(::nl_langinfo(CODESET)) != "UTF-8") (void)std::setlocale(LC_CTYPE, "C.UTF-8");
}

int columns_of(char32_t c) {
  if (c >= 0x20 && c < 0x7F) return 1;
  const int width = ::wcwidth(static_cast<wchar_t>(c));
  return width < 0 ? 1 : width;
}

int columns_of(std::string_view text) {
  int columns = 0;
  for (std::size_t place = 0; place < text.size();) {
    const CodePoint c = code_point(text, place);
    columns += columns_of(c.value);
    place += c.bytes;
  }
  return columns;
}

std::string cut_to(std::string_view text, int columns) {
  std::size_t place = 0;
  while (place < text.size()) {
    const CodePoint c = code_point(text, place);
    columns -= columns_of(c.value);
    if (columns < 0) break;
    place += c.bytes;
  }
  return std::string(text.substr(0, place));
}

}  // namespace attend::draw
