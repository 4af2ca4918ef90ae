// Lines as the terminal itself gives them.
#include "terminal_lines.hpp"

#include <termios.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>

namespace attend::cli {

void erase_whole_characters() {
  termios settings{};
  if (::tcgetattr(STDIN_FILENO, &settings) != 0 || (settings.c_iflag & IUTF8) != 0) return;
  settings.c_iflag |= IUTF8;
  ::tcsetattr(STDIN_FILENO, TCSADRAIN, &settings);
}

std::optional<std::string> read_plain_line(const std::string& prompt) {
  (void)std::fputs(prompt.c_str(), stdout);
  (void)std::fflush(stdout);
  std::string line;
  if (!std::getline(std::cin, line)) return std::nullopt;
  return line;
}

}  // namespace attend::cli
