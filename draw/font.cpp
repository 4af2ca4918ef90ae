// A small font for pictures: glyphs at most 5 wide and 9 high, drawn here as they look.
#include "draw/font.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace attend::draw {
namespace {

// Glyphs side by side, one every 6 columns; what lies below the seventh row hangs under the line.
struct Sheet {
  std::string_view characters;
  std::array<std::string_view, 9> rows;
};

// clang-format off
constexpr Sheet kSheets[] = {
    {"ABCDEFGHIJKLM",
     {" ###  ####   ###  ####  ##### #####  ###  #   # ###      ## #   # #     #   #",
      "#   # #   # #   # #   # #     #     #   # #   #  #        # #  #  #     ## ##",
      "#   # #   # #     #   # #     #     #     #   #  #        # # #   #     # # #",
      "##### ####  #     #   # ####  ####  # ### #####  #        # ##    #     # # #",
      "#   # #   # #     #   # #     #     #   # #   #  #        # # #   #     #   #",
      "#   # #   # #   # #   # #     #     #   # #   #  #    #   # #  #  #     #   #",
      "#   # ####   ###  ####  ##### #      ###  #   # ###    ###  #   # ##### #   #"}},
    {"NOPQRSTUVWXYZ",
     {"#   #  ###  ####   ###  ####   #### ##### #   # #   # #   # #   # #   # #####",
      "##  # #   # #   # #   # #   # #       #   #   # #   # #   # #   # #   #     #",
      "##  # #   # #   # #   # #   # #       #   #   # #   # #   #  # #   # #     # ",
      "# # # #   # ####  #   # ####   ###    #   #   # #   # # # #   #     #     #  ",
      "#  ## #   # #     # # # # #       #   #   #   #  # #  # # #  # #    #    #   ",
      "#  ## #   # #     #  #  #  #      #   #   #   #  # #  ## ## #   #   #   #    ",
      "#   #  ###  #      ## # #   # ####    #    ###    #   #   # #   #   #   #####"}},
    {"abcdefghijklm",
     {"      #              #         ##         #     #      #    #     #          ",
      "      #              #        #           #                 #     #          ",
      " ##   ###    ###   ###   ##   ###    ###  ###   #      #    #  #  #     #### ",
      "   #  #  #  #     #  #  #  #  #     #  #  #  #  #      #    # #   #     # # #",
      " ###  #  #  #     #  #  ####  #     #  #  #  #  #      #    ##    #     # # #",
      "#  #  #  #  #     #  #  #     #     #  #  #  #  #      #    # #   #     # # #",
      " ###  ###    ###   ###   ###  #      ###  #  #  #      #    #  #   #    # # #",
      "                                       #               #                     ",
      "                                     ##               #                      "}},
    {"nopqrstuvwxyz",
     {"                                    #                                       ",
      "                                    #                                       ",
      "###    ##   ###    ###  # ##   ###  ###   #  #  #   # # # # #   # #  #  ####",
      "#  #  #  #  #  #  #  #  ##    #     #     #  #  #   # # # #  # #  #  #     #",
      "#  #  #  #  #  #  #  #  #      ##   #     #  #   # #  # # #   #   #  #   ## ",
      "#  #  #  #  #  #  #  #  #        #  #     #  #   # #  # # #  # #  #  #  #   ",
      "#  #   ##   ###    ###  #     ###    ##    ###    #    # #  #   #  ###  ####",
      "            #        #                                               #      ",
      "            #        #                                             ##       "}},
    {"0123456789.,?",
     {" ##     #    ##    ##     #   ####   ##   ####   ##    ##                ## ",
      "#  #   ##   #  #  #  #   ##   #     #        #  #  #  #  #              #  #",
      "#  #    #      #     #  # #   ###   ###      #  #  #  #  #                 #",
      "#  #    #     #    ##   # #      #  #  #    #    ##    ###                # ",
      "#  #    #    #       #  ####     #  #  #    #   #  #     #               #  ",
      "#  #    #   #     #  #    #   #  #  #  #   #    #  #     #         #        ",
      " ##    ###  ####   ##     #    ##    ##    #     ##    ##   #      #     #  ",
      "                                                                  #         ",
      "                                                                            "}},
    {":-+%/()=';_",
     {"                  #   #    #   #    #           #                ",
      "                  #  #     #  #      #          #                ",
      "              #      #    #   #      #                 #         ",
      "#     ###     #     #     #   #      #    ####                   ",
      "            #####  #     #    #      #                           ",
      "              #    #  # #     #      #    ####         #         ",
      "#             #   #   # #      #    #                  #    #####",
      "                                                      #          "}},
    {"<>|!\"\\[]*#&@",
     {"   #  #     #     #     # #   #     ##    ##           # #   ##    ### ",
      "  #    #    #     #     # #   #     #      #    # # #  # #  #  #  #   #",
      " #      #   #     #            #    #      #     ###  ##### #  #  # ###",
      "#        #  #     #             #   #      #    #####  # #   ##   # # #",
      " #      #   #     #              #  #      #     ###  ##### # # # # ###",
      "  #    #    #                     # #      #    # # #  # #  #  #  #    ",
      "   #  #     #     #               # ##    ##           # #   ## #  ### ",
      "            #                                                          ",
      "            #                                                          "}},
};
// clang-format on

constexpr std::size_t kPitch = 6;
constexpr int kSpaceWidth = 3;

std::string_view row_of(const Sheet& sheet, std::size_t place, std::size_t row) {
  const std::string_view line = sheet.rows[row];
  if (place * kPitch >= line.size()) return {};
  const std::string_view dots = line.substr(place * kPitch, kPitch - 1);
  return dots.substr(0, dots.find_last_not_of(' ') + 1);
}

// Calls dot(column, row) for each dot of the character and gives its width; unknown ones are drawn as '?'.
template <class Dot>
int for_each_dot(char character, const Dot& dot) {
  if (character == ' ') return kSpaceWidth;
  for (const Sheet& sheet : kSheets) {
    const std::size_t place = sheet.characters.find(character);
    if (place == sheet.characters.npos) continue;
    std::size_t width = 0;
    for (std::size_t row = 0; row < sheet.rows.size(); ++row) {
      const std::string_view dots = row_of(sheet, place, row);
      width = std::max(width, dots.size());
      for (std::size_t column = 0; column < dots.size(); ++column) {
        if (dots[column] == '#') dot(static_cast<int>(column), static_cast<int>(row));
      }
    }
    return static_cast<int>(width);
  }
  return for_each_dot('?', dot);
}

}  // namespace

int text_width(const std::string& text) {
  int width = 0;
  for (const char c : text) width += for_each_dot(c, [](int, int) {}) + 1;
  return std::max(0, width - 1);
}

void for_each_dot(const std::string& text, const std::function<void(int x, int y)>& dot) {
  int left = 0;
  for (const char c : text) {
    left += for_each_dot(c, [&](int x, int y) { dot(left + x, y); }) + 1;
  }
}

}  // namespace attend::draw
